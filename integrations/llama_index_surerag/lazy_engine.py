"""L-RAG as a LlamaIndex query engine: answer from summaries, retrieve only when the reader is unsure."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import Any, Self

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_surerag.engines import MethodEngine, answer_metadata, with_manager
from llama_index_surerag.events import dispatch
from llama_index_surerag.llm import explained, reader_of
from llama_index_surerag.nodes import nodes_of
from llama_index_surerag.prompts import as_templates
from llama_index_surerag.services import NodeRetriever, retriever_of
from llama_index_surerag.summaries import SummarySource, tier_one
from surerag import GateDecision, LazyRAG, LazyRAGOptions, LazyRAGPlan, LazyRAGResult
from surerag.drivers import AnswerStream, AsyncAnswerStream, astream, stream
from surerag.messages import Passage
from surerag.readers import Reader


class LazyRetrievalQueryEngine(MethodEngine[LazyRAG, LazyRAGResult]):
    """Answers from document summaries, and retrieves only when a gate says that its reader is unsure.

    ``response.metadata`` holds the decision (``retrieve``, ``reason``, ``gate``, ``score``, ``interval``,
    ``threshold``), ``passage_ids`` and ``summary_ids``, how the answer ended (``finish``: ``"stop"``,
    ``"length"``, ``"content_filter"`` or ``"empty"``), and what it cost. ``source_nodes`` are what the reader
    was shown for its answer: the retrieved nodes, if the gate opened, and the summaries. When streaming, the
    decision is there before the first word; ``finish`` and costs come when the stream has been read.

    Build it with :meth:`from_args`.
    """

    @classmethod
    def from_args(
        cls,
        retriever: BaseRetriever | BaseIndex[Any],
        llm: LLM | Reader | None = None,
        *,
        summaries: SummarySource | None = None,
        embed_model: BaseEmbedding | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
        **options: Any,
    ) -> Self:
        """Build an engine from what a pipeline has.

        Args:
            retriever: The pipeline's index, or a retriever of it.
            llm: The LLM, or a reader of surerag; ``Settings.llm`` if left out.
            summaries: Tier 1: an index of summaries (:func:`llama_index_surerag.summary_index`), a retriever
                of such an index, or the summary of the only document as text. An index gets the filters
                of the ``retriever``. Left out, the first sentences of the documents in the index are taken;
                where ``retriever`` is a retriever it cannot be left out.
            embed_model: Embeds summaries where they are left out; the index's own if None.
            node_postprocessors: Applied to retrieved nodes, in order.
            streaming: Whether ``query`` returns a stream.
            callback_manager: Receives LlamaIndex's callbacks.
            **options: Those of :class:`surerag.LazyRAGOptions`; prompts may be LlamaIndex templates.

        Raises:
            ConfigurationError: If an option or argument is unknown, of the wrong kind or out of bounds, or
                summaries might be shown of documents that the retriever excludes.
            CapabilityError: If the gate needs log-probabilities that the LLM does not return.
            PromptError: If a replaced prompt is unknown or lacks slots.
        """
        if isinstance(options.get("prompts"), Mapping):
            options["prompts"] = as_templates(options["prompts"], llm)
        checked = LazyRAGOptions(**options)
        reader = reader_of(llm)
        postprocessors = with_manager(node_postprocessors, callback_manager)
        nodes = NodeRetriever(retriever_of(retriever, checked.top_n), postprocessors)
        tier = tier_one(retriever, summaries, checked.n_summaries, embed_model)
        with explained(reader):
            core = LazyRAG(reader, nodes, tier, **options)
        return cls(core, streaming=streaming, callback_manager=callback_manager)

    def _answered(self, bundle: QueryBundle) -> RESPONSE_TYPE:
        if not self._streaming:
            return super()._answered(bundle)
        services = self._scope(bundle).services
        return self._streamed(stream(self._program(bundle), services, on_event=dispatch))

    async def _aanswered(self, bundle: QueryBundle) -> RESPONSE_TYPE:
        if not self._streaming:
            return await super()._aanswered(bundle)
        services = self._scope(bundle).services
        return self._astreamed(await astream(self._program(bundle), services, on_event=dispatch))

    def _response(self, result: LazyRAGResult) -> RESPONSE_TYPE:
        return Response(
            result.answer,
            source_nodes=nodes_of([*result.passages, *result.summaries]),
            metadata={**_decided(result.decision, result.passages, result.summaries), **_ended(result)},
        )

    def _streamed(self, answer: AnswerStream[LazyRAGResult]) -> StreamingResponse:
        nodes, metadata = _announced(answer.announced)

        def pieces() -> Generator[str]:
            with answer:
                yield from answer
            metadata.update(_ended(answer.result))

        return StreamingResponse(pieces(), source_nodes=nodes, metadata=metadata)

    def _astreamed(self, answer: AsyncAnswerStream[LazyRAGResult]) -> AsyncStreamingResponse:
        nodes, metadata = _announced(answer.announced)

        async def pieces() -> AsyncGenerator[str]:
            async with answer:
                async for piece in answer:
                    yield piece
            metadata.update(_ended(answer.result))

        return AsyncStreamingResponse(pieces(), source_nodes=nodes, metadata=metadata)


def _announced(plan: LazyRAGPlan) -> tuple[list[NodeWithScore], dict[str, Any]]:
    nodes = nodes_of([*plan.passages, *plan.summaries])
    return nodes, _decided(plan.decision, plan.passages, plan.summaries)


def _decided(
    decision: GateDecision, passages: Sequence[Passage], summaries: Sequence[Passage]
) -> dict[str, Any]:
    return {
        **decision.to_dict(),
        "passage_ids": [passage.id for passage in passages],
        "summary_ids": [summary.id for summary in summaries],
    }


def _ended(result: LazyRAGResult) -> dict[str, Any]:
    return {**answer_metadata(result.generation, result.usage), "abstained": result.abstained}
