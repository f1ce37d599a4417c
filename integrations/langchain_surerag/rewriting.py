"""DynQR as a LangChain retriever: the query is rewritten only where the reader's answer is uncertain."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables.config import ensure_config, patch_config

from langchain_surerag.base import SerializablePart, service_field
from langchain_surerag.calls import Awaiting, Blocking, Calls
from langchain_surerag.documents import Decision, documents_of
from langchain_surerag.models import reader_of, with_advice
from langchain_surerag.retrieval import retriever_of
from surerag import DynQROptions, UncertaintyRewriter
from surerag.drivers import complete


class UncertaintyRewriteRetriever(SerializablePart, DynQROptions, BaseRetriever):
    """Retrieves with the question, and with a rewrite of it where the reader's answer is uncertain (DynQR).

    Each document has in its metadata, under ``decision_key``: ``query``, the one that it was retrieved with;
    ``uncertainty`` of the answer from it, ``original_answer`` and ``original_uncertainty``; ``threshold``;
    ``acted``, whether the query was rewritten, and ``rewritten``, whether the rewrite's documents were kept;
    ``finish``, and the ``reason`` in words. Such entries do not count when documents are compared.

    Options can be set for one call (``invoke(query, top_n=3)``); ``k``, LangChain's own word, means
    ``top_n``. It serialises with ``dumps``; services that cannot be written down are passed in again with
    :meth:`attach`.

    Raises:
        ConfigurationError: If an option is out of bounds.
        MissingServiceError: If model or retriever are missing.
        CapabilityError: If the metric needs log-probabilities that the model does not give.

    Example:
        >>> from langchain_core.runnables import RunnableLambda
        >>> from surerag import FakeReader
        >>> search = RunnableLambda(lambda query: [Document(f"Results for {query}")])
        >>> retriever = UncertaintyRewriteRetriever(FakeReader(["Velm"]), search)
        >>> [document] = retriever.invoke("Where was Ada born?")
        >>> document.page_content, document.metadata["uncertainty_rewrite"]["rewritten"]
        ('Results for Where was Ada born?', False)
    """

    SERVICES = ("llm", "retriever", "rewriter")

    llm: Any = service_field("The reader: a chat model, an LLM or a reader of surerag.")
    retriever: Any = service_field("A retriever, or a runnable from a question to documents.")
    rewriter: Any = service_field("A model that rewrites; the reader itself if left out.")
    decision_key: str | None = "uncertainty_rewrite"
    """Key in a document's metadata for the decision; None writes none."""

    def __init__(self, llm: Any = None, retriever: Any = None, **options: Any) -> None:
        super().__init__(**{"llm": llm, "retriever": retriever, **options})

    def _make_core(self) -> UncertaintyRewriter:
        reader = reader_of(self.llm)
        rewriter = None if self.rewriter is None else reader_of(self.rewriter)
        with with_advice(reader):
            return UncertaintyRewriter(reader, retriever_of(self.retriever), rewriter, **self.options())

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None, **options: Any
    ) -> list[Document]:
        return complete(self._retrieve(query, run_manager, k, options, Blocking()))

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        **options: Any,
    ) -> list[Document]:
        return await self._retrieve(query, run_manager, k, options, Awaiting())

    async def _retrieve(
        self, query: str, run_manager: Any, k: int | None, options: dict[str, Any], calls: Calls
    ) -> list[Document]:
        """Retrieve with the options of one call."""
        changed = options if k is None else {"top_n": k, **options}
        core: UncertaintyRewriter = self.core.with_options(**changed) if changed else self.core
        config = patch_config(ensure_config(), callbacks=run_manager.get_child())
        result = await calls.run(config, core.program(query), core.services)
        documents = documents_of(result.passages)
        if self.decision_key is not None:
            finish = result.chosen.generation.finish if result.answer.strip() else "empty"
            for document in documents:
                document.metadata[self.decision_key] = Decision({**result.to_dict(), "finish": finish})
        return documents
