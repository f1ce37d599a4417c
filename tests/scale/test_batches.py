"""Batch callables give what their components give, a row each, in typed columns."""

from __future__ import annotations

import json
import pickle
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest

from surerag import ClusterCompressor, Dense, LazyRAG, Passage, SePer, UncertaintyRewriter
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import (
    CapabilityError,
    ConfigurationError,
    InputError,
    MissingServiceError,
    PromptError,
    RefusedError,
)
from surerag.scale import CompressBatch, DenseBatch, LazyRAGBatch, RewriteBatch, SePerBatch
from tests.clean_process import loaded_by
from tests.scale.makers import Corpus, reader

MAKERS = "tests.scale.makers"
READER = {"factory": f"{MAKERS}:reader"}
CORPUS = {"factory": f"{MAKERS}:corpus"}
TEXTS = ["Ada was born in Velm.", "Bo sings in Orun."]
PASSAGES = [Passage(text, id=str(rank)) for rank, text in enumerate(TEXTS, start=1)]

SETTINGS: dict[type[Any], dict[str, Any]] = {
    SePerBatch: {"reader": READER, "entailer": "exact", "n_samples": 3},
    LazyRAGBatch: {
        "reader": READER,
        "retriever": CORPUS,
        "summaries": {"text": "Ada paints."},
        "threshold": 0.01,
    },
    CompressBatch: {"reader": READER, "encoder": "hashing", "pass_below": 0},
    DenseBatch: {"reader": READER, "entailer": "exact", "mask": True},
    RewriteBatch: {"reader": READER, "retriever": CORPUS, "threshold": 0.5},
}
KINDS = list(SETTINGS)


def questions(*texts: str | None) -> pa.Table:
    n = len(texts)
    return pa.table(
        {
            "note": pa.array(range(n), pa.int32()),
            "question": pa.array(texts, pa.string()),
            "answers": pa.array([["Velm"]] * n, pa.list_(pa.string())),
            "contexts": pa.array([TEXTS] * n, pa.list_(pa.string())),
        }
    )


def column(table: pa.Table, name: str) -> list[Any]:
    return table.column(name).to_pylist()


def test_delta_seper_is_that_of_the_component() -> None:
    table = SePerBatch(**SETTINGS[SePerBatch])(questions("Where was Ada born?", "Where was Bo born?"))
    asked = SePer(reader(), ExactEntailer(), n_samples=3)
    results = asked.run_many([(text, ["Velm"], PASSAGES) for text in column(table, "question")])
    assert column(table, "seper_delta") == [result.delta for result in results] == [1.0, 1.0]
    assert column(table, "seper_upper") == [result.interval.upper for result in results]
    assert column(table, "seper_before_answers") == [["Orun"] * 3] * 2
    assert column(table, "seper_calls") == [result.spent.calls for result in results if result.spent]
    assert column(table, "seper_completion_tokens") == [6, 6]


def test_lazy_rag_is_that_of_the_component() -> None:
    table = LazyRAGBatch(**SETTINGS[LazyRAGBatch])(questions("Where was Ada born?"))
    result = LazyRAG(reader(), Corpus(), "Ada paints.", threshold=0.01).run("Where was Ada born?")
    assert (result.answer, result.decision.retrieve) == ("Velm", True)
    assert column(table, "lazy_rag_answer") == [result.answer]
    assert column(table, "lazy_rag_retrieved") == [True]
    assert column(table, "lazy_rag_signal") == [result.decision.signal]
    assert column(table, "lazy_rag_reason") == [result.decision.reason]
    assert column(table, "lazy_rag_contexts") == [["Ada was born in Velm."]]
    assert column(table, "lazy_rag_context_ids") == [["ada"]]
    assert column(table, "lazy_rag_calls") == [2]


def test_gold_passages_of_the_oracle_are_the_row_s_contexts() -> None:
    settings = {"reader": READER, "mode": "oracle"}
    table = LazyRAGBatch(**settings)(questions("Where was Ada born?"))
    assert column(table, "lazy_rag_answer") == ["Velm"]
    with pytest.raises(InputError, match="no column for 'contexts'"):
        LazyRAGBatch(**settings)(questions("Where?").drop_columns(["contexts"]))


def test_compression_is_that_of_the_component() -> None:
    table = CompressBatch(**SETTINGS[CompressBatch])(questions("Where was Ada born?"))
    result = ClusterCompressor(reader(), HashingEncoder(), pass_below=0).run("Where was Ada born?", PASSAGES)
    assert column(table, "compress_contexts") == [[one.text for one in result.passages]]
    assert column(table, "compress_context_ids") == [[one.id for one in result.passages]]
    assert column(table, "compress_tokens_before") == [result.tokens_before]
    assert column(table, "compress_tokens_after") == [result.tokens_after]
    assert sorted(chain(*column(table, "compress_source_ids")[0])) == ["1", "2"]


