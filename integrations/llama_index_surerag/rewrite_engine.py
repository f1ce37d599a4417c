"""DynQR in LlamaIndex as a query engine: answers, and rewrites the query when the answer is uncertain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.base.response.schema import RESPONSE_TYPE, Response
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.callbacks.schema import CBEventType, EventPayload
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.schema import NodeWithScore, QueryBundle, QueryType
from llama_index.core.settings import Settings

from llama_index_surerag._rewrite_prompts import RewritePromptSet
from llama_index_surerag._rewriting import (
    Rewriting,
    bundle_of,
    history_of,
    loaded,
    prompts_of,
    rewriter_of,
    shown,
)
from llama_index_surerag.events import dispatch, dispatcher
from llama_index_surerag.nodes import nodes_of, passages_of
from surerag import UncertaintyRewriter, run_many
from surerag.methods.uncertainty_types import RewriteResult
from surerag.readers import Reader
from surerag.types import Passage


class UncertaintyRewriteQueryEngine(Rewriting, BaseQueryEngine):
    """Answers; rewrites the query only when the answer is uncertain; returns the less uncertain answer.

    ``response.metadata`` tells how it came about: ``kept``, ``query``, ``uncertainty``, both answers with
    their uncertainties, ``rewritten_query``, ``steps`` (each decision and why), ``retrievals``, ``calls``,
    ``prompt_tokens``, ``completion_tokens``. ``source_nodes`` are what the reader was shown for the answer
    that was kept.

    There is no streaming: before both answers are complete nobody knows which one is kept.

    Build it with :meth:`from_args`.

    Args:
        rewriter: The method with its settings and services.
        prompts: Its prompts.
        callback_manager: Receives LlamaIndex's callbacks.
    """

    def __init__(
        self,
        rewriter: UncertaintyRewriter,
        prompts: RewritePromptSet,
        *,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        Rewriting.__init__(self, rewriter, prompts)
        BaseQueryEngine.__init__(self, callback_manager=callback_manager or Settings.callback_manager)

    @classmethod
    def from_args(
        cls,
        retriever: BaseRetriever | BaseIndex[Any],
        llm: LLM | Reader | None = None,
        *,
        rewriter: LLM | Reader | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
        prompts: Mapping[str, BasePromptTemplate | str] | None = None,
        callback_manager: CallbackManager | None = None,
        **settings: Any,
    ) -> Self:
        """Build an engine from what a pipeline has.

        Args:
            retriever: The pipeline's retriever, or its index.
            llm: The LLM, or a reader of surerag; ``Settings.llm`` if left out.
            rewriter: An LLM or reader that rewrites; the same one if left out.
            node_postprocessors: Applied to retrieved nodes, in order.
            prompts: Replaced prompts, by the names that ``get_prompts`` gives.
            callback_manager: Receives LlamaIndex's callbacks.
            **settings: Of :class:`surerag.UncertaintyRewriter`: ``theta``, ``metric``, ``documents``,
                ``candidates`` … ``k`` is by default what the retriever gives, ``max_tokens`` the LLM's own
                limit, or 256 if it has none.

        Raises:
            ConfigurationError: If a setting or argument is of the wrong kind or out of range.
            CapabilityError: If the LLM cannot give what the metric needs.
            PromptError: If a replaced prompt is unknown or lacks slots.
        """
        manager = callback_manager or Settings.callback_manager
        for postprocessor in node_postprocessors:
            postprocessor.callback_manager = manager
        core = rewriter_of(retriever, llm, rewriter, node_postprocessors, settings)
        return cls(core, prompts_of(llm, prompts), callback_manager=manager)

    def __repr__(self) -> str:
        return f"UncertaintyRewriteQueryEngine({shown(self._rewriter)})"

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return what the answer that is kept is given from; the whole method is run for it."""
        return nodes_of(self._ask(bundle_of(query_bundle)).passages)

    async def aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Like ``retrieve``."""
        return nodes_of((await self._aask(bundle_of(query_bundle))).passages)

    def synthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> RESPONSE_TYPE:
        """Answer from given nodes alone, without rewriting."""
        given = self._given(nodes)
        return _response(
            given.run(bundle_of(query_bundle).query_str, on_event=dispatch), additional_source_nodes
        )

    async def asynthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> RESPONSE_TYPE:
        """Like ``synthesize``."""
        result = await self._given(nodes).arun(bundle_of(query_bundle).query_str, on_event=dispatch)
        return _response(result, additional_source_nodes)

    def query_many(self, queries: Iterable[QueryType]) -> list[Response]:
        """Answer many queries; a local model reads them in merged batches.

        Raises:
            Exception: The first failure, after all other queries were answered.
        """
        programs = [self._rewriter.program(bundle_of(query).query_str) for query in queries]
        with self.callback_manager.as_trace("query"):
            results = run_many(programs, self._rewriter.services, on_event=dispatch)
        return [_response(result) for result in results]

    @dispatcher.span
    def query_in_conversation(self, query: QueryType, chat_history: Sequence[ChatMessage]) -> Response:
        """Answer a query that leans on a conversation; its rewrite stands alone."""
        with self.callback_manager.as_trace("query"):
            return _response(self._ask(bundle_of(query), history_of(chat_history)))

    @dispatcher.span
    async def aquery_in_conversation(self, query: QueryType, chat_history: Sequence[ChatMessage]) -> Response:
        """Like ``query_in_conversation``, without blocking the event loop."""
        with self.callback_manager.as_trace("query"):
            return _response(await self._aask(bundle_of(query), history_of(chat_history)))

    @dispatcher.span
    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            response = _response(self._ask(query_bundle))
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response

    @dispatcher.span
    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        payload: dict[str, Any] = {EventPayload.QUERY_STR: query_bundle.query_str}
        with self.callback_manager.event(CBEventType.QUERY, payload=payload) as event:
            response = _response(await self._aask(query_bundle))
            event.on_end(payload={EventPayload.RESPONSE: response})
        return response

    def to_dict(self) -> dict[str, Any]:
        """Return settings, prompts and the models' identities as plain values; no key is in it."""
        return self._plain()

    @classmethod
    def from_dict(
        cls,
        settings: Mapping[str, Any],
        *,
        retriever: BaseRetriever | BaseIndex[Any],
        llm: LLM | Reader | None = None,
        **living: Any,
    ) -> Self:
        """Rebuild from :meth:`to_dict`; what is alive is passed in, as to :meth:`from_args`."""
        return cls.from_args(retriever, llm, **{**loaded(settings), **living})

    def _given(self, nodes: Sequence[NodeWithScore]) -> UncertaintyRewriter:
        """Return the method over given nodes, never to rewrite."""
        return self._rewriter.with_settings(retriever=_Given(passages_of(nodes)), k=None, theta=float("inf"))


class _Given:
    """Finds what it was given, whatever it is asked."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages

    def retrieve(self, query: str, k: int) -> Sequence[Passage]:  # the protocol's signature
        return self._passages[:k]


def _response(result: RewriteResult, more: Sequence[NodeWithScore] | None = None) -> Response:
    return Response(
        result.answer,
        source_nodes=[*nodes_of(result.passages), *(more or ())],
        metadata=dict(result.to_dict()),
    )
