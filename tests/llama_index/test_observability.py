"""Spans, events and callbacks nest under the query."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation.events.query import QueryEndEvent, QueryStartEvent
from llama_index.core.instrumentation.events.retrieval import RetrievalEndEvent
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_surerag import GateDecisionEvent, LazyRetrievalQueryEngine, ProgressEvent
from tests.llama_index import corpus
from tests.llama_index.corpus import KNOWN, UNKNOWN, Knowing
from tests.llama_index.watching import EVENTS


def engine(**settings: Any) -> LazyRetrievalQueryEngine:
    return LazyRetrievalQueryEngine.from_args(
        corpus.index(), Knowing(corpus.answer), top_n=1, n_summaries=1, **settings
    )


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("question", [KNOWN, UNKNOWN])
async def test_events_tell_the_decision_within_the_query(
    spans: SimpleSpanHandler, question: str, streaming: bool
) -> None:
    lazy = engine(streaming=streaming)
    for ask in (lambda: lazy.query(question), lambda: lazy.aquery(question)):
        EVENTS.clear()
        answer = ask()
        response = await answer if hasattr(answer, "__await__") else answer
        kinds = [type(event) for event in EVENTS]
        assert kinds.index(QueryStartEvent) < kinds.index(GateDecisionEvent) < kinds.index(QueryEndEvent)
        # The search among the summaries is one, too.
        assert kinds.count(RetrievalEndEvent) == 1 + (question == UNKNOWN)
        [gate] = [event for event in EVENTS if isinstance(event, GateDecisionEvent)]
        assert (gate.question, gate.retrieve) == (question, question == UNKNOWN)
        assert gate.signal == response.metadata["signal"]
        decided = next(span for span in spans.completed_spans if span.id_ == gate.span_id)
        assert decided.id_.startswith("LazyRAG.gate-")
        assert "._query" in decided.parent_id or "._aquery" in decided.parent_id


async def test_spans_nest(spans: SimpleSpanHandler) -> None:
    lazy = engine()
    lazy.query(UNKNOWN)
    await lazy.aquery(UNKNOWN)
    assert not spans.open_spans
    parents = {span.id_.split("-")[0]: span.parent_id for span in spans.completed_spans}
    for inner, outer in (
        ("LazyRetrievalQueryEngine._query", "LazyRetrievalQueryEngine.query"),
        ("VectorIndexRetriever.retrieve", "LazyRetrievalQueryEngine._query"),
        ("VectorIndexRetriever.aretrieve", "LazyRetrievalQueryEngine._aquery"),
    ):
        found = next(parent for name, parent in parents.items() if name.endswith(inner))
        assert outer in found


def test_callbacks_get_query_and_retrieve() -> None:
    debug = LlamaDebugHandler(print_trace_on_end=False)
    manager = CallbackManager([debug])
    index = corpus.index()
    retriever = index.as_retriever(similarity_top_k=1)
    retriever.callback_manager = manager
    lazy = LazyRetrievalQueryEngine.from_args(
        retriever,
        Knowing(corpus.answer),
        n_summaries=1,
        summaries=corpus.documents(),
        embed_model=corpus.HashEmbedding(),
        callback_manager=manager,
    )
    response = lazy.query(UNKNOWN)
    [[_, end]] = debug.get_event_pairs(CBEventType.QUERY)
    assert end.payload["response"] is response
    [_, [_, found]] = debug.get_event_pairs(CBEventType.RETRIEVE)
    assert [node.node_id for node in found.payload["nodes"]] == response.metadata["passage_ids"]
    assert lazy.callback_manager is manager


class Nothing(BaseRetriever):
    """Finds nothing."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return []


def test_a_fallback_is_an_event_and_a_warning(
    spans: SimpleSpanHandler, caplog: pytest.LogCaptureFixture
) -> None:
    lazy = LazyRetrievalQueryEngine.from_args(Nothing(), Knowing(corpus.answer), summaries="Nothing known.")
    with caplog.at_level(logging.WARNING, logger="surerag"):
        lazy.query(UNKNOWN)
    [event] = [event for event in EVENTS if isinstance(event, ProgressEvent) and event.warning]
    assert event.name == "lazy_rag.nothing_retrieved"
    assert "nothing_retrieved" in caplog.text