def test_dense_is_that_of_the_component() -> None:
    table = DenseBatch(**SETTINGS[DenseBatch])(questions("Where was Ada born?"))
    result = Dense(reader(), ExactEntailer(), mask=True).run("Where was Ada born?", PASSAGES)
    assert column(table, "dense_score") == [result.score]
    assert column(table, "dense_labels") == [list(result.labels)]
    assert column(table, "dense_answers") == [list(result.answers)]


def test_rewriting_is_that_of_the_component() -> None:
    table = RewriteBatch(**SETTINGS[RewriteBatch])(questions("Where was the painter born?"))
    result = UncertaintyRewriter(reader(), Corpus(), threshold=0.5).run("Where was the painter born?")
    assert column(table, "rewrite_answer") == [result.answer]
    assert column(table, "rewrite_acted") == [result.acted] == [True]
    assert column(table, "rewrite_uncertainty") == [result.uncertainty]
    assert column(table, "rewrite_calls") == [result.spent and result.spent.calls]


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_the_same_whatever_comes_of_the_rows(kind: type[Any]) -> None:
    batch = kind(**SETTINGS[kind])
    right = batch(questions("Where was Ada born?", "Where was Bo born?"))
    failed, empty = batch(questions("Where is down?", None)), batch(questions())
    assert right.schema == failed.schema == empty.schema
    assert right.schema.names == ["note", "question", "answers", "contexts", *batch.schema.names]
    assert (right.num_rows, failed.num_rows, empty.num_rows) == (2, 2, 0)
    error = batch.schema.names[-1]
    assert column(right, error) == [None, None]
    if kind is CompressBatch:  # shows the passages as they came, and says so
        assert (column(failed, error)[0], column(failed, "compress_troubles")[0]) == (None, ["failed"])
    else:
        assert "TransientServiceError: the server is overloaded" in column(failed, error)[0]
    assert "'question' must be texts" in column(failed, error)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_one_bad_row_costs_the_others_nothing(kind: type[Any]) -> None:
    batch = kind(**SETTINGS[kind])
    alone = batch(questions("Where was Ada born?"))
    among = batch(questions(None, "Where was Ada born?", "Where is down?"))
    names = batch.schema.names
    assert among.select(names).slice(1, 1).equals(alone.select(names))


def test_other_columns_their_order_and_the_metadata_stay() -> None:
    given = questions("Where was Ada born?").replace_schema_metadata({"made": "here"})
    batch = SePerBatch(**SETTINGS[SePerBatch])
    found = batch(given)
    assert found.select(given.column_names).equals(given)
    assert found.schema.metadata == {b"made": b"here"}
    assert batch(given.to_batches()[0]).equals(found)


def test_each_table_is_worked_on_as_if_it_were_the_first() -> None:
    batch = DenseBatch(**SETTINGS[DenseBatch])
    table = questions("Where was Ada born?")
    first = batch(table)
    batch(questions("Where was Bo born?"))
    assert batch(table).equals(first)
    assert column(first, "dense_calls")[0] > 2


def test_columns_of_other_names_are_found_or_named() -> None:
    given = pa.table(
        {
            "user_input": ["Where was Ada born?"],
            "reference": ["Velm"],
            "ctxs": pa.array([[{"id": "a", "text": "Ada was born in Velm."}]]),
            "other": [["Bo sings."]],
        }
    )
    batch = DenseBatch(reader=READER, entailer="exact")
    assert column(batch(given), "dense_context_ids") == [["a"]]
    named = DenseBatch(reader=READER, entailer="exact", columns={"contexts": "other"})
    assert column(named(given), "dense_context_ids") == [["1"]]
    assert column(SePerBatch(**SETTINGS[SePerBatch])(given), "seper_delta") == [1.0]


def test_a_column_that_is_not_there_is_told() -> None:
    batch = SePerBatch(**SETTINGS[SePerBatch])
    with pytest.raises(
        InputError, match=r"no column for 'answers'; found 'note', 'question', 'contexts'.*columns="
    ):
        batch(questions("Where?").drop_columns(["answers"]))
    with pytest.raises(InputError, match="no column 'query', which is to be 'question'"):
        SePerBatch(**SETTINGS[SePerBatch], columns={"question": "query"})(questions("Where?"))
    with pytest.raises(InputError, match="two columns 'note'"):
        batch(questions("Where?").append_column("note", [[1]]))
    with pytest.raises(InputError, match=r'got dict.*batch_format="pyarrow"'):
        batch({"question": ["Where?"]})


