"""L-RAG as a LlamaIndex query engine: answer from a summary, retrieve only when the reader is unsure."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import asdict
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
from llama_index.core.settings import Settings

from llama_index_surerag.engines import MethodEngine, with_manager
from llama_index_surerag.events import dispatch
from llama_index_surerag.llm_reader import advising, reader_of
from llama_index_surerag.nodes import nodes_of, passages_of
from llama_index_surerag.prompts import TemplateLike
from llama_index_surerag.services import NodeRetriever, bundle_of, retriever_of
from llama_index_surerag.summaries import Summarize, SummarySource, tier_one
from surerag import GateDecision, LazyRAG, LazyRAGOptions, LazyRAGPlan, LazyRAGResult, astream, stream
from surerag.drivers import AnswerStream, AsyncAnswerStream
from surerag.errors import ConfigurationError
from surerag.messages import Passage
from surerag.options import takes
from surerag.readers import Reader
from surerag.retrieval.index import MAX_IN_MEMORY
from surerag.services import Entailer


class LazyRetrievalQueryEngine(MethodEngine[LazyRAG, LazyRAGResult]):
    """Answers from document summaries, and retrieves only when a gate says that its reader is unsure.

    ``response.metadata`` holds the decision (``retrieve``, ``reason``, ``gate``, ``signal``, ``unit``,
    ``lower``, ``upper``, ``exact``, ``threshold``, and what it cost: ``calls``, ``tokens``), ``mode``,
    ``prompt_tokens``, ``completion_tokens``, ``retrievals`` and ``timings``; ``summary_ids`` and
    ``passage_ids`` tell the two kinds of ``source_nodes`` apart.
    ``source_nodes`` are what the reader was shown for its answer: the summaries where the gate stayed
    shut; the retrieved nodes and then the summaries where it opened. When streaming, the decision is
    there before the first word; tokens and timings come when the stream has been read.

    Build it with :meth:`from_args`.

    Args:
        core: The method with its options and services.
        prompts: Prompts in place of its own, by name: texts or LlamaIndex templates.
        llm: What selector templates choose by.
        streaming: Whether ``query`` returns a stream.
        callback_manager: Receives LlamaIndex's callbacks.
    """

    def __init__(
        self,
        core: LazyRAG,
        prompts: Mapping[str, TemplateLike] | None = None,
        llm: object = None,
        *,
        streaming: bool = False,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        super().__init__(core, prompts, llm, callback_manager)
        self._streaming = streaming

    @classmethod
    @takes(LazyRAGOptions)
    def from_args(
        cls,
        retriever: BaseRetriever | BaseIndex[Any] | None,
        llm: LLM | Reader | None = None,
        *,
        summaries: SummarySource | None = None,
        summarize: Summarize | LLM = None,
        embed_model: BaseEmbedding | None = None,
        max_summaries: int = MAX_IN_MEMORY,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        entailer: Entailer | None = None,
        streaming: bool = False,
        prompts: Mapping[str, TemplateLike] | None = None,
        callback_manager: CallbackManager | None = None,
        **options: Any,
    ) -> Self:
        """Build an engine from what a pipeline has.

        Args:
            retriever: The pipeline's retriever, or its index; None in mode ``"none"``.
            llm: The LLM, or a reader of surerag; ``Settings.llm`` if left out.
            summaries: Tier 1, see :func:`llama_index_surerag.summaries.summaries_of`. Left out, the
                documents in the docstore of the index (or of its retriever) are summarized, and tier 1
                follows the index from then on. Given, they are yours to keep up to date; what is deleted
                from the index is not found among them either. An index whose vector store keeps the texts
                itself (Chroma, Qdrant, …) tells neither: there, take deleted documents out of your summaries.
            summarize: How to summarize documents: a number of lead sentences, a metadata key, a
                function, or an LLM (or reader) that writes each summary once; default two sentences.
            embed_model: Searches summaries; the index's own or ``Settings.embed_model`` if left out.
            max_summaries: More summaries of the index' documents are not kept in memory, but refused.
            node_postprocessors: Applied to retrieved nodes, in order.
            entailer: Says which sampled answers mean the same, for a gate with
                ``same_meaning="entailment"``: an entailer of surerag, such as ``NLIEntailer``.
            streaming: Whether ``query`` returns a stream.
            prompts: Replaced prompts, by the names that ``get_prompts`` gives.
            callback_manager: Receives LlamaIndex's callbacks.
            **options: Listed below. Mode ``"oracle"`` is not for engines: see :meth:`synthesize`.

        Raises:
            ConfigurationError: If an option or argument is unknown, of the wrong kind or out of bounds.
            MissingServiceError: If the mode needs a retriever or summaries that are not there.
            CapabilityError: If the gate needs log-probabilities that the LLM cannot give.
            InputError: If there is nothing to summarize.
            PromptError: If a replaced prompt is unknown or lacks slots.
        """
        wanted = LazyRAGOptions(**options)
        if wanted.mode == "oracle":
            raise ConfigurationError(
                'an engine has no mode "oracle"', hint="give gold passages to synthesize, in any mode"
            )
        model = Settings.llm if llm is None else llm
        postprocessors = with_manager(node_postprocessors, callback_manager)
        with advising(model):
            core = LazyRAG(
                reader_of(model),
                None
                if retriever is None
                else NodeRetriever(retriever_of(retriever, wanted.rules.top_n), postprocessors),
                tier_one(retriever, wanted, summaries, summarize, embed_model, max_summaries),
                entailer,
                **options,
            )
        return cls(core, prompts, model, streaming=streaming, callback_manager=callback_manager)

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return what tier 2 finds, postprocessed, ``top_n`` at most, whatever the gate would say."""
        return self._tier_two().nodes(bundle_of(query_bundle), self._core.rules.top_n)

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Like ``retrieve``."""
        return await self._tier_two().anodes(bundle_of(query_bundle), self._core.rules.top_n)

    def to_dict(self) -> dict[str, Any]:
        """Return options, prompts and the reader's identity as plain values; no key is in it."""
        return {**super().to_dict(), "streaming": self._streaming}

    def _answered(self, bundle: QueryBundle, *case: Any) -> RESPONSE_TYPE:
        if not self._streaming:
            return super()._answered(bundle, *case)
        program = self._core.program(bundle.query_str, *case)
        return self._flowing(
            stream(self._observed(program, bundle), self._services(bundle), on_event=dispatch)
        )

    async def _aanswered(self, bundle: QueryBundle, *case: Any) -> RESPONSE_TYPE:
        if not self._streaming:
            return await super()._aanswered(bundle, *case)
        program = self._core.program(bundle.query_str, *case)
        return self._aflowing(
            await astream(self._observed(program, bundle), self._services(bundle), on_event=dispatch)
        )

    def _from_nodes(self, bundle: QueryBundle, nodes: Sequence[NodeWithScore]) -> RESPONSE_TYPE:
        return self._given_gold()._answered(bundle, passages_of(nodes))

    async def _afrom_nodes(self, bundle: QueryBundle, nodes: Sequence[NodeWithScore]) -> RESPONSE_TYPE:
        return await self._given_gold()._aanswered(bundle, passages_of(nodes))

    def _given_gold(self) -> LazyRetrievalQueryEngine:
        """Return this engine for answers from given passages."""
        core = self._core.with_options(mode="oracle")
        manager = self.callback_manager
        return type(self)(core, self._given, self._llm, streaming=self._streaming, callback_manager=manager)

    def _tier_two(self) -> NodeRetriever:
        retriever = self._core.retriever
        if not isinstance(retriever, NodeRetriever):
            raise ConfigurationError("this engine has no retriever", hint="pass one to from_args")
        return retriever

    def _response(self, result: LazyRAGResult) -> RESPONSE_TYPE:
        told = _metadata(result.decision, result.mode, result.passages, result.summaries)
        return Response(
            result.answer,
            source_nodes=nodes_of([*result.passages, *result.summaries]),
            metadata={**told, **_costs(result)},
        )

    def _flowing(self, answer: AnswerStream[LazyRAGResult]) -> StreamingResponse:
        """Return an answer that flows; what it cost is in its metadata once it has been read."""
        nodes, metadata = self._announced(answer.announced)

        def pieces() -> Generator[str]:
            with answer:
                yield from answer
            metadata.update(_costs(answer.result))

        return StreamingResponse(pieces(), source_nodes=nodes, metadata=metadata)

    def _aflowing(self, answer: AsyncAnswerStream[LazyRAGResult]) -> AsyncStreamingResponse:
        nodes, metadata = self._announced(answer.announced)

        async def pieces() -> AsyncGenerator[str]:
            async with answer:
                async for piece in answer:
                    yield piece
            metadata.update(_costs(answer.result))

        return AsyncStreamingResponse(pieces(), source_nodes=nodes, metadata=metadata)

    def _announced(self, plan: LazyRAGPlan) -> tuple[list[NodeWithScore], dict[str, Any]]:
        nodes = nodes_of([*plan.passages, *plan.summaries])
        return nodes, _metadata(plan.decision, self._core.mode, plan.passages, plan.summaries)


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
        "cached_tokens": result.cached_tokens,
        "completion_tokens": result.completion_tokens,
        "retrievals": result.retrievals,
        "out_of_calls": result.out_of_calls,
        "abstained": result.abstained,
        "timings": dict(result.timings),
        **result.spent_dict(),
    }
