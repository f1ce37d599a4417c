"""DynQR as a LangChain retriever, and as a step that rewrites a question to a better query."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, RunnableSerializable
from langchain_core.runnables.config import ensure_config, patch_config, set_config_context

from langchain_surerag.base import SerializablePart, service_field
from langchain_surerag.documents import Decision, documents_of
from langchain_surerag.inputs import ChainInput, Query, query_of
from langchain_surerag.models import reader_of
from langchain_surerag.retrieval import retriever_of
from langchain_surerag.runs import run_program
from surerag import DynQROptions, DynQRResult
from surerag import UncertaintyRewriter as CoreRewriter
from surerag.drivers import run_blocking
from surerag.readers import AWAITING, BLOCKING, Blocking


class _RewritingPart(SerializablePart, DynQROptions):
    """Base class of the DynQR components; each subclass has its own ``__init__`` for type checkers."""

    SERVICES = ("llm", "retriever", "rewriter")

    llm: Any = service_field("The reader: a chat model, an LLM or a reader of surerag.")
    retriever: Any = service_field("A retriever, or a runnable from a question to documents.")
    rewriter: Any = service_field("The model that rewrites questions; by default llm.")

    def _make_core(self) -> CoreRewriter:
        rewriter = None if self.rewriter is None else reader_of(self.rewriter)
        return CoreRewriter(reader_of(self.llm), retriever_of(self.retriever), rewriter, **self.options())

    async def _result(
        self, query: Query, options: Mapping[str, Any], config: RunnableConfig, calls: Blocking
    ) -> DynQRResult:
        core: CoreRewriter = self.core.with_options(**options) if options else self.core
        return await run_program(core.program(*query), core.services, config, calls)


class UncertaintyRewriter(_RewritingPart, RunnableSerializable[Any, str]):
    """Returns the query to search with: the question, or a rewrite if the reader is uncertain (DynQR).

    Put this step before any retriever, in place of a prompt and a model that write a query (as in
    ``create_history_aware_retriever``). It takes the same input as
    :class:`~langchain_surerag.LazyRetrievalChain`, and returns the original question or its rewrite as text.
    The rewrite can be understood without the conversation. A question that the reader answers with
    certainty is not rewritten.

    **Cost**: This step needs one search and one answer to measure the reader's certainty. If the reader is
    uncertain, it also needs one rewrite, one more search and one more answer. The retriever after this step
    then searches again. If your pipeline takes a retriever, prefer :class:`UncertaintyRewriteRetriever`,
    which needs no further search.

    **The decision** is in the events ``dynqr.gate`` and ``dynqr.decided``, which reach callback handlers and
    ``astream_events`` as events of this step's run.

    Options can be set for one call (``invoke(question, top_n=3)``). LangChain's ``dumps`` and ``loads``
    support this step.

    Raises:
        ConfigurationError: If an option is out of bounds.
        MissingServiceError: If the model or the retriever is missing.
        CapabilityError: If the metric needs log-probabilities that the model does not return.
    """

    def __init__(self, llm: Any = None, retriever: Any = None, **options: Any) -> None:
        super().__init__(**{"llm": llm, "retriever": retriever, **options})

    def invoke(self, input: ChainInput, config: RunnableConfig | None = None, **options: Any) -> str:
        """Return the query to search with."""
        return self._call_with_config(self._rewrite, input, config, **options)

    async def ainvoke(self, input: ChainInput, config: RunnableConfig | None = None, **options: Any) -> str:
        """Like :meth:`invoke`, without blocking the event loop."""
        return await self._acall_with_config(self._arewrite, input, config, **options)

    def _rewrite(self, value: Any, **options: Any) -> str:
        return run_blocking(self._result(query_of(value), options, ensure_config(), BLOCKING)).query

    async def _arewrite(self, value: Any, **options: Any) -> str:
        return (await self._result(query_of(value), options, ensure_config(), AWAITING)).query


class UncertaintyRewriteRetriever(_RewritingPart, BaseRetriever):
    """Retrieves with the question; if the reader's answer is uncertain, also with a rewritten query (DynQR).

    Each document has a decision in its metadata, under ``decision_key``: ``query`` (the query that found the
    documents), ``uncertainty`` (of the answer from these documents), ``original_answer`` and
    ``original_uncertainty`` (with the question as the query), ``threshold``, ``acted`` (whether the first
    answer was uncertain), ``rewritten`` (whether these documents were found by the rewritten query),
    ``finish`` (why the answer ended) and ``reason`` (why this query was chosen). Documents that differ only
    in their decisions compare as equal. The cost is one search and one answer; if the reader is uncertain,
    two searches, two answers and one rewrite.

    Options can be set for one call (``invoke(query, top_n=3)``). LangChain's usual name ``k`` may be used for
    ``top_n``, in the constructor and in calls. LangChain's ``dumps`` and ``loads`` support the retriever.

    Raises:
        ConfigurationError: If an option is out of bounds.
        MissingServiceError: If the model or the retriever is missing.
        CapabilityError: If the metric needs log-probabilities that the model does not return.
    """

    decision_key: str | None = "uncertainty_rewrite"
    """Key of the decision in a document's metadata; None leaves the metadata unchanged."""

    def __init__(self, llm: Any = None, retriever: Any = None, **options: Any) -> None:
        if "k" in options:
            options["top_n"] = options.pop("k")
        super().__init__(**{"llm": llm, "retriever": retriever, **options})

    def invoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        """Retrieve documents; the inner model and retriever get the whole config, not only its callbacks."""
        with set_config_context(ensure_config(config)) as context:
            return context.run(super().invoke, input, config, **kwargs)

    async def ainvoke(
        self, input: str, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[Document]:
        """Like :meth:`invoke`, without blocking the event loop."""
        with set_config_context(ensure_config(config)) as context:
            return await asyncio.create_task(super().ainvoke(input, config, **kwargs), context=context)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None, **options: Any
    ) -> list[Document]:
        return run_blocking(self._retrieve(query, run_manager, k, options, BLOCKING))

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        **options: Any,
    ) -> list[Document]:
        return await self._retrieve(query, run_manager, k, options, AWAITING)

    async def _retrieve(
        self, query: str, run_manager: Any, k: int | None, options: dict[str, Any], calls: Blocking
    ) -> list[Document]:
        changed = options if k is None else {"top_n": k, **options}
        config = patch_config(ensure_config(), callbacks=run_manager.get_child())
        result = await self._result(Query(query), changed, config, calls)
        documents = documents_of(result.passages)
        if self.decision_key is not None:
            decision = {**result.to_dict(), "finish": result.chosen.generation.finish}
            for document in documents:
                document.metadata[self.decision_key] = Decision(decision)
        return documents
