"""DynQR as a LlamaIndex query engine: answers, and rewrites the query when the answer is uncertain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.base.response.schema import RESPONSE_TYPE, Response
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import QueryType

from llama_index_surerag.engines import MethodEngine, answer_metadata, with_manager
from llama_index_surerag.events import dispatch, dispatcher
from llama_index_surerag.llm import explained, reader_of
from llama_index_surerag.nodes import nodes_of
from llama_index_surerag.prompts import as_templates, from_chat_messages
from llama_index_surerag.services import NodeRetriever, bundle_of, retriever_of
from surerag import DynQROptions, DynQRResult, UncertaintyRewriter
from surerag.drivers import arun, run
from surerag.readers import Reader


class UncertaintyRewriteQueryEngine(MethodEngine[UncertaintyRewriter, DynQRResult]):
    """Answers; rewrites the query only when the answer is uncertain; returns the less uncertain answer.

    ``response.metadata`` holds how it came about: ``query``, ``uncertainty``, ``original_answer`` and
    ``original_uncertainty``, ``acted``, ``rewritten``, ``candidates``, ``reason``, ``finish``, and what it
    cost. ``source_nodes`` are what the reader was shown for the answer that is returned.

    There is no streaming: before both answers are complete it is not decided which one is returned. There is
    no query transform either: ``TransformQueryEngine`` would retrieve and answer a second time, and drop the
    decision.

    Build it with :meth:`from_args`.
    """

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
        if isinstance(options.get("prompts"), Mapping):
            options["prompts"] = as_templates(options["prompts"], llm)
        checked = DynQROptions(**options)
        reader = reader_of(llm)
        postprocessors = with_manager(node_postprocessors, callback_manager)
        nodes = NodeRetriever(retriever_of(retriever, checked.top_n), postprocessors)
        with explained(reader):
            core = UncertaintyRewriter(
                reader, nodes, None if rewriter is None else reader_of(rewriter), **options
            )
        return cls(core, callback_manager=callback_manager)

    @dispatcher.span
    def query_in_conversation(self, query: QueryType, chat_history: Sequence[ChatMessage]) -> RESPONSE_TYPE:
        """Answer a query that leans on a conversation; its rewrite stands alone."""
        bundle = bundle_of(query)
        program = self._core.program(bundle.query_str, from_chat_messages(list(chat_history)))
        return self._response(run(program, self._scope(bundle).services, on_event=dispatch))

    @dispatcher.span
    async def aquery_in_conversation(
        self, query: QueryType, chat_history: Sequence[ChatMessage]
    ) -> RESPONSE_TYPE:
        """Like ``query_in_conversation``."""
        bundle = bundle_of(query)
        program = self._core.program(bundle.query_str, from_chat_messages(list(chat_history)))
        return self._response(await arun(program, self._scope(bundle).services, on_event=dispatch))

    def _response(self, result: DynQRResult) -> RESPONSE_TYPE:
        costs = answer_metadata(result.chosen.generation, result.usage)
        return Response(
            result.answer,
            source_nodes=nodes_of(result.passages),
            metadata={**result.to_dict(), **costs},
        )
