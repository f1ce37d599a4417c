"""DynQR before a pipeline's own engine: as a query transform, and as a retriever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.query.query_transform.base import BaseQueryTransform
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle

from llama_index_surerag.engines import MethodPart, with_manager
from llama_index_surerag.events import dispatch, dispatcher, warn
from llama_index_surerag.llm import explained, reader_of
from llama_index_surerag.nodes import labelled, nodes_of
from llama_index_surerag.prompts import as_templates
from llama_index_surerag.services import NodeRetriever, retriever_of
from surerag import DynQROptions, DynQRResult, UncertaintyRewriter
from surerag.drivers import arun, run
from surerag.errors import MISCONFIGURED
from surerag.readers import Reader

DECISION_KEY = "uncertainty_rewrite"
"""Key in the metadata of a retrieved node for the decision that it was retrieved by."""


def rewriter_over(
    retriever: BaseRetriever | BaseIndex[Any],
    llm: LLM | Reader | None,
    rewriter: LLM | Reader | None,
    node_postprocessors: Sequence[BaseNodePostprocessor] | None,
    callback_manager: CallbackManager | None,
    options: dict[str, Any],
) -> UncertaintyRewriter:
    """Return DynQR over what a pipeline has.

    Raises:
        ConfigurationError: If an option or argument is unknown, of the wrong kind or out of bounds.
        CapabilityError: If the LLM does not return what the metric needs.
        PromptError: If a replaced prompt is unknown or lacks slots.
    """
    if isinstance(options.get("prompts"), Mapping):
        options["prompts"] = as_templates(options["prompts"], llm)
    checked = DynQROptions(**options)
    reader = reader_of(llm)
    postprocessors = with_manager(node_postprocessors, callback_manager)
    nodes = NodeRetriever(retriever_of(retriever, checked.top_n), postprocessors)
    with explained(reader):
        return UncertaintyRewriter(
            reader, nodes, None if rewriter is None else reader_of(rewriter), **options
        )


class UncertaintyRewriteTransform(MethodPart[UncertaintyRewriter], BaseQueryTransform):
    """Rewrites a query where the LLM's answer to it is uncertain, and passes the better query on (DynQR).

    In a ``TransformQueryEngine`` the rewrite is searched for and the question stays what is answered
    (``custom_embedding_strs``, which retrievers by embedding look at, and BM25 does not). For a
    ``TransformRetriever`` pass ``replace=True``: the rewrite takes the question's place.

    It costs a search and an answer where the LLM is certain, and twice that with the rewriting where it is
    not; the pipeline then searches and answers again, whatever was decided. It blocks the event loop, since
    LlamaIndex's transforms have no async hook: in a web service take the engine, or
    :class:`UncertaintyRewriteRetriever`. The decision is in a ``RewriteDecisionEvent`` and the
    ``ProgressEvent`` ``dynqr.decided``; the pipeline's response does not have it.

    Where a model or the retriever fails, the query stays as it is, with a warning.

    Args:
        retriever: The pipeline's retriever, or its index.
        llm: The LLM, or a reader of surerag; ``Settings.llm`` if left out.
        replace: Whether the rewrite takes the question's place.
        rewriter: An LLM or reader that rewrites; the same one if left out.
        **options: Those of :class:`surerag.DynQROptions`; prompts may be LlamaIndex templates.

    Raises:
        ConfigurationError: If an option or argument is unknown, of the wrong kind or out of bounds.
        CapabilityError: If the LLM does not return what the metric needs.
        PromptError: If a replaced prompt is unknown or lacks slots.
    """

    def __init__(
        self,
        retriever: BaseRetriever | BaseIndex[Any],
        llm: LLM | Reader | None = None,
        *,
        replace: bool = False,
        rewriter: LLM | Reader | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._core = rewriter_over(retriever, llm, rewriter, None, None, options)
        self._replace = replace

    def _run(self, query_bundle: QueryBundle, metadata: dict[str, Any]) -> QueryBundle:
        core: UncertaintyRewriter = self._core
        program = core.program(query_bundle.query_str)
        try:
            query = run(program, self._services(query_bundle), on_event=dispatch).query
        except MISCONFIGURED:
            raise
        except Exception as error:
            _warn_of(error)
            return query_bundle
        if query == query_bundle.query_str:
            return query_bundle
        if self._replace:
            return replace(query_bundle, query_str=query, custom_embedding_strs=None, embedding=None)
        return replace(query_bundle, custom_embedding_strs=[query], embedding=None)


class UncertaintyRewriteRetriever(MethodPart[UncertaintyRewriter], BaseRetriever):
    """Retrieves with the query, and with a rewrite of it where the LLM's answer is uncertain (DynQR).

    A retriever for any engine, chat engine or agent; sync and, natively, async. It costs one search and one
    answer where the LLM is certain, and twice that with the rewriting where it is not; the pipeline then
    answers once more. An :class:`UncertaintyRewriteQueryEngine` saves that.

    The decision is in a ``RewriteDecisionEvent``, and in the metadata of each node under
    ``uncertainty_rewrite``, which no model is shown. Nodes without text are left out. Where a model fails,
    the nodes are those of the query as it is, with a warning.

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
        super().__init__(callback_manager=callback_manager)
        self._core = rewriter_over(retriever, llm, rewriter, node_postprocessors, callback_manager, options)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        core: UncertaintyRewriter = self._core
        program = core.program(query_bundle.query_str)
        try:
            return _decided_nodes(run(program, self._services(query_bundle), on_event=dispatch))
        except MISCONFIGURED:
            raise
        except Exception as error:
            _warn_of(error)
            return self._retriever.nodes(query_bundle)[: core.top_n]

    @dispatcher.span
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        core: UncertaintyRewriter = self._core
        program = core.program(query_bundle.query_str)
        try:
            return _decided_nodes(await arun(program, self._services(query_bundle), on_event=dispatch))
        except MISCONFIGURED:
            raise
        except Exception as error:
            _warn_of(error)
            return (await self._retriever.anodes(query_bundle))[: core.top_n]


def _decided_nodes(result: DynQRResult) -> list[NodeWithScore]:
    return [labelled(node, DECISION_KEY, result.to_dict()) for node in nodes_of(result.passages)]


def _warn_of(error: Exception) -> None:
    warn("dynqr.failed", reason=f"{type(error).__name__}: {error}")
