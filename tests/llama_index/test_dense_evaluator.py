"""DENSE as an evaluator: LlamaIndex's batch runner, prompts, limits; nothing is ever raised."""

from __future__ import annotations

import asyncio
import copy
import math
import pickle
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.base.response.schema import Response, StreamingResponse
from llama_index.core.evaluation import BatchEvalRunner
from llama_index.core.llms import MockLLM
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from llama_index.core.prompts.default_prompts import DEFAULT_TEXT_QA_PROMPT
from llama_index.core.schema import ImageNode, NodeWithScore, TextNode

from llama_index_surerag import DeltaSePerEvaluator, DenseEvaluationResult, DenseEvaluator
from surerag import DenseEvaluator as Dense
from surerag import DenseOptions, FakeReader, Passage
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError, PromptError, ServiceError
from surerag.messages import SamplingParams
from surerag.readers.protocol import Capabilities
from tests.blocking import Gate, cancelled_without_trace
from tests.llama_index.conftest import Length
from tests.llama_index.corpus import HashEmbedding
from tests.llama_index.dense_cases import Saying
from tests.llama_index.watching import EVENTS
from tests.methods.dense_rag.script import LongerEntails, kind, script

QUESTION = "Where was Ada born?"
# The second chunk is not understood: said in other words, it changes the answer.
SAID = {"ab'": "B"}


def tool(reader: Any = None, **settings: Any) -> DenseEvaluator:
    return DenseEvaluator(reader or script(SAID), **{"entailer": ExactEntailer(), **settings})


@pytest.mark.parametrize("way", ["sync", "async", "sync in a loop"])
def test_worked_by_hand_with_all_parts(way: str) -> None:
    evaluator = tool()
    given: dict[str, Any] = {"response": "In Velm.", "contexts": ["a", " ", "b"]}

    async def within() -> DenseEvaluationResult:
        if way == "async":
            return await evaluator.aevaluate(QUESTION, **given)
        return evaluator.evaluate(QUESTION, **given)

    result = evaluator.evaluate(QUESTION, **given) if way == "sync" else asyncio.run(within())
    # Degrees 2, 2 and 1 of three answers (Eq. 6).
    score = -(2 * math.log(2 / 3) + math.log(1 / 3)) / 3
    assert result.dense == pytest.approx(score, abs=1e-9)
    assert result.score == pytest.approx(1 - score / math.log(3), abs=1e-9)
    assert (result.passing, result.invalid_result, result.invalid_reason) == (False, False, None)
    assert (result.query, result.response, result.contexts) == (QUESTION, "In Velm.", ["a", " ", "b"])
    assert (result.answers, result.labels) == (("A", "A", "B"), ("certain", "uncertain"))
    assert (result.outcomes, result.calls) == (("rephrased", "rephrased"), 2 + 3 + 2)
    assert result.tokens > 0
    assert "not understood: DENSE 0.637 of at most 1.099 nats (lower is better)" in result.feedback
    assert "1 of 2 contexts" in result.feedback
    assert DenseEvaluationResult.model_validate_json(result.model_dump_json()) == result


def test_it_is_the_core() -> None:
    said = {"": "A and B", "a'bc": "B", "ab'c": "A and B", "abc'": "C", "ab": "C"}
    for mask in (False, True):
        reader = script(said)
        expected = Dense(reader, LongerEntails(), mask=mask, half="unnecessary").run(
            QUESTION, [Passage(letter) for letter in "abc"]
        )
        result = tool(reader, entailer=LongerEntails(), mask=mask, half="unnecessary").evaluate(
            QUESTION, contexts="a b c".split()
        )
        assert result.dense == pytest.approx(expected.score, abs=1e-5)
        assert (result.answers, result.labels) == (expected.answers, expected.labels)
        assert result.calls == expected.calls.total
    assert set(result.labels) == {"certain", "necessary", "unnecessary"} or "necessary" in result.labels


def test_understood_contexts_pass() -> None:
    result = tool(script({})).evaluate(QUESTION, contexts=["a", "b"])
    assert (result.dense, result.score, result.passing) == (0.0, 1.0, True)
    assert tool(threshold=2.0).evaluate(QUESTION, contexts=["a", "b"]).passing


