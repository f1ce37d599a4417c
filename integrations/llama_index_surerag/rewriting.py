"""Rewrites queries by DynQR for a pipeline's own engine, in a query transform or in a retriever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_surerag.engines import MethodPart, make_rewriter
from llama_index_surerag.events import dispatch, dispatcher, warn
from llama_index_surerag.nodes import nodes_of
from llama_index_surerag.services import bound_services, manager_of
from surerag import DynQROptions, DynQRResult, UncertaintyRewriter
from surerag.drivers import arun, maybe_await, run, run_blocking
from surerag.errors import MISCONFIGURED, InputError
from surerag.readers import Reader, in_plain_words
from surerag.signatures import takes_options


class DecidedNode(NodeWithScore):
    """A node with a field for DynQR's decision whether to rewrite the query.

    The decision is not in the metadata, because fusion retrievers compare nodes by hashes that depend on the
    metadata.
    """

    decision: dict[str, Any]


@takes_options(DynQROptions)
class UncertaintyRewriteTransform(MethodPart[UncertaintyRewriter], BaseQueryTransform):
    """Rewrites a query if its answer is uncertain; returns the query with the less uncertain answer.

    This is DynQR as a query transform. In a ``TransformQueryEngine``, the search uses the rewrite, and the
    LLM answers the original question. (The rewrite is in ``custom_embedding_strs``, which embedding
    retrievers use, but BM25 does not.) In a ``TransformRetriever``, pass ``replace=True``, so that the
    rewrite replaces the question.

    If the LLM is certain, the transform costs one search and one answer. Otherwise it costs two searches, two
    answers and the rewriting. The pipeline then searches and answers again. The transform blocks the event
    loop, because LlamaIndex's transforms have no async method: in a web service, use
    :class:`UncertaintyRewriteRetriever`. The decision is in the events ``dynqr.gate`` and ``dynqr.decided``,
    but not in the pipeline's response.

    If a model or the retriever fails, the query stays unchanged, with a warning.

    Args:
        retriever: The pipeline's index, or a retriever that searches the index.
        llm: The LLM, or a reader of surerag; by default ``Settings.llm``.
        replace: Whether the rewrite replaces the question.
        rewriter: An LLM or reader that rewrites the query; by default ``llm`` rewrites it.
        node_postprocessors: Applied to retrieved nodes, in order.
        **options: Options of :class:`surerag.DynQROptions`; prompts may be LlamaIndex templates.

    Raises:
        ConfigurationError: If an option or argument is unknown, of the wrong kind or out of bounds.
        CapabilityError: If the metric needs log-probabilities that the LLM does not return.
    """

    def __init__(
        self,
        retriever: BaseRetriever | BaseIndex[Any],
        llm: LLM | Reader | None = None,
        *,
        replace: bool = False,
        rewriter: LLM | Reader | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._core = make_rewriter(retriever, llm, rewriter, options, node_postprocessors)
        self._replace = replace

    def _run(self, query_bundle: QueryBundle, metadata: dict[str, Any]) -> QueryBundle:
        result = run_blocking(_attempt(self, query_bundle, run))
        query = query_bundle.query_str if result is None else result.query
        if query == query_bundle.query_str:
            return query_bundle
        if self._replace:
            return replace(query_bundle, query_str=query, custom_embedding_strs=None, embedding=None)
        return replace(query_bundle, custom_embedding_strs=[query], embedding=None)


@takes_options(DynQROptions)
class UncertaintyRewriteRetriever(MethodPart[UncertaintyRewriter], BaseRetriever):
    """Retrieves with the query and, if the LLM's answer is uncertain, also with a rewritten query (DynQR).

    The retriever works in any engine, chat engine or agent, sync and async. If the LLM is certain, the
    retriever costs one search and one answer; otherwise it costs two searches, two answers and the rewriting.
    The pipeline then generates its own answer; an :class:`UncertaintyRewriteQueryEngine` would not need this
    further answer.

    The decision is in the :class:`MethodEvent` ``dynqr.gate``, and in the field ``decision`` of each node.
    Nodes without text are left out. If a model fails, the nodes of the original query are returned, with a
    warning.

    Args:
        retriever: The pipeline's index, or a retriever that searches the index.
        llm: The LLM, or a reader of surerag; by default ``Settings.llm``.
        rewriter: An LLM or reader that rewrites the query; by default ``llm`` rewrites it.
        node_postprocessors: Applied to retrieved nodes, in order.
        callback_manager: Receives LlamaIndex's callbacks.
        **options: Options of :class:`surerag.DynQROptions`; prompts may be LlamaIndex templates.

    Raises:
        ConfigurationError: If an option or argument is unknown, of the wrong kind or out of bounds.
        CapabilityError: If the metric needs log-probabilities that the LLM does not return.
    """

    def __init__(
        self,
        retriever: BaseRetriever | BaseIndex[Any],
        llm: LLM | Reader | None = None,
        *,
        rewriter: LLM | Reader | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] | None = None,
        callback_manager: CallbackManager | None = None,
        **options: Any,
    ) -> None:
        super().__init__(callback_manager=manager_of(callback_manager))
        self._core = make_rewriter(retriever, llm, rewriter, options, node_postprocessors, callback_manager)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return run_blocking(self._nodes(query_bundle, run, self._retriever.nodes))

    @dispatcher.span
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await self._nodes(query_bundle, arun, self._retriever.anodes)

    async def _nodes(
        self, bundle: QueryBundle, run: Callable[..., Any], retrieve: Callable[..., Any]
    ) -> list[NodeWithScore]:
        result = await _attempt(self, bundle, run)
        if result is None:
            return list(await maybe_await(retrieve(bundle)))[: self.core.top_n]
        return [DecidedNode(**dict(node), decision=result.to_dict()) for node in nodes_of(result.passages)]


async def _attempt(
    part: MethodPart[UncertaintyRewriter], bundle: QueryBundle, run: Callable[..., Any]
) -> DynQRResult | None:
    """Run DynQR for a query with ``run``: a function, or a coroutine function that is awaited.

    If a model or the retriever fails, this function warns and returns None. Configuration errors and input
    errors are raised.
    """
    try:
        program, services = part.core.program(bundle.query_str), bound_services(part.core.services, bundle)
        result: DynQRResult = await maybe_await(run(program, services, on_event=dispatch))
        return result
    except (*MISCONFIGURED, InputError):
        raise
    except Exception as error:
        warn("dynqr.failed", reason=in_plain_words(error))
        return None
