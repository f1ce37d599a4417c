"""DynQR as a LangChain retriever, and as a step from a question to a better one."""

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
    """DynQR with services; subclasses have an ``__init__`` each, so that type checkers see arguments."""

    SERVICES = ("llm", "retriever", "rewriter")

    llm: Any = service_field("The reader: a chat model, an LLM or a reader of surerag.")
    retriever: Any = service_field("A retriever, or a runnable from a question to documents.")
    rewriter: Any = service_field("A model that rewrites; the reader itself if left out.")

    def _make_core(self) -> CoreRewriter:
        rewriter = None if self.rewriter is None else reader_of(self.rewriter)
        return CoreRewriter(reader_of(self.llm), retriever_of(self.retriever), rewriter, **self.options())

    async def _result(
        self, query: Query, options: Mapping[str, Any], config: RunnableConfig, calls: Blocking
    ) -> DynQRResult:
        core: CoreRewriter = self.core.with_options(**options) if options else self.core
        return await run_program(core.program(*query), core.services, config, calls)


class UncertaintyRewriter(_RewritingPart, RunnableSerializable[Any, str]):
    """A step from a question to the question to search with: a rewrite where the reader is uncertain (DynQR).

    It goes in front of any retriever, in the place of the prompt and model that write a query
    (``create_history_aware_retriever``). The input is what :class:`~langchain_surerag.LazyRetrievalChain`
    takes. The output is the question as it came, or its rewrite, as text. After a conversation the rewrite
    stands alone; a question that the reader answers with certainty is not rewritten.

    **Cost**: to see whether the reader is certain takes a search and an answer; where it is not, a rewrite,
    another search and another answer. The retriever behind this step then searches once more, which
    :class:`UncertaintyRewriteRetriever` does not: prefer that where a retriever can stand.

    **The decision** is in the events ``dynqr.gate`` and ``dynqr.decided``, which reach callback handlers and
    ``astream_events`` under the run of this step, with the runs of model and retriever.

    Options can be set for one call (``invoke(question, top_n=3)``). It serialises as the chain does.

    Raises:
        ConfigurationError: If an option is out of bounds.
        MissingServiceError: If model or retriever are missing.
        CapabilityError: If the metric needs log-probabilities that the model does not give.
    """

    def __init__(self, llm: Any = None, retriever: Any = None, **options: Any) -> None:
        super().__init__(**{"llm": llm, "retriever": retriever, **options})

    def invoke(self, input: ChainInput, config: RunnableConfig | None = None, **options: Any) -> str:
        """Return the question to search with."""
        return self._call_with_config(self._rewrite, input, config, **options)

    async def ainvoke(self, input: ChainInput, config: RunnableConfig | None = None, **options: Any) -> str:
        """Like :meth:`invoke`, without blocking the event loop."""
        return await self._acall_with_config(self._arewrite, input, config, **options)

    def _rewrite(self, value: Any, **options: Any) -> str:
        return run_blocking(self._result(query_of(value), options, ensure_config(), BLOCKING)).query

    async def _arewrite(self, value: Any, **options: Any) -> str:
        return (await self._result(query_of(value), options, ensure_config(), AWAITING)).query


class UncertaintyRewriteRetriever(_RewritingPart, BaseRetriever):
    """Retrieves with the question, and with a rewrite of it where the reader's answer is uncertain (DynQR).

    Each document has in its metadata, under ``decision_key``: ``query``, the one that it was retrieved with;
    ``uncertainty`` of the answer from it, ``original_answer`` and ``original_uncertainty``; ``threshold``;
    ``acted``, whether the query was rewritten, and ``rewritten``, whether the rewrite's documents were kept;
    ``finish``, and the ``reason`` in words. Such entries do not count when documents are compared. It costs
    a search and an answer, and twice that with the rewriting where the reader is uncertain.

    Options can be set for one call (``invoke(query, top_n=3)``); ``k``, LangChain's own word, means
    ``top_n``, here and there. It serialises as the chain does.

    Raises:
        ConfigurationError: If an option is out of bounds.
        MissingServiceError: If model or retriever are missing.
        CapabilityError: If the metric needs log-probabilities that the model does not give.
    """

    decision_key: str | None = "uncertainty_rewrite"
    """Key in a document's metadata for the decision; None writes none."""

    def __init__(self, llm: Any = None, retriever: Any = None, **options: Any) -> None:
        if "k" in options:
            options["top_n"] = options.pop("k")
        super().__init__(**{"llm": llm, "retriever": retriever, **options})

    def invoke(self, input: str, config: RunnableConfig | None = None, **kwargs: Any) -> list[Document]:
        """Retrieve; the whole config reaches model and retriever (LangChain passes callbacks alone)."""
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