QUERIES = [QUESTION, QUESTION, "poison", QUESTION]
CONTEXTS: list[Any] = [["a", "b"], ["c"], ["a"], [""]]


def poisoned(prompt: str) -> str:
    if "poison" in prompt:
        raise ServiceError("the server is down", hint="start it")
    [[reply]] = script(SAID).generate([prompt], SamplingParams())
    return reply.text


def as_expected(results: Sequence[Any]) -> None:
    assert [result.passing for result in results] == [False, True, None, None]
    assert [result.score for result in results[1:]] == [1.0, None, None]
    assert results[2].invalid_reason == "the server is down. Start it."
    assert "no contexts with text" in results[3].invalid_reason
    assert [result.query for result in results] == QUERIES


async def test_in_the_batch_runner_alone_and_among_others() -> None:
    reader = FakeReader(poisoned)
    given: dict[str, Any] = {
        "queries": QUERIES,
        "response_strs": ["Velm"] * len(QUERIES),
        "contexts_list": CONTEXTS,
    }
    alone = BatchEvalRunner({"dense": tool(reader)}, workers=3)
    as_expected((await alone.aevaluate_response_strs(**given))["dense"])
    # Raising would have made the runner try the failing item three times.
    assert sum("poison" in prompt for prompt in reader.prompts) <= 2
    delta = DeltaSePerEvaluator(script({}), ExactEntailer(), n_samples=1)
    several = BatchEvalRunner({"dense": tool(reader), "length": Length(), "delta": delta}, workers=3)
    named = {
        "length": {"limit": [4] * 4},
        "delta": {"reference": ["A"] * 4},
        "dense": {"reference": ["A"] * 4},
    }
    # The sync form works inside this running loop.
    found = several.evaluate_response_strs(**given, **named)
    as_expected(found["dense"])
    assert [result.score for result in found["length"]] == [0.0] * 4
    assert found["delta"][0].score == 0.0
    shared = BatchEvalRunner({"dense": tool(reader), "length": Length()})
    as_expected((await shared.aevaluate_response_strs(**given, limit=[1] * 4))["dense"])


async def test_the_batch_runner_asks_an_engine() -> None:
    nodes = [TextNode(text="a", metadata={"page": 1}, excluded_llm_metadata_keys=["page"])]
    index = VectorStoreIndex(nodes, embed_model=HashEmbedding())
    runner = BatchEvalRunner({"dense": tool()}, workers=2)
    found = await runner.aevaluate_queries(index.as_query_engine(MockLLM()), ["Why?", "Who?"])
    assert [result.score for result in found["dense"]] == [1.0, 1.0]
    assert [result.query for result in found["dense"]] == ["Why?", "Who?"]


def test_what_cannot_be_measured_says_why_and_sends_an_event(spans: Any) -> None:
    evaluator = tool()
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "no query"),
        ({"query": " ", "contexts": ["a"]}, "question is empty"),
        ({"query": "Q?", "contexts": None}, "no contexts"),
        ({"query": "Q?", "contexts": ["a", None]}, "contexts holds a NoneType"),
        ({"query": 7, "response": 7, "contexts": 7}, "no query"),
    ]
    for given, reason in cases:
        result = evaluator.evaluate(**given)
        assert result.invalid_result
        assert reason in result.invalid_reason
        assert (result.score, result.passing, result.dense) == (None, None, None)
    assert sum(getattr(event, "name", "") == "dense.invalid" for event in EVENTS) == len(cases)

    class Broken(FakeReader):
        def generate(self, prompts: Any, sampling: Any) -> Any:
            raise KeyError("choices")

    assert tool(Broken()).evaluate("Q?", contexts=["a"]).invalid_reason == "KeyError: 'choices'"


async def test_what_was_not_rephrased_is_not_taken_for_understood() -> None:
    for rephrase, outcome in ((lambda text: text, "unchanged"), (lambda text: "", "empty")):
        evaluator = tool(script({}, rephrase=rephrase))
        for result in (
            evaluator.evaluate(QUESTION, contexts=["a", "b"]),
            await evaluator.aevaluate(QUESTION, contexts=["a", "b"]),
        ):
            assert result.invalid_result
            assert f"({outcome}, {outcome}), so nothing was tested" in result.invalid_reason


