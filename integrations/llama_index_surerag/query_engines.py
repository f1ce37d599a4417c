"""Query engines: L-RAG, DynQR, and one that abstains where a calibrated policy tells it to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import ChatMessage
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
from llama_index.core.prompts.mixin import PromptMixinType
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.settings import Settings

from llama_index_surerag.engines import (
    MethodEngine,
    answer_metadata,
    aread_to_end,
    read_to_end,
    with_manager,
)
from llama_index_surerag.events import dispatch
from llama_index_surerag.llm import explained, reader_of
from llama_index_surerag.nodes import nodes_of
from llama_index_surerag.pickles import Shareable
from llama_index_surerag.prompts import as_templates, from_chat_messages
from llama_index_surerag.rewriting import rewriter_over
from llama_index_surerag.services import NodeRetriever, bundle_of, retriever_of
from llama_index_surerag.summaries import SummarySource, tier_one
from surerag import (
    DynQRResult,
    LazyRAG,
    LazyRAGOptions,
    LazyRAGPlan,
    LazyRAGResult,
    UncertaintyRewriter,
)
from surerag.calibration import AbstentionPolicy
from surerag.drivers import astream, stream
from surerag.effects import Program
from surerag.errors import InputError
from surerag.messages import Message
from surerag.readers import Reader
from surerag.text import ABSTENTION, check_abstention


class LazyRetrievalQueryEngine(MethodEngine[LazyRAG, LazyRAGResult]):
    """Answers from document summaries, and retrieves only when a gate says that its reader is unsure.

    ``response.metadata`` holds the decision (``retrieve``, ``reason``, ``gate``, ``score``, ``interval``,
    ``threshold``), ``passage_ids`` and ``summary_ids``, how the answer ended (``finish``: ``"stop"``,
    ``"length"``, ``"content_filter"`` or ``"empty"``), and what it cost. ``source_nodes`` are what the reader
    was shown for its answer: the retrieved nodes, if the gate opened, and the summaries. When streaming, the
    decision is there before the first word; ``finish`` and costs come when the stream has been read.

    Build it with :meth:`from_args`.
    """

    SIGNAL = "score"

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

    def _answered(self, bundle: QueryBundle, program: Program[LazyRAGResult]) -> RESPONSE_TYPE:
        if not self._streaming:
            return super()._answered(bundle, program)
        answer = stream(program, self._services(bundle), on_event=dispatch)
        nodes, metadata = _decided(answer.announced)

        def pieces() -> Generator[str]:
            with answer:
                yield from answer
            metadata.update(_ended(answer.result))

        return StreamingResponse(pieces(), source_nodes=nodes, metadata=metadata)

    async def _aanswered(self, bundle: QueryBundle, program: Program[LazyRAGResult]) -> RESPONSE_TYPE:
        if not self._streaming:
            return await super()._aanswered(bundle, program)
        answer = await astream(program, self._services(bundle), on_event=dispatch)
        nodes, metadata = _decided(answer.announced)

        async def pieces() -> AsyncGenerator[str]:
            async with answer:
                async for piece in answer:
                    yield piece
            metadata.update(_ended(answer.result))

        return AsyncStreamingResponse(pieces(), source_nodes=nodes, metadata=metadata)

    def _response(self, result: LazyRAGResult) -> Response:
        nodes, metadata = _decided(result)
        return Response(result.answer, source_nodes=nodes, metadata={**metadata, **_ended(result)})


def _decided(plan: LazyRAGPlan | LazyRAGResult) -> tuple[list[NodeWithScore], dict[str, Any]]:
    """Return the nodes that the reader is shown, and the decision with their ids."""
    return nodes_of([*plan.passages, *plan.summaries]), {
        **plan.decision.to_dict(),
        "passage_ids": [passage.id for passage in plan.passages],
        "summary_ids": [summary.id for summary in plan.summaries],
    }


def _ended(result: LazyRAGResult) -> dict[str, Any]:
    return {**answer_metadata(result.generation, result.usage), "abstained": result.abstained}


class UncertaintyRewriteQueryEngine(MethodEngine[UncertaintyRewriter, DynQRResult]):
    """Answers; rewrites the query only when the answer is uncertain; returns the less uncertain answer.

    ``response.metadata`` holds how it came about: ``query``, ``uncertainty``, ``original_answer`` and
    ``original_uncertainty``, ``acted``, ``rewritten``, ``candidates``, ``reason``, ``finish``, and what it
    cost. ``source_nodes`` are what the reader was shown for the answer that is returned.

    There is no streaming: before both answers are complete it is not decided which one is returned. Before
    an engine of your own, take an ``UncertaintyRewriteRetriever``.

    Build it with :meth:`from_args`.
    """

    SIGNAL = "uncertainty"

    @classmethod
    def from_args(
        cls,
        retriever: BaseRetriever | BaseIndex[Any],
        llm: LLM | Reader | None = None,
        *,
        rewriter: LLM | Reader | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        callback_manager: CallbackManager | None = None,
        **options: Any,
    ) -> Self:
        """Build an engine from what a pipeline has.

        Args:
            retriever: The pipeline's retriever, or its index.
            llm: The LLM, or a reader of surerag; ``Settings.llm`` if left out.
            rewriter: An LLM or reader that rewrites; the same one if left out.
            node_postprocessors: Applied to retrieved nodes, in order.
            callback_manager: Receives LlamaIndex's callbacks.
            **options: Those of :class:`surerag.DynQROptions`; prompts may be LlamaIndex templates.

        Raises:
            ConfigurationError: If an option or argument is unknown, of the wrong kind or out of bounds.
            CapabilityError: If the LLM does not return what the metric needs.
            PromptError: If a replaced prompt is unknown or lacks slots.
        """
        core = rewriter_over(retriever, llm, rewriter, node_postprocessors, callback_manager, options)
        return cls(core, callback_manager=callback_manager)

    def query_in_conversation(self, query: QueryType, chat_history: Sequence[ChatMessage]) -> RESPONSE_TYPE:
        """Answer a query that leans on a conversation; its rewrite stands alone."""
        return self.query(_in_conversation(query, chat_history))

    async def aquery_in_conversation(
        self, query: QueryType, chat_history: Sequence[ChatMessage]
    ) -> RESPONSE_TYPE:
        """Like ``query_in_conversation``."""
        return await self.aquery(_in_conversation(query, chat_history))

    def _program(self, bundle: QueryBundle) -> Program[DynQRResult]:
        history = bundle.history if isinstance(bundle, _ConversationQuery) else ()
        program: Program[DynQRResult] = self._core.program(bundle.query_str, history)
        return program

    def _response(self, result: DynQRResult) -> Response:
        costs = answer_metadata(result.chosen.generation, result.usage)
        return Response(
            result.answer,
            source_nodes=nodes_of(result.passages),
            metadata={**result.to_dict(), **costs},
        )


@dataclass
class _ConversationQuery(QueryBundle):
    """A query, and the conversation before it."""

    history: tuple[Message, ...] = ()


def _in_conversation(query: QueryType, chat_history: Sequence[ChatMessage]) -> _ConversationQuery:
    history = from_chat_messages(list(chat_history))
    bundle = bundle_of(query)
    return _ConversationQuery(
        bundle.query_str, bundle.image_path, bundle.custom_embedding_strs, bundle.embedding, history
    )


SIGNALS = (LazyRetrievalQueryEngine.SIGNAL, UncertaintyRewriteQueryEngine.SIGNAL)


class AbstainingQueryEngine(Shareable, BaseQueryEngine):
    """Returns another engine's answer only where its uncertainty is within the policy.

    ``response.metadata`` gains ``abstained``, and ``probability`` (that the answer is right). A withheld
    answer is nowhere in the response; source nodes stay. A streamed answer is read to its end first, since an
    empty or cut answer is withheld too.

    Args:
        engine: A ``LazyRetrievalQueryEngine`` or an ``UncertaintyRewriteQueryEngine``.
        policy: From :func:`surerag.calibrate_abstention`, on that engine's ``core``.
        abstention: Text in the place of an answer.
        callback_manager: Receives LlamaIndex's callbacks.

    Raises:
        ConfigurationError: If the abstention is empty, or the policy was calibrated for another reader, gate,
            retriever or prompt.
    """

    def __init__(
        self,
        engine: BaseQueryEngine,
        policy: AbstentionPolicy,
        *,
        abstention: str = ABSTENTION,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        check_abstention(abstention)
        if isinstance(engine, MethodEngine):
            policy.check(engine.core)
        super().__init__(callback_manager=callback_manager or Settings.callback_manager)
        self._engine = engine
        self._policy = policy
        self._abstention = abstention

    def _get_prompt_modules(self) -> PromptMixinType:
        return {"engine": self._engine}

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return self._selected(read_to_end(self._engine.query(query_bundle)))

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        return self._selected(await aread_to_end(await self._engine.aquery(query_bundle)))

    def _selected(self, response: Any) -> Response:
        metadata: dict[str, Any] = dict(response.metadata or {})
        name = next((key for key in SIGNALS if key in metadata), None)
        if name is None:
            raise InputError(
                f"the response has no {' or '.join(SIGNALS)} in its metadata",
                hint="wrap a LazyRetrievalQueryEngine or an UncertaintyRewriteQueryEngine",
            )
        whole = metadata.get("finish", "stop") == "stop"
        uncertainty = metadata[name] if whole else None
        selected = self._policy.select(str(response), uncertainty, self._abstention)
        metadata |= {"abstained": selected.abstained, "probability": selected.probability}
        metadata.pop("original_answer", None)
        return Response(selected.text, source_nodes=response.source_nodes, metadata=metadata)
