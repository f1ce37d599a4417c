"""ΔSePer in LangSmith's evaluate and in langchain-classic; the global cache collapses no samples."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sys
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.globals import set_llm_cache
from langchain_core.language_models.chat_models import SimpleChatModel
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.load import dumpd
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableLambda
from langsmith import aevaluate, evaluate
from langsmith.schemas import Example

from langchain_surerag import DeltaSePerEvaluator
from surerag import Adaptive, FakeReader
from surerag.entailment import ExactEntailer
from surerag.errors import (
    ConfigurationError,
    MissingExtraError,
    MissingServiceError,
    PromptError,
    ServiceError,
)
from tests.langchain.conftest import chat
from tests.methods.seper.sampled import AFTER, BEFORE, LIKE, Judge, sampled
from tests.servers.fake_openai import FakeOpenAI, Quirks

QUESTION = "Where was Ada born?"
FACTS = {"Ada": "Velm", "Bo": "Tarn", "Cid": "Orun"}
DOCUMENTS = {name: Document(f"{name} was born in {city}.", id=name) for name, city in FACTS.items()}


def knowing(prompt: str) -> str:
    """Say what the documents say; fail where they are poisoned."""
    if "poison" in prompt:
        raise ServiceError("the server is down", hint="start it")
    return next((city for name, city in FACTS.items() if f"{name} was born in {city}" in prompt), "Nowhere")


def tool(reader: Any = None, **settings: Any) -> DeltaSePerEvaluator:
    return DeltaSePerEvaluator(reader or FakeReader(knowing), ExactEntailer(), **{"n_samples": 3, **settings})


def scores(feedback: dict[str, Any]) -> dict[str, Any]:
    return {item["key"]: item["score"] for item in feedback["results"]}


def test_samples_cut_at_the_limit_are_counted() -> None:
    run = Example(id=uuid4(), outputs={"documents": [DOCUMENTS["Ada"]]})
    example = Example(id=uuid4(), inputs={"question": QUESTION}, outputs={"answer": "Velm"})
    reader = FakeReader(lambda _: "As far as anybody knows")
    for max_tokens, truncated in ((2, 6), (512, 0)):
        found = tool(reader, max_tokens=max_tokens)(run, example)
        assert found["results"][0]["value"]["truncated"] == truncated


@pytest.mark.parametrize("way", ["sync", "async"])
def test_worked_by_hand_with_all_parts(way: str) -> None:
    reader = FakeReader(sampled(*BEFORE, *AFTER), entropy=None)
    evaluator = DeltaSePerEvaluator(reader, Judge(LIKE), n_samples=4)
    run = Example(id=uuid4(), outputs={"documents": [DOCUMENTS["Ada"]]})
    example = Example(id=uuid4(), inputs={"question": QUESTION}, outputs={"answer": "Velm"})
    found = evaluator(run, example) if way == "sync" else asyncio.run(evaluator.acall(run, example))
    before, after = 0.2 / 1.0, (0.6 + 0.2 * 0.7) / 0.8
    assert scores(found) == {
        "delta_seper": pytest.approx(after - before),
        "delta_seper_before": pytest.approx(before),
        "delta_seper_after": pytest.approx(after),
    }
    whole = found["results"][0]
    assert "ΔSePer +0.725" in whole["comment"]
    parts = whole["value"]
    assert (parts["calls"], parts["judged"], parts["weights"], parts["kernel"]) == (2, 6, "distinct", "soft")
    lower, upper = parts["interval"]
    assert lower <= whole["score"] <= upper
    assert [answer["text"] for answer in parts["answers_before"]] == ["Orun", "Orun", "Toren", "Velm"]
    assert parts["answers_after"][3]["entailment"] == (pytest.approx(0.7),)


def examples() -> list[Example]:
    rows: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"question": "Where was Ada born?"}, {"answer": "Velm"}),
        ({"question": "Where was Bo born?"}, {"answer": ["Orun", "Tarn"]}),
        ({"question": "Where was Cid born?"}, {"answer": "Velm"}),
        ({"question": "Where was poison born?"}, {"answer": "Velm"}),
        ({"question": "Where was Ada born, or was she?"}, {}),
        ({"question": "Where was Zoe born?"}, {"answer": "Velm"}),
    ]
    return [Example(id=uuid4(), dataset_id=uuid4(), inputs=given, outputs=gold) for given, gold in rows]


def retrieve(inputs: dict[str, Any]) -> dict[str, Any]:
    found = [document for name, document in DOCUMENTS.items() if f" {name} " in inputs["question"]]
    return {"answer": "?", "documents": [DOCUMENTS["Bo"]] if "poison" in inputs["question"] else found}


async def aretrieve(inputs: dict[str, Any]) -> dict[str, Any]:
    return retrieve(inputs)


def as_expected(rows: Sequence[Any]) -> None:
    found = {row["example"].inputs["question"]: row["evaluation_results"]["results"] for row in rows}
    ada, bo, cid, poisoned, goldless, zoe = (found[example.inputs["question"]] for example in examples())
    for results, delta in ((ada, 1.0), (bo, 1.0), (cid, 0.0)):
        assert {item.key: item.score for item in results} == {
            "delta_seper": delta,
            "delta_seper_before": 0.0,
            "delta_seper_after": delta,
        }
    assert results[0].value["answers_after"]
    for [item], reason in (
        (poisoned, "the server is down. Start it."),
        (goldless, "there is no gold answer among []"),
        (zoe, "there is no document with text"),
    ):
        assert (item.key, item.score, item.extra) == ("delta_seper", None, {"error": True})
        assert reason in item.comment


@pytest.mark.parametrize("max_concurrency", [0, 4])
def test_in_langsmiths_evaluate(max_concurrency: int) -> None:
    rows = evaluate(
        retrieve,
        data=examples(),
        evaluators=[tool()],
        max_concurrency=max_concurrency,
        upload_results=False,
    )
    as_expected(list(rows))


@pytest.mark.parametrize("form", ["evaluator", "coroutine"])
async def test_in_langsmiths_aevaluate(form: str) -> None:
    evaluator = tool()
    chosen = evaluator if form == "evaluator" else evaluator.acall
    rows = await aevaluate(
        aretrieve, data=examples(), evaluators=[chosen], max_concurrency=3, upload_results=False
    )
    as_expected([row async for row in rows])


def test_keys_are_yours_and_documents_come_in_many_forms() -> None:
    forms: list[Any] = [
        [DOCUMENTS["Ada"]],
        ["Ada was born in Velm."],
        [{"page_content": "Ada was born in Velm.", "metadata": {}, "type": "Document"}],
        [dumpd(DOCUMENTS["Ada"])],
        ({"text": "Ada was born in Velm."}, ""),
        DOCUMENTS["Ada"],
        "Ada was born in Velm.",
    ]
    evaluator = tool(
        question_key="ask", contexts_key="found", gold_key=lambda given: given["labels"]["gold"], key="worth"
    )
    for form in forms:
        feedback = evaluator(
            inputs={"ask": QUESTION}, outputs={"found": form}, reference_outputs={"labels": {"gold": "Velm"}}
        )
        assert scores(feedback) == {"worth": 1.0, "worth_before": 0.0, "worth_after": 1.0}
    # Documents of a data set stand in its inputs; a list under "output" is what a retriever returned.
    usual = tool()
    given = {"query": QUESTION, "contexts": ["Ada was born in Velm."]}
    assert scores(usual(inputs=given, reference_outputs={"answers": ["Velm"]}))["delta_seper"] == 1.0
    found = usual(
        inputs={"input": QUESTION}, outputs={"output": forms[0]}, reference_outputs={"output": "Velm"}
    )
    assert scores(found)["delta_seper"] == 1.0


def test_what_cannot_be_measured_says_where_to_look() -> None:
    inputs, gold = {"question": QUESTION}, {"answer": "Velm"}
    cases: list[tuple[DeltaSePerEvaluator, dict[str, Any], str]] = [
        (tool(), {}, "no question among []. Say where it is with question_key=…"),
        (tool(), {"inputs": {"question": 7}}, "no question but a int"),
        (
            tool(),
            {"inputs": inputs, "reference_outputs": {"answer": ["Velm", 7]}},
            "no gold answer but a list",
        ),
        (
            tool(),
            {"inputs": inputs, "outputs": {"output": "Velm"}, "reference_outputs": gold},
            "no list of documents among ['output', 'question']",
        ),
        (
            tool(contexts_key=lambda given: given["docs"]),
            {"inputs": inputs, "outputs": {}, "reference_outputs": gold},
            "KeyError: 'docs'",
        ),
        (
            tool(),
            {"inputs": inputs, "outputs": {"documents": [3]}, "reference_outputs": gold},
            "a int among the documents has no text",
        ),
    ]
    for evaluator, given, reason in cases:
        [item] = evaluator(**given)["results"]
        assert item["score"] is None
        assert reason in item["comment"]
        [again] = asyncio.run(evaluator.acall(**given))["results"]
        assert again == item
    with pytest.raises(MissingServiceError, match="entailer"):
        DeltaSePerEvaluator(FakeReader(knowing))
    with pytest.raises(ConfigurationError, match="chat model"):
        DeltaSePerEvaluator("gpt", ExactEntailer())  # type: ignore[arg-type]


def test_prompts_are_yours() -> None:
    reader = FakeReader(knowing)
    prompts = {
        "closed_book": "Say: {question}",
        "from_passages": PromptTemplate.from_template("{passages}|{question}"),
    }
    evaluator = tool(reader, prompts=prompts)
    evaluator(
        inputs={"question": "Who {is} Ada?"},
        outputs={"documents": ["Ada {x}"]},
        reference_outputs={"answer": "x"},
    )
    assert reader.prompts == ["Say: Who {is} Ada?", "[1] Ada {x}|Who {is} Ada?"]
    with pytest.raises(PromptError, match="slots"):
        tool(prompts={"closed_book": "{passages}"})
    with pytest.raises(PromptError, match="no prompt"):
        tool(prompts={"closed": "{question}"})


async def test_as_a_string_evaluator_of_langchain_classic() -> None:
    from langchain_classic.evaluation.schema import StringEvaluator

    evaluator = tool().as_string_evaluator()
    assert isinstance(evaluator, StringEvaluator)
    assert evaluator.evaluation_name == "delta_seper"
    documents = [DOCUMENTS["Bo"]]
    for gold in ("Tarn", ["Orun", "Tarn"]):
        given: dict[str, Any] = {"prediction": "?", "input": "Where was Bo born?", "reference": gold}
        found = evaluator.evaluate_strings(**given, contexts=documents)
        assert (found["score"], found["before"], found["after"]) == (1.0, 0.0, 1.0)
        assert "ΔSePer +1.000" in found["reasoning"]
        assert await evaluator.aevaluate_strings(**given, contexts=documents) == found
        inside = {**given, "prediction": {"answer": "?", "documents": documents}}
        assert evaluator.evaluate_strings(**inside) == found
    bare = await evaluator.aevaluate_strings(prediction="?", input="Q?", reference="x")
    assert (bare["score"], bare["error"]) == (None, True)
    with pytest.raises(ValueError, match="requires a reference"):
        evaluator.evaluate_strings(prediction="?", input="Q?")


def test_without_langchain_classic_the_error_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("langchain_classic", "langchain_classic.evaluation", "langchain_classic.evaluation.schema"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r'pip install "surerag\[langchain-classic\]"'):
        tool().as_string_evaluator()


class Dice(SimpleChatModel):
    """Never says the same twice; a text model without log-probabilities."""

    @property
    def _llm_type(self) -> str:
        return "dice"

    def _call(self, *_: Any, **__: Any) -> str:
        return f"answer {next(ROLLS)}"


ROLLS = count()
GIVEN: dict[str, Any] = {
    "inputs": {"question": QUESTION},
    "outputs": {"documents": [DOCUMENTS["Ada"]]},
    "reference_outputs": {"answer": "Velm"},
}


async def test_the_global_cache_collapses_no_samples_of_a_text_model() -> None:
    set_llm_cache(InMemoryCache())
    model = Dice()
    assert model.invoke("x").content == model.invoke("x").content, "the cache is at work"
    evaluator = DeltaSePerEvaluator(model, ExactEntailer(), n_samples=5)
    for found in (evaluator(**GIVEN), await evaluator.acall(**GIVEN), evaluator(**GIVEN)):
        parts = found["results"][0]["value"]
        answers = [answer["text"] for answer in parts["answers_before"] + parts["answers_after"]]
        assert len(set(answers)) == 10
        assert parts["weights"] == "frequency"


@pytest.mark.parametrize("quirks", [None, Quirks(ignores_n=True)], ids=["n at once", "one by one"])
async def test_the_global_cache_changes_nothing_for_a_chat_model(quirks: Quirks | None) -> None:
    with FakeOpenAI(quirks=quirks) as server:
        evaluator = DeltaSePerEvaluator(chat(server), ExactEntailer(), n_samples=6, max_tokens=3)
        plain = evaluator(**GIVEN)
        asked = len(server.requests)
        assert asked == (2 if quirks is None else 12)
        set_llm_cache(InMemoryCache())
        for again in (evaluator(**GIVEN), await evaluator.acall(**GIVEN), evaluator(**GIVEN)):
            assert again == plain
        assert len(server.requests) == 4 * asked
    parts = plain["results"][0]["value"]
    assert parts["weights"] == "distinct"
    assert len({answer["text"] for answer in parts["answers_before"]}) > 2


def test_a_model_judges_in_words() -> None:
    judge = FakeListChatModel(responses=["entailment"])
    found = DeltaSePerEvaluator(FakeReader(knowing), judge, n_samples=2)(
        inputs={"question": QUESTION},
        outputs={"documents": [DOCUMENTS["Ada"]]},
        reference_outputs={"answer": "In the town of Velm"},
    )
    assert scores(found) == {"delta_seper": 0.0, "delta_seper_before": 1.0, "delta_seper_after": 1.0}


class Heard(BaseCallbackHandler):
    """Remembers custom events."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_custom_event(self, name: str, data: Any, **_: Any) -> None:
        self.names.append(name)


