"""DynQR before a pipeline's own engine: as a query transform, and as a retriever."""

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

from llama_index_surerag.engines import MethodPart, rewriter_over
from llama_index_surerag.events import dispatch, dispatcher, warn
from llama_index_surerag.nodes import nodes_of
from llama_index_surerag.services import bound_services, manager_of
from surerag import DynQROptions, DynQRResult, UncertaintyRewriter
from surerag.drivers import arun, maybe_await, run, run_blocking
from surerag.errors import MISCONFIGURED, InputError
from surerag.readers import Reader, in_plain_words
from surerag.signatures import takes_options


class DecidedNode(NodeWithScore):
    """A node with the decision that it was retrieved by; fusion compares hashes of texts and metadata."""

    decision: dict[str, Any]


@takes_options(DynQROptions)
class UncertaintyRewriteTransform(MethodPart[UncertaintyRewriter], BaseQueryTransform):
    """Rewrites a query where the LLM's answer to it is uncertain, and passes the better query on (DynQR).

    In a ``TransformQueryEngine`` the rewrite is searched for and the question stays what is answered
    (``custom_embedding_strs``, which retrievers by embedding look at, and BM25 does not). For a
    ``TransformRetriever`` pass ``replace=True``: the rewrite takes the question's place.

    It costs a search and an answer where the LLM is certain, and twice that with the rewriting where it is
    not; the pipeline then searches and answers again. It blocks the event loop, since LlamaIndex's transforms
    have no async hook: in a web service take :class:`UncertaintyRewriteRetriever`. The decision is in the
    events ``dynqr.gate`` and ``dynqr.decided``; the pipeline's response does not have it.

    Where a model or the retriever fails, the query stays as it is, with a warning.

    Args:
        retriever: The pipeline's index, or a retriever of it.
        llm: The LLM, or a reader of surerag; ``Settings.llm`` if left out.
        replace: Whether the rewrite takes the question's place.
        rewriter: An LLM or reader that rewrites in the place of ``llm``.
        node_postprocessors: Applied to retrieved nodes, in order.
        **options: Those of :class:`surerag.DynQROptions`; prompts may be LlamaIndex templates.

    Raises:
        ConfigurationError: As of :meth:`UncertaintyRewriteQueryEngine.from_args`.
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
        self._core = rewriter_over(retriever, llm, rewriter, options, node_postprocessors)
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
    """Retrieves with the query, and with a rewrite of it where the LLM's answer is uncertain (DynQR).

    A retriever for any engine, chat engine or agent; sync and, natively, async. It costs one search and one
    answer where the LLM is certain, and twice that with the rewriting where it is not; the pipeline then
    answers once more. An :class:`UncertaintyRewriteQueryEngine` saves that.

    The decision is in the :class:`MethodEvent` ``dynqr.gate``, and is each retrieved node's ``decision``.
    Nodes without text are left out. Where a model fails, the nodes are those of the query as it is, with a
    warning.

    Args:
        retriever: The pipeline's index, or a retriever of it.
        llm: The LLM, or a reader of surerag; ``Settings.llm`` if left out.
        rewriter: An LLM or reader that rewrites in the place of ``llm``.
        node_postprocessors: Applied to retrieved nodes, in order.
        callback_manager: Receives LlamaIndex's callbacks.
        **options: Those of :class:`surerag.DynQROptions`; prompts may be LlamaIndex templates.

    Raises:
        ConfigurationError: As of :meth:`UncertaintyRewriteQueryEngine.from_args`.
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
        self._core = rewriter_over(retriever, llm, rewriter, options, node_postprocessors, callback_manager)

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
    """Return what DynQR makes of a query by a driver; None, with a warning, where it fails."""
    try:
        program, services = part.core.program(bundle.query_str), bound_services(part.core.services, bundle)
        result: DynQRResult = await maybe_await(run(program, services, on_event=dispatch))
        return result
    except (*MISCONFIGURED, InputError):
        raise
    except Exception as error:
        warn("dynqr.failed", reason=in_plain_words(error))
        return None
