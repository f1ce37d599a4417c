"""The refiner: what it hands on and says about it, what it leaves alone, what it does when models fail."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import pickle
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumps
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableLambda

from langchain_surerag import AdaptiveSemanticSplitter, DenseRefiner
from surerag import DenseCache, DenseRefinerOptions, FakeReader
from surerag import DenseRefiner as ContextRefiner
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import (
    ConfigurationError,
    InputError,
    MissingServiceError,
    PromptError,
    ServiceError,
)
from tests.langchain.conftest import KEY, HashEmbeddings, chat
from tests.langchain.dense_cases import Heard, documents, texts, tool
from tests.methods.dense_rag.script import LETTERS, MENDED, QUESTION, Letters, distinct, passages, script
from tests.servers.fake_openai import FakeOpenAI


def test_it_hands_on_what_the_reader_understands_and_says_how_it_knows() -> None:
    found = tool().compress_documents(documents(), QUESTION)
    assert [(document.id, document.page_content) for document in found] == [
        ("id-a", "a"),
        ("id-c", "c"),
        ("id-e", "e"),
    ]
    assert [document.metadata["letter"] for document in found] == list("ace")
    entry = {
        "score": 0.0,
        "certain": True,
        "label": "certain",
        "rounds": 2,
        "stopped": "satisfied",
        "answer": "A",
    }
    for document in found:
        assert dict(document.metadata["dense"]) == {**entry, "calls": document.metadata["dense"]["calls"]}
        assert json.loads(document.model_dump_json())["metadata"]["dense"]["rounds"] == 2


def test_labels_are_those_of_the_context_that_is_handed_on() -> None:
    reader = script(MENDED, sufficient=lambda context: "no" if "e" in context else "yes")
    found = tool(reader, rounds=2).compress_documents(documents(), QUESTION)
    assert texts(found) == "abc"
    assert [document.metadata["dense"]["label"] for document in found] == [
        "certain",
        "unnecessary",
        "necessary",
    ]
    assert all(document.metadata["dense"]["score"] > 0.2 for document in found)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"variant": "paper"},
    {"max_chunks": 5, "refill": "certain"},
    {"remove_only": True, "rounds": 2},
    {"self_evaluation": False, "only_uncertain": False, "max_calls": 60},
]


@pytest.mark.parametrize("settings", SETTINGS)
async def test_it_does_what_the_core_does_sync_async_and_batched(settings: dict[str, Any]) -> None:
    core = ContextRefiner(script(MENDED), ExactEntailer(), Letters(), top_n=3, **settings)
    expected = core.run(QUESTION, passages(LETTERS))
    ways = [
        tool(**settings).refine(documents(), QUESTION),
        await tool(**settings).arefine(documents(), QUESTION),
    ]
    for found in ways:
        assert found.to_dict() == expected.to_dict()
        assert found.score == pytest.approx(expected.score, abs=1e-5)
    asked = {"documents": documents(), "query": QUESTION}
    batches = [
        tool(**settings).as_runnable().batch([asked] * 3),
        await tool(**settings).as_runnable().abatch([asked] * 3),
    ]
    for one in [found for batch in batches for found in batch]:
        assert [document.id for document in one] == [passage.id for passage in expected.passages]
        assert {document.metadata["dense"]["score"] for document in one} == {expected.score}


async def test_documents_that_go_in_are_not_changed() -> None:
    given = documents()
    before = [pickle.dumps(document) for document in given]
    refiner = tool()
    for found in (
        refiner.compress_documents(given, QUESTION),
        await refiner.acompress_documents(given, QUESTION),
        tool(script({}, rephrase=lambda _: ServiceError("down"))).compress_documents(given, QUESTION),
    ):
        assert found
        for document in found:
            document.metadata["letter"] = "changed"
    assert [pickle.dumps(document) for document in given] == before


@pytest.mark.parametrize("n", [0, 1, 2, 40])
async def test_any_number_of_documents_with_and_without_ids(n: int) -> None:
    given = [Document("abcdef"[at % 6], id=None if at % 2 else str(at)) for at in range(n)]
    found = list(tool(script(distinct)).compress_documents(given, QUESTION))
    again = await tool(script(distinct)).acompress_documents(given, QUESTION)
    assert [(d.id, d.page_content) for d in again] == [(d.id, d.page_content) for d in found]
    assert min(n, 1) <= len(found) <= 3
    assert all(any(d.id == one.id and d.page_content == one.page_content for one in given) for d in found)


def test_blank_documents_are_no_context_and_an_empty_query_is_refused() -> None:
    found = tool().compress_documents([Document(" ", id="blank")], QUESTION)
    assert [(d.id, d.metadata["dense"]["stopped"], d.metadata["dense"]["score"]) for d in found] == [
        ("blank", "empty", None)
    ]
    with pytest.raises(InputError, match="empty"):
        tool().compress_documents(documents(), " ")


DOWN = ServiceError("down")


class Judge(ExactEntailer):
    def entail(self, pairs: Any) -> Any:
        raise DOWN


@pytest.mark.parametrize(
    "broken",
    [
        {"reader": script({}, rephrase=lambda _: DOWN)},
        {"reader": script(distinct), "entailer": Judge()},
        {"reader": script(distinct), "entailer": FakeListChatModel(responses=[])},
    ],
    ids=["reader", "judge", "judging model"],
)
async def test_a_failure_leaves_the_first_k_as_they_were_with_warning_and_event(
    broken: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    refiner = tool(**broken)
    step = refiner.as_runnable()
    asked = {"documents": documents(), "query": QUESTION}
    for found in (
        step.invoke(asked, {"callbacks": [heard]}),
        await step.ainvoke(asked, {"callbacks": [heard]}),
    ):
        for document in found:
            entry = document.metadata.pop("dense")
            assert (entry["stopped"], entry["score"], entry["label"]) == ("failed", None, None)
        assert found == documents()[:3]
    assert heard.names.count("context_refiner.failed") == 2
    assert "context_refiner.failed" in caplog.text
    with pytest.raises(Exception, match=r"down|list index"):
        tool(**broken, on_failure="raise").compress_documents(documents(), QUESTION)


@pytest.mark.parametrize("said", ["potato", "", "entailment or contradiction", "{premise}"])
async def test_a_judge_that_talks_nonsense_costs_no_more_than_it_may_and_loses_nothing(said: str) -> None:
    judge = FakeListChatModel(responses=[said])
    refiner = tool(script(distinct, sufficient=lambda _: "no"), entailer=judge, rounds=3)
    found = await refiner.arefine(documents(), QUESTION)
    assert found.calls.total <= refiner.worst_case_calls(20)
    assert 0 < len(found.passages) <= 3
    assert found.score is not None
    # Nothing is taken for entailment: four answers, each linked to itself alone.
    assert found.rounds[0].measured.score == pytest.approx(math.log(4))


def test_more_documents_come_from_a_retriever_once() -> None:
    asked: list[str] = []

    def search(question: str) -> list[Document]:
        asked.append(question)
        return documents("cde")

    found = tool(retriever=RunnableLambda(search)).compress_documents(documents("abc"), QUESTION)
    assert [document.id for document in found] == ["id-a", "id-c", "id-e"]
    assert asked == [QUESTION]


def steady(prompt: str) -> str:
    return "It rained." if prompt.startswith("Rewrite") else "Velm"


def test_settings_are_written_down_and_models_and_secrets_are_not(server: FakeOpenAI) -> None:
    refiner = DenseRefiner(
        chat(server), HashEmbeddings(), top_n=2, stop_rule="either", prompts={"rephrase": "Again: {passage}"}
    )
    for written in (refiner.model_dump_json(), dumps(refiner), repr(refiner), str(refiner.core)):
        assert KEY not in written
    dumped = json.loads(refiner.model_dump_json())
    assert (
        not {"llm", "embeddings", "dense_cache", "parents", "entailer", "retriever", "splitter"}
        & dumped.keys()
    )
    again = DenseRefiner(chat(server), HashEmbeddings(), **dumped)
    assert again.model_dump() == refiner.model_dump()
    assert again.core.to_dict() == refiner.core.to_dict()
    plain = DenseRefiner(FakeReader(steady), HashingEncoder(), entailer=ExactEntailer())
    loaded = pickle.loads(pickle.dumps(plain))
    assert texts(loaded.compress_documents(documents(), QUESTION)) == "abcde"


def test_options_are_those_of_the_core_and_take_effect_or_raise() -> None:
    refiner = tool()
    fields = DenseRefiner.model_fields
    for name, option in DenseRefinerOptions.OPTIONS.items():
        assert (fields[name].default, fields[name].description) == (option.default, option.doc)
    assert (tool().core.largest, tool(max_chunks=7).core.largest) == (3, 7)
    refiner.top_n = 2
    assert texts(refiner.compress_documents(documents(), QUESTION)) == "ab"
    with pytest.raises(ConfigurationError, match="max_chunks"):
        refiner.max_chunks = 1
    assert refiner.max_chunks is None
    for changed in (refiner.model_copy(update={"top_n": 1}), refiner.with_options(top_n=1)):
        assert (changed.core.top_n, refiner.core.top_n) == (1, 2)
        assert changed.core.cache is refiner.core.cache
    with pytest.raises(ConfigurationError, match=r"'rouns'.*rounds"):
        refiner.model_copy(update={"rouns": 1})
    copied = copy.deepcopy(refiner)
    assert (copied.core.reader is refiner.core.reader, copied.top_n) == (True, 2)


def test_prompts_are_yours_and_documents_are_data() -> None:
    reader = script({})
    prompts: dict[str, Any] = {
        "rephrase": "Rewrite. Text: {passage}",
        "answer": PromptTemplate.from_template("Q {question}|{passages}"),
    }
    refiner = tool(reader, prompts=prompts, top_n=1)
    refiner.compress_documents([Document("{passage} {x} braces")], "Who {is} Ada?")
    assert reader.prompts[0] == "Rewrite. Text: {passage} {x} braces"
    assert "Q Who {is} Ada?|[1] {passage} {x} braces" in reader.prompts
    for bad in ({"rephrase": "{question}"}, {"shrink": "{passage}"}, {"entailment": "{premise}"}):
        with pytest.raises(PromptError):
            tool(prompts=bad)
    judged = tool(entailer=None, prompts={"entailment": "{question} {premise} {hypothesis}"})
    assert "#" in judged.core.services.entailer.name


def test_a_corpus_is_rephrased_ahead_for_all_who_share_the_cache() -> None:
    reader, cache = script({}), DenseCache()
    refiner = tool(reader, dense_cache=cache)
    assert refiner.prepare(documents()) == asyncio.run(refiner.aprepare(documents())) == 6
    assert len(cache.rephrasings) == 6
    assert tool(reader, dense_cache=cache).refine(documents(), QUESTION).calls.rephrasings == 0


def test_what_cannot_work_says_so() -> None:
    with pytest.raises(MissingServiceError, match="embeddings="):
        tool(embeddings=None)
    assert texts(tool(embeddings=None, remove_only=True).compress_documents(documents(), QUESTION)) == "ac"
    with pytest.raises(ConfigurationError, match="chat model"):
        DenseRefiner("gpt", HashEmbeddings())
    with pytest.raises(ConfigurationError):
        tool(top_n=0)
    # Calls that do not cover one measurement leave the documents as they were.
    assert texts(tool(max_calls=5).compress_documents(documents(), QUESTION)) == "abc"
    with pytest.raises(ConfigurationError, match="splitter"):
        tool(splitter=AdaptiveSemanticSplitter(Letters()))
    with pytest.raises(ConfigurationError, match=r"'top'.*top_n"):
        tool(top=3)
    with pytest.raises(ConfigurationError, match="variant"):
        tool(variant="x")