async def test_fallbacks_are_custom_events_of_the_run_around_them() -> None:
    evaluator = DeltaSePerEvaluator(Dice(), ExactEntailer(), n_samples=2)
    heard = Heard()
    steps = RunnableLambda(lambda given: evaluator(**given), lambda given: evaluator.acall(**given))
    steps.invoke(GIVEN, {"callbacks": [heard]})
    await steps.ainvoke(GIVEN, {"callbacks": [heard]})
    await steps.ainvoke({}, {"callbacks": [heard]})
    assert heard.names == ["seper.frequency_weights", "seper.frequency_weights", "seper.invalid"]


@pytest.mark.parametrize(
    ("name", "near"),
    [("n_sample", "n_samples"), ("threshold", "entailment_threshold"), ("golds_key", "gold_key")],
)
def test_an_unknown_option_is_refused_and_the_near_one_named(name: str, near: str) -> None:
    for make in (lambda: tool(**{name: 1}), lambda: tool().model_copy(update={name: 1})):
        with pytest.raises(ConfigurationError, match=f"no option '{name}'. Did you mean.*{near}"):
            make()


def test_what_is_set_is_in_force_or_refused() -> None:
    reader = FakeReader(sampled(*BEFORE, *AFTER, *BEFORE, *AFTER), entropy=None)
    evaluator = DeltaSePerEvaluator(reader, Judge(LIKE), n_samples=3)
    with pytest.raises(ConfigurationError, match="kernel must be one of soft, hard, got 'medium'"):
        evaluator.kernel = "medium"  # type: ignore[assignment]
    assert evaluator.kernel == "soft"
    evaluator.n_samples = 4
    evaluator.kernel = "hard"
    evaluator.key = "worth"
    assert scores(evaluator(**GIVEN))["worth"] == pytest.approx(0.8)
    soft = evaluator.model_copy(update={"kernel": "soft", "question_key": lambda inputs: inputs["question"]})
    assert scores(soft(**GIVEN))["worth"] == pytest.approx(0.725)
    assert evaluator.core.kernel == "hard"
    assert evaluator.__name__ == "worth"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_and_pickles_measure_the_same(copied: Callable[[Any], Any]) -> None:
    prompts = {"closed_book": PromptTemplate.from_template("Say: {question}")}
    evaluator = tool(prompts=prompts, adaptive=Adaptive(0.5, 2), contexts_key="documents")
    other = copied(evaluator)
    assert other.core.chosen() == evaluator.core.chosen()
    assert other(**GIVEN) == evaluator(**GIVEN)
    assert asyncio.run(other.acall(**GIVEN)) == evaluator(**GIVEN)


def test_copies_over_one_model_ask_one_reader_and_one_judge() -> None:
    model = FakeListChatModel(responses=["entailment"])
    evaluator = DeltaSePerEvaluator(model, model, n_samples=1)
    other = evaluator.model_copy(update={"n_samples": 2})
    assert other.core.reader is evaluator.core.reader
    assert other.core.entailer is evaluator.core.entailer
    assert "FakeListChatModel" not in repr(evaluator)