def test_a_judge_that_talks_nonsense_is_counted_and_entails_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    judge = FakeReader(lambda _: "entailment or contradiction")
    evaluator = tool(entailer=judge)
    result = evaluator.evaluate(QUESTION, contexts=["a", "b"])
    assert result.dense > 0.5
    # It says so once: a judge that does not follow the prompt does so each time.
    assert caplog.text.count("names no single label") == 1
    assert evaluator.unparsed == len(judge.prompts) == 2
    assert tool().unparsed == 0


@pytest.fixture
def settings() -> Iterator[None]:
    before = Settings._llm
    yield
    Settings._llm = before


def test_the_llm_of_the_settings_answers_and_judges(settings: None) -> None:
    def say(prompt: str) -> str:
        if prompt.startswith("Two possible answers"):
            return "entailment"
        return "other words" if kind(prompt) == "rephrase" else ("B" if "[1] other" in prompt else "A")

    Settings.llm = Saying(say=say)
    evaluator = DenseEvaluator()
    result = evaluator.evaluate(QUESTION, contexts=["a", "b"])
    assert (result.dense, result.answers) == (0.0, ("A", "B", "A"))
    assert evaluator.core.services.entailer.name == "judge:saying"
    with pytest.raises(ConfigurationError, match="expected a reader"):
        DenseEvaluator("gpt", ExactEntailer())  # type: ignore[arg-type]
    for wrong in ({"window": 0}, {"threshold": -1.0}):
        with pytest.raises(ConfigurationError):
            tool(**wrong)


def test_prompts_are_shown_changed_and_checked() -> None:
    reader = script({})
    evaluator = tool(reader, prompts={"closed_book": "Just say: {query_str}"})
    assert set(evaluator.get_prompts()) == {"rephrase", "answer", "closed_book"}
    evaluator.update_prompts({"answer": DEFAULT_TEXT_QA_PROMPT})
    evaluator.evaluate("Who {is} Ada?", contexts=["{a}", "<b>"])
    wanted = DEFAULT_TEXT_QA_PROMPT.format(context_str="[1] {a}\n[2] <b>", query_str="Who {is} Ada?")
    assert wanted in reader.prompts
    turns = [ChatMessage(role="system", content="S"), ChatMessage(content="{query_str}|{context_str}")]
    evaluator.update_prompts({"answer": ChatPromptTemplate(turns)})
    evaluator.evaluate(QUESTION, contexts=["a"])
    assert f"{QUESTION}|[1] a'" in str(reader.prompts[-1])
    for changes in ({"answer": PromptTemplate("{question}")}, {"sufficient": PromptTemplate("x")}):
        with pytest.raises(PromptError):
            evaluator.update_prompts(changes)
    assert isinstance(evaluator.get_prompts()["answer"], ChatPromptTemplate)
    judged = DenseEvaluator(script(SAID), FakeReader(lambda prompt: str(prompt)))
    judged.update_prompts({"entailment": PromptTemplate("entailment {question}{premise}{hypothesis}")})
    assert judged.evaluate("Q?", contexts=["a", "b"]).dense == 0


