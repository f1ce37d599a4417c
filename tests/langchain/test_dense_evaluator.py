"""DENSE in LangSmith's evaluate, without gold answers: lower is better, and no failure looks like success."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import pickle
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.globals import set_llm_cache
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.runnables import RunnableLambda
from langsmith import aevaluate, evaluate
from langsmith.schemas import Example

from langchain_surerag import DenseEvaluator
from surerag import DenseEvaluator as Dense
from surerag import DenseOptions, FakeReader
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError, PromptError, ServiceError
from tests.langchain.conftest import KEY, chat
from tests.langchain.dense_cases import Heard, documents
from tests.methods.dense_rag.script import QUESTION, LongerEntails, distinct, kind, passages, script, shown
from tests.servers.fake_openai import FakeOpenAI


def tool(reader: Any = None, **settings: Any) -> DenseEvaluator:
    return DenseEvaluator(reader or script({"a'bc": "B"}), ExactEntailer(), **settings)


def scores(feedback: dict[str, Any]) -> dict[str, Any]:
    return {item["key"]: item["score"] for item in feedback["results"]}


@pytest.mark.parametrize("way", ["sync", "async"])
def test_worked_by_hand_with_all_parts(way: str) -> None:
    # "A, B" entails "A" and not the other way round, so that w is one half.
    evaluator = DenseEvaluator(script({"a'b": "A, B"}), LongerEntails())
    run = Example(id=uuid4(), outputs={"documents": documents("ab")})
    example = Example(id=uuid4(), inputs={"question": QUESTION})
    found = evaluator(run, example) if way == "sync" else asyncio.run(evaluator.acall(run, example))
    entropy = -(2 * math.log(2.5 / 3) + math.log(2 / 3)) / 3
    assert scores(found) == {"dense_entropy": pytest.approx(entropy), "dense_certain": 0}
    whole = found["results"][0]
    assert whole["comment"] == (
        "DENSE 0.257 nats of 1.099, lower is better: uncertain. Saying one document in other words changes "
        "the answer 'A' for 1 of 2 (1 uncertain)."
    )
    parts = whole["value"]
    assert (parts["answers"], parts["labels"]) == (["A", "A, B", "A"], ["uncertain", "certain"])
    assert (parts["ids"], parts["largest"]) == (["id-a", "id-b"], pytest.approx(math.log(3)))
    # Two rephrasings, three answers, and both directions of the one pair that differs: no masking.
    assert parts["calls"] == 2 + 3 + 2
    json.dumps(found)


def test_understanding_scores_nothing_and_misunderstanding_the_most() -> None:
    given: dict[str, Any] = {"inputs": {"question": QUESTION}, "outputs": {"documents": documents("abc")}}
    assert scores(tool(script({}))(**given)) == {"dense_entropy": 0.0, "dense_certain": 1}
    worst = script(distinct)
    assert scores(tool(worst)(**given)) == {"dense_entropy": pytest.approx(math.log(4)), "dense_certain": 0}


def test_masking_is_asked_for_and_changes_no_score() -> None:
    given: dict[str, Any] = {"inputs": {"question": QUESTION}, "outputs": {"documents": documents("abc")}}
    plain, masked = tool()(**given), tool(mask=True)(**given)
    assert scores(plain) == scores(masked)
    assert plain["results"][0]["value"]["labels"][0] == "uncertain"
    assert masked["results"][0]["value"]["labels"][0] == "unnecessary"
    assert "(1 unnecessary)" in masked["results"][0]["comment"]
    lenient = tool(threshold=1.0, key="understood")(**given)
    assert scores(lenient)["understood_certain"] == 1


FACTS = {"Ada": "Velm", "Bo": "Tarn", "poison": "", "mute": ""}


def reply(prompt: str) -> Any:
    """Understand Ada's document however it is worded, Bo's as long as it says "was"."""
    if "poison" in prompt:
        raise ServiceError("the server is down", hint="start it")
    if kind(prompt) == "rephrase":
        return "" if "mute" in prompt else prompt.split("Text: ")[1].replace("was born", "came to life")
    [text] = shown(prompt)
    return "Velm" if "Ada" in text else "Tarn" if "was born" in text else "?"


def examples() -> list[Example]:
    questions = [f"Where was {name} born?" for name in FACTS]
    return [
        Example(id=uuid4(), dataset_id=uuid4(), inputs={"question": question}, outputs=None)
        for question in [*questions, "Where was Zoe born?"]
    ]


def retrieve(inputs: dict[str, Any]) -> dict[str, Any]:
    found = [
        Document(f"{name} was born in {city}.") for name, city in FACTS.items() if name in inputs["question"]
    ]
    return {"answer": "?", "documents": found}


async def aretrieve(inputs: dict[str, Any]) -> dict[str, Any]:
    return retrieve(inputs)


def as_expected(rows: Sequence[Any]) -> None:
    found = {row["example"].inputs["question"]: row["evaluation_results"]["results"] for row in rows}
    ada, bo, poisoned, mute, zoe = (found[example.inputs["question"]] for example in examples())
    assert {item.key: item.score for item in ada} == {"dense_entropy": 0.0, "dense_certain": 1}
    assert {item.key: item.score for item in bo} == {
        "dense_entropy": pytest.approx(math.log(2)),
        "dense_certain": 0,
    }
    assert bo[0].value["answers"] == ["Tarn", "?"]
    for [item], reason in (
        (poisoned, "the server is down. Start it."),
        (mute, "no document could be tested, their rephrasings are empty"),
        (zoe, "there is no document with text"),
    ):
        assert (item.key, item.score, item.extra) == ("dense_entropy", None, {"error": True})
        assert reason in item.comment


@pytest.mark.parametrize("max_concurrency", [0, 4])
def test_in_langsmiths_evaluate(max_concurrency: int) -> None:
    rows = evaluate(
        retrieve,
        data=examples(),
        evaluators=[tool(FakeReader(reply))],
        max_concurrency=max_concurrency,
        upload_results=False,
    )
    as_expected(list(rows))


@pytest.mark.parametrize("form", ["evaluator", "coroutine"])
async def test_in_langsmiths_aevaluate(form: str) -> None:
    evaluator = tool(FakeReader(reply))
    chosen = evaluator if form == "evaluator" else evaluator.acall
    rows = await aevaluate(
        aretrieve, data=examples(), evaluators=[chosen], max_concurrency=3, upload_results=False
    )
    as_expected([row async for row in rows])


async def test_it_does_what_the_core_does_and_keys_are_yours() -> None:
    said = {"a'bc": "B", "abc'": "C"}
    core = Dense(script(said), ExactEntailer()).run(QUESTION, passages("abc"))
    evaluator = tool(
        script(said), question_key="ask", contexts_key=lambda given: given["found"]["docs"], key="d"
    )
    given: dict[str, Any] = {"inputs": {"ask": QUESTION}, "outputs": {"found": {"docs": documents("abc")}}}
    for found in (evaluator(**given), await evaluator.acall(**given)):
        assert found["results"][0]["score"] == pytest.approx(core.score, abs=1e-5)
        assert found["results"][0]["value"]["labels"] == list(core.labels)
        assert scores(found).keys() == {"d_entropy", "d_certain"}
    in_words = tool()(inputs={"query": QUESTION, "contexts": ["a", "b", "c"]})
    assert scores(in_words)["dense_entropy"] > 0


def test_what_cannot_be_measured_says_where_to_look() -> None:
    inputs = {"question": QUESTION}
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "no question among []. Say where it is with question_key=…"),
        ({"inputs": {"question": 7}}, "no question but a int"),
        ({"inputs": inputs, "outputs": {"output": "Velm"}}, "no list of documents among"),
        ({"inputs": {"question": " "}, "outputs": {"documents": documents("a")}}, "the question is empty"),
        ({"inputs": inputs, "outputs": {"documents": [3]}}, "a int among the documents has no text"),
    ]
    for given, reason in cases:
        [item] = tool()(**given)["results"]
        assert item["score"] is None
        assert reason in item["comment"]
        [again] = asyncio.run(tool().acall(**given))["results"]
        assert again == item
    with pytest.raises(ConfigurationError, match="chat model"):
        DenseEvaluator("gpt")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="threshold"):
        tool(threshold=-1)


def test_without_a_judge_the_model_itself_is_asked_with_your_words() -> None:
    def answer(prompt: str) -> str:
        if prompt.startswith("Same?"):
            return "entailment"
        if kind(prompt) == "rephrase":
            return "a'"
        return "B" if shown(prompt) == ("a'",) else "A"

    reader = FakeReader(answer)
    evaluator = DenseEvaluator(reader, prompts={"entailment": "Same? {question}|{premise}|{hypothesis}"})
    found = evaluator(inputs={"question": "{x}?"}, outputs={"documents": documents("a")})
    assert scores(found) == {"dense_entropy": 0.0, "dense_certain": 1}
    assert reader.prompts[-2:] == ["Same? {x}?|A|B", "Same? {x}?|B|A"]
    with pytest.raises(PromptError, match="not asked"):
        tool(prompts={"entailment": "{question}{premise}{hypothesis}"})
    with pytest.raises(PromptError, match="no prompt"):
        tool(prompts={"judge": "{question}"})


@pytest.mark.parametrize("said", ["potato", "", "not entailment"])
def test_a_judge_that_talks_nonsense_links_nothing(said: str, caplog: pytest.LogCaptureFixture) -> None:
    judge = FakeListChatModel(responses=[said])
    found = DenseEvaluator(script({"a'b": "B"}), judge)(
        inputs={"question": QUESTION}, outputs={"documents": documents("ab")}
    )
    assert scores(found)["dense_entropy"] == pytest.approx(-(2 * math.log(2 / 3) + math.log(1 / 3)) / 3)
    assert "counts as neutral" in caplog.text


async def test_the_global_cache_and_secrets(server: FakeOpenAI) -> None:
    given: dict[str, Any] = {"inputs": {"question": QUESTION}, "outputs": {"documents": documents("abc")}}

    def built() -> DenseEvaluator:
        return DenseEvaluator(chat(server), ExactEntailer(), max_tokens=3, rephrase_tokens=30)

    plain = built()(**given)
    assert plain["results"][0]["score"] is not None, plain
    asked = len(server.requests)
    set_llm_cache(InMemoryCache())
    for again in (built()(**given), await built().acall(**given)):
        assert again == plain
    assert len(server.requests) <= 2 * asked
    assert KEY not in repr(built()) + str(built().core.to_dict()) + json.dumps(plain)


async def test_failures_are_custom_events_of_the_run_around_them() -> None:
    evaluator, heard = tool(FakeReader(reply)), Heard()
    steps = RunnableLambda(lambda given: evaluator(**given), lambda given: evaluator.acall(**given))
    good: dict[str, Any] = {"inputs": {"question": "Where was Ada born?"}}
    good["outputs"] = retrieve(good["inputs"])
    steps.invoke(good, {"callbacks": [heard]})
    await steps.ainvoke({}, {"callbacks": [heard]})
    assert heard.names == ["dense.measured", "dense.invalid"]


def test_options_are_those_of_the_core_and_take_effect_or_raise() -> None:
    given: dict[str, Any] = {"inputs": {"question": QUESTION}, "outputs": {"documents": documents("abc")}}
    fields = DenseEvaluator.model_fields
    for name, option in DenseOptions.OPTIONS.items():
        assert (fields[name].default, fields[name].description) == (option.default, option.doc)
    evaluator = tool()
    evaluator.mask = True
    assert evaluator(**given)["results"][0]["value"]["labels"][0] == "unnecessary"
    with pytest.raises(ConfigurationError, match="threshold"):
        evaluator.threshold = -1.0
    assert evaluator.threshold == 0.2
    lenient = evaluator.model_copy(update={"threshold": 1.0})
    assert scores(lenient(**given))["dense_certain"] == 1
    assert lenient.core.cache is evaluator.core.cache
    with pytest.raises(ConfigurationError, match=r"'treshold'.*threshold"):
        tool(treshold=1.0)


def test_copies_and_pickles_measure_as_it_does() -> None:
    evaluator = DenseEvaluator(FakeReader(["A"]), ExactEntailer(), threshold=0.4, key="mine")
    copied = copy.deepcopy(evaluator)
    assert copied.core.reader is evaluator.core.reader
    for again in (copied, pickle.loads(pickle.dumps(evaluator))):
        assert (again.core.to_dict(), again.__name__) == (evaluator.core.to_dict(), "mine")