def test_two_of_a_kind_need_prefixes_of_their_own() -> None:
    first = SePerBatch(**SETTINGS[SePerBatch])(questions("Where was Ada born?"))
    with pytest.raises(ConfigurationError, match=r"already has 'seper_after'.*another prefix"):
        SePerBatch(**SETTINGS[SePerBatch])(first)
    second = SePerBatch(**SETTINGS[SePerBatch], prefix="again")(first)
    assert column(second, "again_delta") == column(second, "seper_delta")


def test_one_follows_another() -> None:
    compressed = CompressBatch(**SETTINGS[CompressBatch])(questions("Where was Ada born?"))
    found = SePerBatch(**SETTINGS[SePerBatch], columns={"contexts": "compress_contexts"})(compressed)
    assert column(found, "seper_error") == [None]


def test_what_is_misconfigured_ends_the_work() -> None:
    with pytest.raises(RefusedError, match="no such model"):
        SePerBatch(**SETTINGS[SePerBatch])(questions("Where was Ada born?", "What was refused?"))


@pytest.mark.parametrize(
    ("kind", "settings", "error", "told"),
    [
        (SePerBatch, {"reader": READER, "n_sample": 3}, ConfigurationError, "Did you mean n_samples"),
        (SePerBatch, {"reader": READER, "n_samples": 0}, ConfigurationError, "n_samples must be at least 1"),
        (SePerBatch, {}, MissingServiceError, "SePerBatch needs: reader"),
        (
            SePerBatch,
            {"reader": READER, "columns": {"contxts": "c"}},
            ConfigurationError,
            "Did you mean contexts",
        ),
        (SePerBatch, {"reader": READER, "prompts": {"closed_book": "{q}"}}, PromptError, "closed_book"),
        (SePerBatch, {"reader": "Qwen/Qwen3-4B"}, ConfigurationError, '"model": "a Hugging Face id'),
        (SePerBatch, {"reader": {"model": "m", "devise": "cuda"}}, ConfigurationError, "Did you mean device"),
        (SePerBatch, {"reader": {"base_url": "http://h/v1"}}, ConfigurationError, "no model"),
        (SePerBatch, {"reader": {"factory": "nowhere"}}, ConfigurationError, "MODULE:FUNCTION"),
        (
            SePerBatch,
            {"reader": READER, "entailer": "exactly"},
            ConfigurationError,
            '"judge", "exact", "nli"',
        ),
        (LazyRAGBatch, {"reader": READER, "summaries": CORPUS}, MissingServiceError, "needs a retriever"),
        (LazyRAGBatch, {"reader": READER, "mode": "never"}, ConfigurationError, "mode must be one of"),
        (
            LazyRAGBatch,
            {"reader": READER, "mode": "none", "n_samples": 9},
            ConfigurationError,
            "disagreement",
        ),
        (
            LazyRAGBatch,
            {"reader": READER, "retriever": {"passages": "p"}, "summaries": CORPUS},
            MissingServiceError,
            "needs: encoder",
        ),
        (RewriteBatch, {"reader": READER}, MissingServiceError, "RewriteBatch needs: retriever"),
        (CompressBatch, {"reader": READER, "guard": "entailment"}, MissingServiceError, "entailer"),
        (
            DenseBatch,
            {"reader": READER, "gate": "entropy"},
            ConfigurationError,
            "DenseBatch has no option 'gate'",
        ),
    ],
)
def test_a_wrong_setting_raises_before_any_model_is_loaded(
    kind: type[Any], settings: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error) as caught:
        kind(**settings)
    assert told in str(caught.value)


def test_what_lives_or_works_is_no_setting() -> None:
    for living in (reader(), len, lambda prompt: "Velm"):
        with pytest.raises(ConfigurationError, match="must be plain values"):
            SePerBatch(reader=living)
    with pytest.raises(ConfigurationError, match=r"metric must be plain values.*function"):
        RewriteBatch(reader=READER, retriever=CORPUS, metric=len)


