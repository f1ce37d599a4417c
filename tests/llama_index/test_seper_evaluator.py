"""ΔSePer in LlamaIndex: its batch runner, its query engines, its prompts; nothing is ever raised."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.base.response.schema import Response, StreamingResponse
from llama_index.core.evaluation import BatchEvalRunner
from llama_index.core.llms import MockLLM
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from llama_index.core.prompts.default_prompts import DEFAULT_TEXT_QA_PROMPT
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.schema import ImageNode, NodeWithScore, TextNode

from llama_index_surerag import DeltaSePerEvaluator, DeltaSePerResult
from surerag import Adaptive, FakeReader
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError, MissingServiceError, PromptError, ServiceError
from tests.llama_index.conftest import Length, like
from tests.llama_index.corpus import HashEmbedding
from tests.llama_index.watching import EVENTS
from tests.methods.seper.sampled import AFTER, BEFORE, LIKE, Judge, sampled
from tests.servers.fake_openai import FakeOpenAI, Quirks

QUESTION = "Where was Ada born?"
CONTEXTS = ["Ada was born in Velm.", "Bo paints."]
FACTS = {"Ada": "Velm", "Bo": "Tarn", "Cid": "Orun"}


def knowing(prompt: str) -> str:
    """Say what the documents say; fail where they are poisoned."""
    if "poison" in prompt:
        raise ServiceError("the server is down", hint="start it")
    return next((city for name, city in FACTS.items() if f"{name} was born in {city}" in prompt), "Nowhere")


def tool(reader: Any = None, **settings: Any) -> DeltaSePerEvaluator:
    return DeltaSePerEvaluator(reader or FakeReader(knowing), ExactEntailer(), **{"n_samples": 3, **settings})


def test_samples_cut_at_the_limit_are_counted() -> None:
    reader = FakeReader(lambda _: "As far as anybody knows")
    given: dict[str, Any] = {"contexts": CONTEXTS, "reference": "Velm"}
    assert tool(reader, max_tokens=2).evaluate(QUESTION, **given).truncated == 6
    assert tool(reader).evaluate(QUESTION, **given).truncated == 0


@pytest.mark.parametrize("way", ["sync", "async", "sync in a loop"])
def test_worked_by_hand_with_all_parts(way: str) -> None:
    reader = FakeReader(sampled(*BEFORE, *AFTER), entropy=None)
    evaluator = DeltaSePerEvaluator(reader, Judge(LIKE), n_samples=4)
    given: dict[str, Any] = {"response": "In Velm.", "contexts": CONTEXTS, "reference": "Velm"}

    async def within() -> DeltaSePerResult:
        if way == "async":
            return await evaluator.aevaluate(QUESTION, **given)
        return evaluator.evaluate(QUESTION, **given)

    result = evaluator.evaluate(QUESTION, **given) if way == "sync" else asyncio.run(within())
    before, after = 0.2 / 1.0, (0.6 + 0.2 * 0.7) / 0.8
    assert (result.before, result.after) == (pytest.approx(before), pytest.approx(after))
    assert result.score == result.delta == pytest.approx(after - before)
    assert result.interval.lower <= result.delta <= result.interval.upper
    assert (result.passing, result.invalid_result, result.invalid_reason) == (True, False, None)
    assert (result.query, result.response, result.contexts) == (QUESTION, "In Velm.", CONTEXTS)
    assert (result.reference, result.weights, result.kernel) == (("Velm",), "distinct", "soft")
    assert (result.calls, result.judged) == (2, 6)
    assert result.tokens > 8
    assert [answer.text for answer in result.answers_before] == ["Orun", "Orun", "Toren", "Velm"]
    assert result.answers_after[3].entailment == (pytest.approx(0.7),)
    assert "ΔSePer +0.725" in result.feedback
    assert DeltaSePerResult.model_validate_json(result.model_dump_json()) == result


QUERIES = [f"Where was {name} born?" for name in ("Ada", "Bo", "Cid", "Ada", "poison", "Cid")]
CONTEXT_LISTS = [
    CONTEXTS,
    ["Bo was born in Tarn."],
    ["Nobody knows."],
    ["Ada was born in Velm."],
    CONTEXTS,
    [" "],
]
REFERENCES: list[Any] = ["Velm", ["Orun", "tarn"], ["Orun"], None, "Velm", "Orun"]


def as_expected(results: Sequence[Any]) -> None:
    assert [result.score for result in results] == [1.0, 1.0, 0.0, None, None, None]
    assert [result.passing for result in results] == [True, True, False, None, None, None]
    assert [result.invalid_result for result in results] == [False] * 3 + [True] * 3
    reasons = [result.invalid_reason for result in results[3:]]
    assert "there is no reference" in reasons[0]
    assert reasons[1] == "the server is down. Start it."
    assert "no contexts with text" in reasons[2]
    assert [result.query for result in results] == QUERIES


async def test_in_the_batch_runner_alone_and_among_others() -> None:
    reader = FakeReader(knowing)
    given: dict[str, Any] = {
        "queries": QUERIES,
        "response_strs": ["Velm"] * 6,
        "contexts_list": CONTEXT_LISTS,
    }
    alone = BatchEvalRunner({"delta": tool(reader)}, workers=3)
    as_expected((await alone.aevaluate_response_strs(**given, reference=REFERENCES))["delta"])
    # Raising would have made the runner try a failing item three times, four seconds apart at least.
    assert sum("poison" in prompt for prompt in reader.prompts) <= 2
    both = BatchEvalRunner({"delta": tool(), "length": Length()}, workers=3)
    named = {"delta": {"reference": list(REFERENCES)}, "length": {"limit": [4] * 6}}
    # The sync form works inside this running loop.
    found = both.evaluate_response_strs(**given, **named)
    as_expected(found["delta"])
    assert [result.score for result in found["length"]] == [0.0] * 6
    shared = BatchEvalRunner({"delta": tool(), "length": Length()})
    found = await shared.aevaluate_response_strs(**given, reference=REFERENCES, limit=[1] * 6)
    as_expected(found["delta"])


def test_what_cannot_be_measured_says_why_and_sends_an_event(spans: Any) -> None:
    evaluator = tool()
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "no query"),
        ({"query": " ", "contexts": CONTEXTS, "reference": "x"}, "question is empty"),
        ({"query": "Q?", "contexts": CONTEXTS, "references": ["x"]}, "only ['references']"),
        ({"query": "Q?", "contexts": CONTEXTS, "reference": ["x", ""]}, "missing or empty"),
        ({"query": "Q?", "contexts": CONTEXTS, "reference": float("nan")}, "reference holds a float"),
        ({"query": "Q?", "contexts": None, "reference": "x"}, "no contexts"),
        ({"query": "Q?", "contexts": ["a", None], "reference": "x"}, "contexts holds a NoneType"),
        ({"query": 7, "response": 7, "contexts": 7, "reference": 7}, "no query"),
    ]
    for given, reason in cases:
        result = evaluator.evaluate(**given)
        assert result.invalid_result
        assert reason in result.invalid_reason
        assert (result.score, result.passing, result.delta) == (None, None, None)
    assert sum(getattr(event, "name", "") == "seper.invalid" for event in EVENTS) == len(cases)

    class Broken(FakeReader):
        def generate(self, prompts: Any, sampling: Any) -> Any:
            raise KeyError("choices")

    result = tool(Broken()).evaluate("Q?", contexts=CONTEXTS, reference="x")
    assert result.invalid_reason == "KeyError: 'choices'"


def test_a_server_without_log_probabilities_makes_items_invalid() -> None:
    with FakeOpenAI(quirks=Quirks(no_logprobs=True)) as server:
        evaluator = DeltaSePerEvaluator(like(server), ExactEntailer(), n_samples=2, max_tokens=4)
        for result in (
            evaluator.evaluate(QUESTION, contexts=CONTEXTS, reference="Velm"),
            asyncio.run(evaluator.aevaluate(QUESTION, contexts=CONTEXTS, reference="Velm")),
        ):
            assert result.invalid_result
            assert "log-probabilities" in result.invalid_reason
            assert "sk-very-secret" not in result.invalid_reason


def test_an_openai_llm_gives_distinct_weighted_samples() -> None:
    with FakeOpenAI() as server:
        evaluator = DeltaSePerEvaluator(like(server), ExactEntailer(), n_samples=8, max_tokens=3)
        result = evaluator.evaluate(QUESTION, contexts=CONTEXTS, reference="Velm")
    assert result.weights == "distinct"
    assert len({answer.text for answer in result.answers_before}) > 1
    assert all(answer.log_likelihood is not None for answer in result.answers_after)


@pytest.fixture
def settings() -> Iterator[None]:
    before = Settings._llm
    yield
    Settings._llm = before


def test_the_llm_of_the_settings_and_an_llm_as_judge(settings: None, spans: Any) -> None:
    Settings.llm = MockLLM(max_tokens=4)
    result = DeltaSePerEvaluator(entailer=ExactEntailer(), n_samples=2).evaluate(
        QUESTION, contexts=CONTEXTS, reference="text text text text"
    )
    assert (result.before, result.after, result.weights) == (1.0, 1.0, "frequency")
    assert "seper.frequency_weights" in {getattr(event, "name", "") for event in EVENTS}
    judged = DeltaSePerEvaluator(FakeReader(knowing), MockLLM(max_tokens=4), n_samples=2)
    assert judged.core.entailer.name.startswith("judge:")
    assert judged.evaluate(QUESTION, contexts=CONTEXTS, reference="Velm").delta == 1.0
    with pytest.raises(MissingServiceError, match="entailer"):
        DeltaSePerEvaluator(FakeReader(knowing))
    with pytest.raises(ConfigurationError, match="expected a reader"):
        DeltaSePerEvaluator("gpt", ExactEntailer())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="window"):
        tool(window=0)


def test_prompts_are_shown_changed_and_checked() -> None:
    reader = FakeReader(knowing)
    evaluator = tool(reader, prompts={"closed_book": "Just say: {query_str}"})
    assert set(evaluator.get_prompts()) == {"closed_book", "from_passages"}
    evaluator.update_prompts({"from_passages": DEFAULT_TEXT_QA_PROMPT})
    contexts = ["Ada was born in {Velm}.", "Bo <b>paints</b>."]
    evaluator.evaluate("Who {is} Ada?", contexts=contexts, reference="Velm")
    closed, shown = reader.prompts
    assert closed == "Just say: Who {is} Ada?"
    wanted = DEFAULT_TEXT_QA_PROMPT.format(
        context_str="[1] Ada was born in {Velm}.\n[2] Bo <b>paints</b>.", query_str="Who {is} Ada?"
    )
    assert shown == wanted
    turns = [ChatMessage(role="system", content="S"), ChatMessage(content="{query_str}|{context_str}")]
    evaluator.update_prompts({"from_passages": ChatPromptTemplate(turns)})
    evaluator.evaluate(QUESTION, contexts=CONTEXTS, reference="Velm")
    assert f"{QUESTION}|[1] {CONTEXTS[0]}" in reader.prompts[-1]
    with pytest.raises(PromptError, match="slots"):
        evaluator.update_prompts({"from_passages": PromptTemplate("{question}")})
    assert isinstance(evaluator.get_prompts()["from_passages"], ChatPromptTemplate)
    with pytest.raises(PromptError, match="no prompt"):
        tool(prompts={"closed": "x"})


class Crowded(FakeReader):
    """Tells how many calls were open at a time."""

    def __init__(self) -> None:
        super().__init__(knowing)
        self.open = self.peak = 0
        self.counting = threading.Lock()

    def _enter(self, step: int) -> None:
        with self.counting:
            self.open += step
            self.peak = max(self.peak, self.open)

    def generate(self, prompts: Any, sampling: Any) -> Any:
        self._enter(1)
        time.sleep(0.02)
        self._enter(-1)
        return super().generate(prompts, sampling)

    async def agenerate(self, prompts: Any, sampling: Any) -> Any:
        self._enter(1)
        await asyncio.sleep(0.02)
        self._enter(-1)
        return FakeReader.generate(self, prompts, sampling)


def test_concurrency_is_bounded_over_all_callers_of_each_loop() -> None:
    reader = Crowded()
    evaluator = tool(reader, window=2)
    runner_free = [{"query": QUESTION, "contexts": CONTEXTS, "reference": "Velm"}] * 6

    async def together() -> None:
        results = await asyncio.gather(*(evaluator.aevaluate(**given) for given in runner_free))
        assert all(result.score == 1.0 for result in results)

    for _ in range(2):
        asyncio.run(together())
        assert reader.peak == 2
    reader.peak = 0
    threads = [threading.Thread(target=evaluator.evaluate, kwargs=given) for given in runner_free]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= reader.peak <= 2


def source(text: str, **metadata: Any) -> NodeWithScore:
    return NodeWithScore(
        node=TextNode(text=text, metadata=metadata, excluded_llm_metadata_keys=["hidden"]), score=0.5
    )


def test_a_response_is_measured_as_its_nodes_are_shown_and_a_stream_is_left_alone() -> None:
    nodes = [source("Bo paints.", page=1, hidden="Ada was born in Velm"), NodeWithScore(node=ImageNode())]
    result = tool().evaluate_response(QUESTION, Response("Velm", source_nodes=nodes), reference="Velm")
    assert result.contexts == ["page: 1\n\nBo paints."]
    assert (result.response, result.score) == ("Velm", 0.0)
    pieces = iter(["In ", "Velm"])
    stream = StreamingResponse(pieces, source_nodes=[source("Ada was born in Velm.")])
    result = tool().evaluate_response(QUESTION, stream, reference="Velm")
    assert (result.response, result.score) == (None, 1.0)
    assert "".join(pieces) == "In Velm"
    assert "no contexts" in tool().evaluate_response(QUESTION, None, reference="Velm").invalid_reason


class Fragile(CustomQueryEngine):
    """Fails on one question, finds nothing on another."""

    inner: Any

    def custom_query(self, query_str: str) -> Any:
        if "Zoe" in query_str:
            raise TimeoutError("the store is away")
        return Response("?") if "Nil" in query_str else self.inner.query(query_str)


CASES: list[Any] = [
    ("Where was Ada born?", "Velm"),
    ("Where was Zoe born?", "Velm"),
    ("Where was Bo born?", ["Orun", "Tarn"]),
    ("Where was Nil born?", "Velm"),
    ("Where was Cid born?", "Velm"),
]


async def test_a_whole_query_engine_is_measured_in_order() -> None:
    index = VectorStoreIndex(
        [TextNode(text=f"{name} was born in {city}.") for name, city in FACTS.items()],
        embed_model=HashEmbedding(),
    )
    plain = index.as_query_engine(MockLLM(), similarity_top_k=1)
    seen: list[tuple[int, int | None]] = []

    def progress(done: int, total: int | None) -> None:
        seen.append((done, total))

    evaluator = tool(window=3)
    fragile = Fragile(inner=plain)
    found = evaluator.evaluate_query_engine(fragile, CASES, progress=progress)
    assert [result.score for result in found] == [1.0, None, 1.0, None, 0.0]
    assert [result.query for result in found] == [question for question, _ in CASES]
    assert found[0].contexts == ["Ada was born in Velm."]
    assert found[1].invalid_reason == "TimeoutError: the store is away"
    assert (found[1].reference, "no contexts" in found[3].invalid_reason) == (("Velm",), True)
    assert seen == [(done, 5) for done in range(1, 6)]
    assert await evaluator.aevaluate_query_engine(fragile, iter(CASES)) == found
    streaming = index.as_query_engine(MockLLM(), similarity_top_k=1, streaming=True)
    kept = [CASES[0], CASES[2]]
    for results in (
        evaluator.evaluate_query_engine(streaming, kept),
        await evaluator.aevaluate_query_engine(streaming, kept),
    ):
        assert [result.score for result in results] == [1.0, 1.0]
        assert all("born in" in result.response for result in results)
    assert evaluator.evaluate_query_engine(plain, []) == []


async def test_calls_nest_under_the_evaluation(spans: Any) -> None:
    await DeltaSePerEvaluator(MockLLM(max_tokens=2), ExactEntailer(), n_samples=1).aevaluate(
        QUESTION, contexts=CONTEXTS, reference="Velm"
    )
    parents = {span.id_.split("-")[0]: span.parent_id or "" for span in spans.completed_spans}
    assert "DeltaSePerEvaluator.aevaluate" in parents
    under = [name for name, parent in parents.items() if parent.startswith("DeltaSePerEvaluator.aevaluate")]
    assert any(name.startswith("MockLLM") for name in under)


@pytest.mark.parametrize(
    ("name", "near"),
    [("n_sample", "n_samples"), ("threshold", "entailment_threshold"), ("passing", "passing_above")],
)
def test_an_unknown_option_is_refused_and_the_near_one_named(name: str, near: str) -> None:
    for make in (lambda: tool(**{name: 1}), lambda: tool().model_copy(update={name: 1})):
        with pytest.raises(ConfigurationError, match=f"no option '{name}'. Did you mean.* {near}"):
            make()


def test_what_is_set_is_in_force_or_refused() -> None:
    reader = FakeReader(sampled(*BEFORE, *AFTER, *BEFORE, *AFTER), entropy=None)
    evaluator = DeltaSePerEvaluator(reader, Judge(LIKE), n_samples=3)
    with pytest.raises(ConfigurationError, match="kernel must be one of soft, hard, got 'medium'"):
        evaluator.kernel = "medium"  # type: ignore[assignment]
    with pytest.raises(ConfigurationError, match="window must be at least 1"):
        evaluator.window = 0
    assert (evaluator.kernel, evaluator.window) == ("soft", 16)
    evaluator.n_samples = 4
    evaluator.kernel = "hard"
    evaluator.passing_above = 0.9
    given: dict[str, Any] = {"contexts": CONTEXTS, "reference": "Velm"}
    first = evaluator.evaluate(QUESTION, **given)
    assert (len(first.answers_before), first.kernel) == (4, "hard")
    assert (first.score, first.passing) == (pytest.approx(0.8), False)
    soft = evaluator.model_copy(update={"kernel": "soft", "passing_above": 0.0})
    found = soft.evaluate(QUESTION, **given)
    assert (found.score, found.passing) == (pytest.approx(0.725), True)
    assert evaluator.core.kernel == "hard"


def told(prompt: str) -> str:
    return "Velm" if "born in Velm" in prompt else "Orun"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_and_pickles_measure_the_same(copied: Callable[[Any], Any]) -> None:
    evaluator = DeltaSePerEvaluator(
        FakeReader(told), ExactEntailer(), n_samples=2, adaptive=Adaptive(0.5, 2), window=3
    )
    evaluator.update_prompts({"closed_book": PromptTemplate("Say: {query_str}")})
    other = copied(evaluator)
    assert other.core.chosen() == evaluator.core.chosen()
    assert other.window == 3
    given: dict[str, Any] = {"contexts": CONTEXTS, "reference": "Velm"}
    assert other.evaluate(QUESTION, **given) == evaluator.evaluate(QUESTION, **given)
    assert asyncio.run(other.aevaluate(QUESTION, **given)) == other.evaluate(QUESTION, **given)


def test_copies_over_one_llm_ask_one_reader_and_one_judge() -> None:
    llm = MockLLM(max_tokens=2)
    evaluator = DeltaSePerEvaluator(llm, llm, n_samples=1)
    other = evaluator.model_copy(update={"n_samples": 2})
    assert other.core.reader is evaluator.core.reader
    assert other.core.entailer is evaluator.core.entailer
    assert "MockLLM" not in evaluator.model_dump_json()
