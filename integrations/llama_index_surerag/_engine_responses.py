"""What a lazy query engine returns: LlamaIndex's responses, whole or flowing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import asdict
from typing import Any

from llama_index.core.base.response.schema import AsyncStreamingResponse, Response, StreamingResponse
from llama_index.core.schema import NodeWithScore

from llama_index_surerag.nodes import nodes_of
from surerag import LazyRAG
from surerag.drivers import AnswerStream, AsyncAnswerStream
from surerag.methods.gating import GateDecision
from surerag.methods.lazy_rag import LazyRAGPlan, LazyRAGResult
from surerag.types import Passage


def _metadata(
    decision: GateDecision, mode: str, passages: Sequence[Passage], summaries: Sequence[Passage]
) -> dict[str, Any]:
    return {
        **asdict(decision),
        "mode": mode,
        "passage_ids": [passage.id for passage in passages],
        "summary_ids": [summary.id for summary in summaries],
    }


def _costs(result: LazyRAGResult) -> dict[str, Any]:
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "retrievals": result.retrievals,
        "timings": dict(result.timings),
    }


def response_of(result: LazyRAGResult, more: Sequence[NodeWithScore] | None = None) -> Response:
    """Return an answer with its sources, its decision and what it cost."""
    metadata = _metadata(result.decision, result.mode, result.passages, result.summaries) | _costs(result)
    nodes = nodes_of([*result.passages, *result.summaries])
    return Response(result.answer, source_nodes=[*nodes, *(more or ())], metadata=metadata)


def _announced(
    answer: AnswerStream[LazyRAGResult] | AsyncAnswerStream[LazyRAGResult],
    rag: LazyRAG,
    more: Sequence[NodeWithScore] | None,
) -> tuple[list[NodeWithScore], dict[str, Any]]:
    plan: LazyRAGPlan = answer.announced
    nodes = nodes_of([*plan.passages, *plan.summaries])
    return [*nodes, *(more or ())], _metadata(plan.decision, rag.mode, plan.passages, plan.summaries)


def streaming_response(
    answer: AnswerStream[LazyRAGResult], rag: LazyRAG, more: Sequence[NodeWithScore] | None = None
) -> StreamingResponse:
    """Return an answer that flows; what it cost is in its metadata once it has been read."""
    nodes, metadata = _announced(answer, rag, more)

    def pieces() -> Generator[str]:
        with answer:
            yield from answer
        metadata.update(_costs(answer.result))

    return StreamingResponse(pieces(), source_nodes=nodes, metadata=metadata)


def astreaming_response(
    answer: AsyncAnswerStream[LazyRAGResult], rag: LazyRAG, more: Sequence[NodeWithScore] | None = None
) -> AsyncStreamingResponse:
    """Like :func:`streaming_response`, for an answer that flows in an event loop."""
    nodes, metadata = _announced(answer, rag, more)

    async def pieces() -> AsyncGenerator[str]:
        async with answer:
            async for piece in answer:
                yield piece
        metadata.update(_costs(answer.result))

    return AsyncStreamingResponse(pieces(), source_nodes=nodes, metadata=metadata)
