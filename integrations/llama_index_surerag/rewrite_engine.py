"""DynQR as a LlamaIndex query engine: answers, and rewrites the query when the answer is uncertain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.base.response.schema import RESPONSE_TYPE, Response
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.settings import Settings

from llama_index_surerag.engines import MethodEngine, with_manager
from llama_index_surerag.events import dispatcher
from llama_index_surerag.llm_reader import advising, reader_of
from llama_index_surerag.nodes import nodes_of, passages_of
from llama_index_surerag.prompts import TemplateLike, from_chat_messages
from llama_index_surerag.services import NodeRetriever, bundle_of, retriever_of
from surerag import DynQROptions, DynQRResult, UncertaintyRewriter
from surerag.messages import Passage
from surerag.options import takes
from surerag.readers import Reader
from surerag.services import Entailer


class UncertaintyRewriteQueryEngine(MethodEngine[UncertaintyRewriter, DynQRResult]):
    """Answers; rewrites the query only when the answer is uncertain; returns the less uncertain answer.

    ``response.metadata`` tells how it came about: ``kept``, ``query``, ``uncertainty``, both answers with
    their uncertainties, ``rewritten_query``, ``steps`` (each decision and why), ``retrievals``, ``calls``,
    ``prompt_tokens``, ``completion_tokens``. ``source_nodes`` are what the reader was shown for the answer
    that was kept.

    There is no streaming: before both answers are complete nobody knows which one is kept.

    Build it with :meth:`from_args`.

    Args:
        core: The method with its options and services.
        prompts: Prompts in place of its own, by name: texts or LlamaIndex templates.
        llm: What selector templates choose by.
        callback_manager: Receives LlamaIndex's callbacks.
    """

    def __init__(
        self,
        core: UncertaintyRewriter,
        prompts: Mapping[str, TemplateLike] | None = None,
        llm: object = None,
        *,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        super().__init__(core, prompts, llm, callback_manager)

    @classmethod
    @takes(DynQROptions)
    def from_args(
        cls,
        retriever: BaseRetriever | BaseIndex[Any],
        llm: LLM | Reader | None = None,
        *,
        rewriter: LLM | Reader | None = None,
        entailer: Entailer | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        prompts: Mapping[str, TemplateLike] | None = None,
        callback_manager: CallbackManager | None = None,
        **options: Any,
    ) -> Self:
        """Build an engine from what a pipeline has.

        Args:
            retriever: The pipeline's retriever, or its index.
            llm: The LLM, or a reader of surerag; ``Settings.llm`` if left out.
            rewriter: An LLM or reader that rewrites; the same one if left out.
            entailer: Says which sampled answers mean the same, for the metric ``"disagreement"`` with
                ``same_meaning="entailment"``: an entailer of surerag, such as ``NLIEntailer``.
            node_postprocessors: Applied to retrieved nodes, in order.
            prompts: Replaced prompts, by the names that ``get_prompts`` gives.
            callback_manager: Receives LlamaIndex's callbacks.
            **options: Listed below.

        Raises:
            ConfigurationError: If an option or argument is unknown, of the wrong kind or out of bounds.
            CapabilityError: If the LLM cannot give what the metric needs.
            PromptError: If a replaced prompt is unknown or lacks slots.
        """
        model = Settings.llm if llm is None else llm
        postprocessors = with_manager(node_postprocessors, callback_manager)
        core = rewriter_over(retriever, model, rewriter, entailer, postprocessors, options)
        return cls(core, prompts, model, callback_manager=callback_manager)

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return what the answer that is kept is given from; the whole method is run for it."""
        return self._answered(bundle_of(query_bundle)).source_nodes

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Like ``retrieve``."""
        return (await self._aanswered(bundle_of(query_bundle))).source_nodes

    @dispatcher.span
    def query_in_conversation(self, query: QueryType, chat_history: Sequence[ChatMessage]) -> Response:
        """Answer a query that leans on a conversation; its rewrite stands alone."""
        with self.callback_manager.as_trace("query"):
            answered = self._answered(bundle_of(query), from_chat_messages(list(chat_history)))
        return cast("Response", answered)

    @dispatcher.span
    async def aquery_in_conversation(self, query: QueryType, chat_history: Sequence[ChatMessage]) -> Response:
        """Like ``query_in_conversation``, without blocking the event loop."""
        with self.callback_manager.as_trace("query"):
            answered = await self._aanswered(bundle_of(query), from_chat_messages(list(chat_history)))
        return cast("Response", answered)

    def _response(self, result: DynQRResult) -> RESPONSE_TYPE:
        return Response(result.answer, nodes_of(result.passages), {**result.to_dict(), **result.spent_dict()})

    def _from_nodes(self, bundle: QueryBundle, nodes: Sequence[NodeWithScore]) -> RESPONSE_TYPE:
        return self._over(nodes)._answered(bundle)

    async def _afrom_nodes(self, bundle: QueryBundle, nodes: Sequence[NodeWithScore]) -> RESPONSE_TYPE:
        return await self._over(nodes)._aanswered(bundle)

    def _over(self, nodes: Sequence[NodeWithScore]) -> UncertaintyRewriteQueryEngine:
        """Return this engine over given nodes, never to rewrite."""
        given = _Given(passages_of(nodes))
        core = self._core.with_options(retriever=given, top_n=None, threshold=float("inf"))
        return type(self)(core, self._given, self._llm, callback_manager=self.callback_manager)


def rewriter_over(
    retriever: BaseRetriever | BaseIndex[Any],
    llm: LLM | Reader,
    rewriter: LLM | Reader | None,
    entailer: Entailer | None,
    postprocessors: Sequence[BaseNodePostprocessor],
    options: Mapping[str, Any],
) -> UncertaintyRewriter:
    """Return the method over a pipeline's retriever and LLMs."""
    wanted = DynQROptions(**options)
    with advising(llm):
        return UncertaintyRewriter(
            reader_of(llm),
            NodeRetriever(retriever_of(retriever, wanted.rules.top_n), postprocessors),
            None if rewriter is None or rewriter is llm else reader_of(rewriter),
            entailer,
            **options,
        )


class _Given:
    """Finds what it was given, whatever it is asked."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:  # the protocol's signature
        return self._passages[:k]