@pytest.mark.parametrize(
    "said",
    [
        {"model": "m", "base_url": "http://h/v1", "api_key": "sk-1234567890"},
        {"model": "m", "base_url": "http://user:sk-1234567890@h/v1"},
        {"model": "m", "base_url": "http://h/v1", "extra_body": {"auth": {"token": "sk-1234567890"}}},
        {"factory": "MODULE:FUNCTION", "api_key": "sk-1234567890"},
    ],
)
def test_a_key_is_no_setting(said: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"hold a key or a password.*api_key_env") as caught:
        SePerBatch(reader=said)
    assert "sk-1234567890" not in str(caught.value)


def test_what_is_pickled_and_shown_are_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-1234567890")
    said = {"model": "m", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "MY_KEY", "probe": False}
    batch = SePerBatch(reader=said, entailer="exact", n_samples=2)
    assert batch.component().reader.name == "m@127.0.0.1:9/v1"
    pickled = pickle.dumps(batch)
    assert b"sk-1234567890" not in pickled and "sk-1234567890" not in repr(batch)
    assert len(pickled) < 500
    again = pickle.loads(pickled)
    assert again.settings == batch.settings == json.loads(json.dumps(batch.settings))
    assert type(again)(**again.settings).schema == batch.schema


def test_a_key_comes_from_the_environment_of_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    said = {"model": "m", "base_url": "http://127.0.0.1:9/v1", "api_key_env": "MY_KEY"}
    batch = SePerBatch(reader=said, entailer="exact")
    with pytest.raises(ConfigurationError, match="MY_KEY is not set"):
        batch(questions("Where?"))


def test_nothing_is_made_before_the_first_row() -> None:
    batch = SePerBatch(reader={"factory": "no_such_module:reader"}, entailer="exact")
    assert batch(questions()).num_rows == 0
    with pytest.raises(ConfigurationError, match=r"no_such_module.*runtime_env"):
        batch(questions("Where?"))
    with pytest.raises(ConfigurationError, match="expected a reader"):
        SePerBatch(reader={"factory": f"{MAKERS}:number"}, entailer="exact")(questions("Where?"))
    with pytest.raises(ConfigurationError, match="returned a int, which is no retriever"):
        RewriteBatch(reader=READER, retriever={"factory": f"{MAKERS}:number"})(questions("Where?"))


def test_equal_settings_name_one_model_in_a_process() -> None:
    one, two = SePerBatch(**SETTINGS[SePerBatch]), DenseBatch(**SETTINGS[DenseBatch])
    other = DenseBatch(reader={**READER, "name": "another"})
    model = one.component().reader
    assert two.component().reader is model
    assert other.component().reader is not model


def test_a_reader_that_cannot_do_it_is_refused_at_the_first_table() -> None:
    settings = {**SETTINGS[LazyRAGBatch], "reader": {"factory": f"{MAKERS}:blind"}}
    with pytest.raises(CapabilityError, match="entropies"):
        LazyRAGBatch(**settings)(questions("Where?"))


def test_a_policy_in_plain_values_is_in_force() -> None:
    rag = LazyRAG(reader(), Corpus(), "Ada paints.")
    from surerag import Policy

    policy = Policy(0.05, "rate", None, 0.5, 0.95, 100, 0.4, identity=rag.identity)
    settings = {**SETTINGS[LazyRAGBatch], "threshold": policy}
    batch = LazyRAGBatch(**settings)
    assert isinstance(batch.settings["threshold"], dict)
    assert column(batch(questions("Where was Ada born?")), "lazy_rag_threshold") == [0.05]
    other = LazyRAGBatch(**{**settings, "reader": {**READER, "name": "another"}})
    with pytest.raises(ConfigurationError, match="calibrated for the reader 'told'"):
        other(questions("Where was Ada born?"))


def test_local_readers_take_what_from_pretrained_takes() -> None:
    import inspect

    from surerag import TransformersReader
    from surerag.scale import settings

    taken = set(inspect.signature(TransformersReader.from_pretrained).parameters)
    apart = {"id_or_path", "trust_remote_code", "use_safetensors", "render", "model_options"}
    assert set(settings._LOCAL) - {"attn_implementation"} == taken - apart


def test_importing_them_loads_no_engine_and_no_model() -> None:
    assert loaded_by("import surerag.scale", "ray", "pyarrow", "torch") == []
    code = "from surerag.scale import SePerBatch; SePerBatch(reader='embedded')"
    assert loaded_by(code, "ray", "torch", "transformers", "openai") == []


def test_a_lone_surrogate_in_an_answer_is_written_as_a_question_mark() -> None:
    settings = {**SETTINGS[LazyRAGBatch], "reader": {"factory": f"{MAKERS}:broken"}}
    assert column(LazyRAGBatch(**settings)(questions("Where?")), "lazy_rag_answer") == ["Ve?lm"]