class Crowded(FakeReader):
    """Tells how many calls were open at a time."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: "other" if kind(prompt) == "rephrase" else "A")
        self.open = self.peak = 0
        self.counting = threading.Lock()

    def _enter(self, step: int) -> None:
        with self.counting:
            self.open += step
            self.peak = max(self.peak, self.open)

    def generate(self, prompts: Any, sampling: Any) -> Any:
        self._enter(1)
        time.sleep(0.01)
        self._enter(-1)
        return super().generate(prompts, sampling)

    async def agenerate(self, prompts: Any, sampling: Any) -> Any:
        self._enter(1)
        await asyncio.sleep(0.01)
        self._enter(-1)
        return FakeReader.generate(self, prompts, sampling)


def test_concurrency_is_bounded_over_all_callers_of_each_loop() -> None:
    reader = Crowded()
    evaluator = tool(reader, window=2)
    items = [{"query": QUESTION, "contexts": [str(place)]} for place in range(6)]

    async def together() -> None:
        results = await asyncio.gather(*(evaluator.aevaluate(**given) for given in items))
        assert all(result.dense == 0 for result in results)

    for _ in range(2):
        asyncio.run(together())
        assert reader.peak == 2
    reader.peak = 0
    threads = [threading.Thread(target=evaluator.evaluate, kwargs=given) for given in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= reader.peak <= 2


def test_a_response_is_measured_as_its_nodes_are_shown_and_a_stream_is_left_alone() -> None:
    nodes = [
        NodeWithScore(
            node=TextNode(text="a", metadata={"page": 1, "no": 2}, excluded_llm_metadata_keys=["no"])
        ),
        NodeWithScore(node=ImageNode()),
    ]
    result = tool().evaluate_response(QUESTION, Response("Velm", source_nodes=nodes))
    assert (result.contexts, result.response) == (["page: 1\n\na"], "Velm")
    pieces = iter(["In ", "Velm"])
    result = tool().evaluate_response(QUESTION, StreamingResponse(pieces, source_nodes=nodes))
    assert (result.response, result.dense) == (None, 0.0)
    assert "".join(pieces) == "In Velm"
    assert "no contexts" in tool().evaluate_response(QUESTION, None).invalid_reason


def test_a_corpus_can_be_rephrased_ahead_of_all_questions() -> None:
    reader = script({})
    evaluator = tool(reader)
    assert evaluator.core.prepare([Passage("a"), Passage("b")]) == 2
    assert evaluator.evaluate(QUESTION, contexts=["a", "b"]).calls == 3
    assert sum(kind(prompt) == "rephrase" for prompt in reader.prompts) == 2


def test_options_are_those_of_the_core_and_take_effect_or_raise() -> None:
    fields = DenseEvaluator.model_fields
    for name, option in DenseOptions.OPTIONS.items():
        assert (fields[name].default, fields[name].description) == (option.default, option.doc)
    evaluator = tool()
    evaluator.mask = True
    assert evaluator.evaluate(QUESTION, contexts=["a", "b"]).labels == ("certain", "unnecessary")
    with pytest.raises(ConfigurationError, match="threshold"):
        evaluator.threshold = -1.0
    assert evaluator.threshold == 0.2
    lenient = evaluator.model_copy(update={"threshold": 1.0})
    assert lenient.evaluate(QUESTION, contexts=["a", "b"]).passing
    assert lenient.core.cache is evaluator.core.cache
    with pytest.raises(ConfigurationError, match=r"'treshold'.*threshold"):
        tool(treshold=1.0)


def test_copies_and_pickles_measure_as_it_does() -> None:
    evaluator = DenseEvaluator(FakeReader(["A"]), ExactEntailer(), threshold=0.4)
    copied = copy.deepcopy(evaluator)
    assert copied.core.reader is evaluator.core.reader
    for again in (copied, pickle.loads(pickle.dumps(evaluator))):
        assert again.core.to_dict() == evaluator.core.to_dict()


@pytest.mark.parametrize("native", [False, True])
async def test_a_measurement_that_is_cancelled_is_cancelled_and_not_invalid(native: bool, spans: Any) -> None:
    gate = Gate()

    class Slow(FakeReader):
        @property
        def capabilities(self) -> Capabilities:
            return Capabilities(logprobs=False, entropy=None, native_async=native)

        def generate(self, prompts: Any, sampling: Any) -> Any:
            gate.wait()
            return super().generate(prompts, sampling)

        async def agenerate(self, prompts: Any, sampling: Any) -> Any:
            gate.entered.set()
            await asyncio.sleep(20)

    evaluator = tool(Slow(lambda prompt: "A"), window=1)
    await cancelled_without_trace(lambda: evaluator.aevaluate(QUESTION, contexts=["a"]), gate)
    assert not [event for event in EVENTS if "invalid" in repr(event)]
    # Its turn is free again.
    calm = DenseEvaluator(script(SAID), ExactEntailer(), window=1)
    calm._turns = evaluator._turns
    assert (await asyncio.wait_for(calm.aevaluate(QUESTION, contexts=["a"]), 5)).invalid_result is False
