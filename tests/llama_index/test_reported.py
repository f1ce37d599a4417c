"""What surerag runs itself is reported as LlamaIndex's own parts are: calls, vectors, searches, answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler, TokenCountingHandler
from llama_index.core.instrumentation.events.embedding import EmbeddingEndEvent
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent, LLMChatStartEvent
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent, RetrievalStartEvent
from llama_index.core.instrumentation.events.synthesis import SynthesizeEndEvent, SynthesizeStartEvent
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import QueryBundle
from llama_index.llms.openai_like import OpenAILike

from llama_index_surerag import _lent  # isort: skip
from llama_index_surerag import (
    ClusterCompressorPostprocessor,
    DeltaSePerEvaluator,
    DenseEvaluator,
    DenseRefinerPostprocessor,
    EvaluationEvent,
    LazyRetrievalQueryEngine,
    UncertaintyRewriteQueryEngine,
    UncertaintyRewriteTransform,
)
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import ServiceError
from surerag.readers.fake import FakeReader
from tests.llama_index import corpus
from tests.llama_index.conftest import KEY
from tests.llama_index.corpus import KNOWN, UNKNOWN, Knowing
from tests.llama_index.watching import EVENTS
from tests.servers.fake_openai import FakeOpenAI
from tests.waiting import eventually
from world import World, embedded_reader


@pytest.fixture
def counting() -> Iterator[TokenCountingHandler]:
    counter = TokenCountingHandler(tokenizer=str.split)
    before = Settings._callback_manager
    Settings.callback_manager = CallbackManager([counter])
    yield counter
    Settings._callback_manager = before


def lazy(reader: Any = None, **settings: Any) -> LazyRetrievalQueryEngine:
    return LazyRetrievalQueryEngine.from_args(
        corpus.index(), reader or Knowing(corpus.answer), **{"top_n": 1, "n_summaries": 1, **settings}
    )


def of(kind: type) -> list[Any]:
    return [event for event in EVENTS if isinstance(event, kind)]


PARTS: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "lazy": lambda reader: lambda: lazy(reader).query(UNKNOWN),
    "lazy, async": lambda reader: lambda: asyncio.run(_awaited(lazy(reader).aquery(UNKNOWN))),
    "lazy, many": lambda reader: lambda: lazy(reader).query_many([UNKNOWN, KNOWN]),
    "disagreement": lambda reader: lambda: lazy(reader, gate="disagreement", threshold=0.1).query(UNKNOWN),
    "rewriting": lambda reader: (
        lambda: UncertaintyRewriteQueryEngine.from_args(corpus.index(), reader, top_n=1).query(UNKNOWN)
    ),
    "a transform": lambda reader: lambda: UncertaintyRewriteTransform(corpus.index(), reader).run(UNKNOWN),
    "compressor": lambda reader: (
        lambda: ClusterCompressorPostprocessor(reader, HashingEncoder(), pass_below=0).postprocess_nodes(
            corpus.index().as_retriever().retrieve(KNOWN), query_str=KNOWN
        )
    ),
    "refiner": lambda reader: (
        lambda: DenseRefinerPostprocessor(
            reader, HashingEncoder(), ExactEntailer(), top_n=2
        ).postprocess_nodes(corpus.index().as_retriever().retrieve(KNOWN), query_str=KNOWN)
    ),
    "dense": lambda reader: lambda: DenseEvaluator(reader, ExactEntailer()).evaluate(KNOWN, contexts=["a b"]),
    "delta": lambda reader: (
        lambda: DeltaSePerEvaluator(reader, ExactEntailer()).evaluate(
            KNOWN, contexts=["a b"], reference="Velm"
        )
    ),
}


SAMPLING = ("disagreement", "delta")


async def _awaited(answer: Any) -> Any:
    return await answer


@pytest.mark.parametrize(
    # A scripted reader counts a prompt for each of its samples; it is read once for all.
    ("part", "local"),
    [(part, local) for part in PARTS for local in (True, False) if local or part not in SAMPLING],
)
def test_each_call_of_a_model_is_reported_and_its_tokens_are_those_that_it_read_and_wrote(
    spans: Any, counting: TokenCountingHandler, part: str, local: bool
) -> None:
    reader: Any = embedded_reader() if local else Knowing(corpus.answer)
    ask = PARTS[part](reader)
    before = reader.usage
    EVENTS.clear()
    ask()
    used = (
        reader.usage.prompt_tokens - before.prompt_tokens,
        reader.usage.completion_tokens - before.completion_tokens,
    )
    assert (len(of(LLMChatStartEvent)), len(of(LLMChatEndEvent))) == (len(counting.llm_token_counts),) * 2
    assert counting.llm_token_counts
    assert (counting.prompt_llm_token_count, counting.completion_llm_token_count) == used
    assert {event.model_dict["model"] for event in of(LLMChatStartEvent)} == {reader.name}
    known = {span.id_ for span in spans.completed_spans}
    assert {event.span_id for event in of(LLMChatStartEvent)} <= known
    assert not spans.open_spans


def test_what_belongs_to_an_answer_nests_under_its_query(spans: Any) -> None:
    engine = lazy()
    EVENTS.clear()
    engine.query(UNKNOWN)
    parents = {span.id_: span.parent_id for span in spans.completed_spans}

    def path(name: str) -> list[str]:
        found, steps = name, list[str]()
        while found:
            steps.append(found.rsplit("-", 5)[0])
            found = parents.get(found)
        return steps

    query = ["LazyRetrievalQueryEngine._query", "LazyRetrievalQueryEngine.query"]
    [draft, answer] = [path(event.span_id) for event in of(LLMChatStartEvent)]
    assert draft == ["Knowing.generate", *query]
    assert answer == ["Knowing.generate", "surerag.synthesize", *query]
    [first, second] = [path(event.span_id) for event in of(RetrievalStartEvent)]
    assert first == ["SummaryTier.retrieve", *query]
    assert second == ["VectorIndexRetriever.retrieve", *query]
    assert path(of(EmbeddingEndEvent)[-1].span_id)[-3:] == ["SummaryTier.retrieve", *query]
    [start], [end] = of(SynthesizeStartEvent), of(SynthesizeEndEvent)
    assert start.query.query_str == UNKNOWN
    assert str(end.response).startswith("In the lake of Mir")


@pytest.mark.parametrize("question", [KNOWN, UNKNOWN])
async def test_a_stream_is_reported_when_it_has_been_read(spans: Any, question: str) -> None:
    counter = TokenCountingHandler(tokenizer=str.split)
    engine = lazy(streaming=True, callback_manager=CallbackManager([counter]))
    EVENTS.clear()
    response = engine.query(question)
    assert not of(SynthesizeEndEvent)
    text = "".join(response.response_gen)
    [end] = of(SynthesizeEndEvent)
    assert str(end.response) == text
    later = await engine.aquery(question)
    assert "".join([piece async for piece in later.response_gen]) == text
    assert len(of(SynthesizeEndEvent)) == 2
    for metadata in (response.metadata, later.metadata):
        assert counter.completion_llm_token_count == 2 * metadata["completion_tokens"]
        assert counter.prompt_llm_token_count == 2 * metadata["prompt_tokens"]
    assert not spans.open_spans


async def test_a_stream_that_nobody_reads_on_leaves_no_span_open(spans: Any) -> None:
    engine = lazy(streaming=True)
    response = engine.query(KNOWN)
    next(response.response_gen)
    response.response_gen.close()
    later = await engine.aquery(KNOWN)
    await anext(later.response_gen)
    await later.response_gen.aclose()
    assert not spans.open_spans


def test_a_call_that_fails_is_dropped_and_the_next_is_heard(spans: Any) -> None:
    def broken(prompt: str) -> str:
        raise ServiceError("down")

    debug = LlamaDebugHandler(print_trace_on_end=False)
    engine = lazy(FakeReader(broken), mode="standard", callback_manager=CallbackManager([debug]))
    with pytest.raises(ServiceError, match="down"):
        engine.query(KNOWN)
    assert not spans.open_spans
    assert "down" in str([span.metadata for span in spans.dropped_spans])
    [[_, end]] = debug.get_llm_inputs_outputs()
    assert isinstance(end.payload["exception"], ServiceError)


@pytest.mark.parametrize("use_async", [False, True])
@pytest.mark.parametrize("part", ["compressor", "refiner"])
async def test_postprocessors_are_rerankers_in_traces(spans: Any, part: str, use_async: bool) -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    reader = Knowing(corpus.answer)
    made: Any = {
        "compressor": lambda: ClusterCompressorPostprocessor(reader, HashingEncoder(), pass_below=0),
        "refiner": lambda: DenseRefinerPostprocessor(reader, HashingEncoder(), ExactEntailer(), top_n=2),
    }[part]()
    engine = RetrieverQueryEngine.from_args(
        corpus.index().as_retriever(similarity_top_k=3),
        node_postprocessors=[made],
        llm=MockLLM(),
        callback_manager=CallbackManager([debug]),
    )
    bundle = QueryBundle(KNOWN)
    EVENTS.clear()
    found = await engine.aretrieve(bundle) if use_async else engine.retrieve(bundle)
    [start], [end] = of(ReRankStartEvent), of(ReRankEndEvent)
    assert (start.query.query_str, len(start.nodes), start.model_name) == (KNOWN, 3, reader.name)
    assert start.top_n == (2 if part == "refiner" else 3)
    assert [node.node_id for node in end.nodes] == [node.node_id for node in found]
    assert type(made).__name__ in start.span_id
    assert start.span_id == end.span_id
    [[_, close]] = debug.get_event_pairs(CBEventType.RERANKING)
    assert close.payload["nodes"] == found


async def test_evaluators_say_what_they_found(spans: Any) -> None:
    reader = Knowing(corpus.answer)
    dense, delta = DenseEvaluator(reader, ExactEntailer()), DeltaSePerEvaluator(reader, ExactEntailer())
    EVENTS.clear()
    results = [
        dense.evaluate(KNOWN, contexts=["a b"]),
        await dense.aevaluate(KNOWN, contexts=["a b"]),
        delta.evaluate(KNOWN, contexts=["a b"], reference="Velm"),
        dense.evaluate(KNOWN),
    ]
    events = of(EvaluationEvent)
    assert [event.evaluator for event in events] == ["dense", "dense", "seper"]
    assert [event.score for event in events] == [result.score for result in results[:3]]
    assert "DenseEvaluator.aevaluate" in events[1].span_id


@pytest.mark.parametrize("question", [KNOWN, UNKNOWN])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_users_own_llm_reports_itself_and_nobody_counts_it_twice(
    spans: Any, streaming: bool, question: str
) -> None:
    with FakeOpenAI() as server:
        counter = TokenCountingHandler(tokenizer=str.split)
        llm = OpenAILike(
            model="toy",
            api_base=server.base_url,
            api_key=KEY,
            is_chat_model=True,
            callback_manager=CallbackManager([counter]),
        )
        engine = lazy(llm, streaming=streaming, threshold=0.0)
        EVENTS.clear()
        answer = str(engine.query(question))
        assert answer
        assert len(of(LLMChatStartEvent)) == 2
        # The draft was broken off, and the LLM says that it ended once its stream is closed.
        assert eventually(lambda: len(of(LLMChatEndEvent)) == len(counter.llm_token_counts) == 2)


@pytest.mark.parametrize("use_async", [False, True])
def test_a_draft_that_is_broken_off_has_ended_before_the_answer_is_there(
    monkeypatch: pytest.MonkeyPatch, use_async: bool
) -> None:
    hang_up, ahang_up = _lent.Line.hang_up, _lent.AsyncLine.hang_up

    def slowly(line: _lent.Line) -> None:
        time.sleep(0.1)
        hang_up(line)

    async def aslowly(line: _lent.AsyncLine) -> None:
        await asyncio.sleep(0.1)
        await ahang_up(line)

    # Closing is another thread's work, or another task's; that one is held up.
    monkeypatch.setattr(_lent.Line, "hang_up", slowly)
    monkeypatch.setattr(_lent.AsyncLine, "hang_up", aslowly)
    with FakeOpenAI() as server:
        counter = TokenCountingHandler(tokenizer=str.split)
        llm = OpenAILike(
            model="toy",
            api_base=server.base_url,
            api_key=KEY,
            is_chat_model=True,
            callback_manager=CallbackManager([counter]),
        )
        engine = lazy(llm, threshold=0.0)
        if use_async:
            asyncio.run(_awaited(engine.aquery(UNKNOWN)))
        else:
            engine.query(UNKNOWN)
        assert len(counter.llm_token_counts) == 2


def test_many_questions_in_one_batch_keep_their_own_traces(spans: Any) -> None:
    reader = embedded_reader()
    world = World(seed=3, size=40)
    engine = lazy(reader)
    EVENTS.clear()
    questions = [question.text for question in world.questions(4)]
    responses = engine.query_many(questions)
    texts = {question: [] for question in questions}
    for event in of(LLMChatStartEvent):
        [asked] = [question for question in questions if question in str(event.messages)]
        texts[asked].append(event)
    for question, response in zip(questions, responses, strict=True):
        assert len(texts[question]) == 1 + response.metadata["retrieve"]
    ends = [event.timestamp for event in of(SynthesizeEndEvent)]
    assert all(earlier <= later for earlier, later in pairwise(ends))
    assert not spans.open_spans


def test_the_first_tier_is_searched_once_and_says_what_it_found(spans: Any) -> None:
    summaries = VectorStoreIndex(corpus.nodes(), embed_model=corpus.HashEmbedding())
    for tier in ({}, {"summaries": summaries}, {"summaries": corpus.documents()}):
        engine = lazy(**tier)
        EVENTS.clear()
        response = engine.query(KNOWN)
        [found] = of(RetrievalEndEvent)
        assert [node.node_id for node in found.nodes] == response.metadata["summary_ids"]
