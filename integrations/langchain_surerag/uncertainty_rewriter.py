"""DynQR in LangChain: a runnable and a retriever that rewrite a query only when the reader is uncertain."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForChainRun,
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForChainRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, ensure_config, patch_config
from langchain_core.runnables.config import set_config_context
from pydantic import BaseModel, Field

from langchain_surerag._driving import arun, run
from langchain_surerag._events import Announcing, announce, announcer
from langchain_surerag.documents import Decision, documents_of
from langchain_surerag.inputs import SearchInput, asked
from langchain_surerag.parts import MethodRunnable, SerializablePart
from langchain_surerag.services import advised, reader_of, retriever_of
from surerag import DynQROptions, DynQRResult
from surerag import UncertaintyRewriter as CoreRewriter
from surerag.effects import Program


class Rewriting(SerializablePart[CoreRewriter], DynQROptions):  # type: ignore[misc]  # a frozen base; fields that are set are in force
    """Services and method of :class:`UncertaintyRewriter` and :class:`UncertaintyRewriteRetriever`."""

    SERVICES = ("llm", "retriever", "rewriter", "entailer", "metric", "same_meaning")

    llm: Any = Field(default=None, kw_only=False)
    retriever: Any = Field(default=None, kw_only=False)
    rewriter: Any = None
    entailer: Any = None
    vocabulary_size: int = 300_000

    def _core(self) -> CoreRewriter:
        reader = reader_of(self.llm, vocabulary_size=self.vocabulary_size)
        with advised(reader):
            return CoreRewriter(
                reader,
                retriever_of(self.retriever),
                None if self.rewriter is None else reader_of(self.rewriter),
                self.entailer,
                **self.chosen(),
            )


class UncertaintyRewriter(  # type: ignore[misc]  # fields that are set are in force
    Rewriting, MethodRunnable[CoreRewriter, str]
):
    """From a question to the query to search with: the question itself, unless its reader is uncertain.

    It retrieves and answers; where the answer is uncertain it rewrites the query, retrieves and answers
    again, and returns the query whose answer is the less uncertain one. Put it before a retriever, which then
    searches once more; :class:`UncertaintyRewriteRetriever` returns the documents that were found on the way.

    Ask it with a question; with a mapping that holds one under ``question``, ``input`` or ``query``, and a
    conversation under ``chat_history`` if there is one; or with a prompt's messages. After a conversation the
    rewrite stands alone. Events ``uncertainty_rewriting.gate`` and ``uncertainty_rewriting.decided``, and
    warnings, reach callback handlers and ``astream_events``; :meth:`rewrite` returns the whole result, the
    answer with it. ``batch`` and ``abatch`` read a local model's questions in merged batches.

    Its options can be made configurable. It serialises with LangChain's ``dumps``; services that cannot be
    written down are left out and given back with :meth:`attach`.

    Attributes:
        llm: The reader: a chat model or LLM, with bindings, retries and fallbacks around it if any; or a
            reader of surerag.
        retriever: A retriever, or a runnable from a question to documents; or one of surerag.
        rewriter: A model that rewrites, of the same kinds; the reader itself if left out.
        entailer: Says which sampled answers mean the same, for the metric ``"disagreement"`` with
            ``same_meaning="entailment"``: an entailer of surerag.
        vocabulary_size: Tokens that the model can emit, where only the likeliest are listed.

    Raises:
        ConfigurationError: If an option is unknown, out of range or of the wrong kind.
        MissingServiceError: If model or retriever is not there.
        CapabilityError: If the model cannot give what the metric needs.
        PromptError: If a prompt's slots do not fit.

    Example:
        >>> from langchain_core.runnables import RunnableLambda
        >>> from surerag import FakeReader
        >>> from surerag.readers.fake import reply
        >>> reader = FakeReader([reply("Orun", logprobs=-1.5), "Where was Ada born?", "Velm"])
        >>> search = RunnableLambda(lambda query: [Document(f"Found for {query}")])
        >>> UncertaintyRewriter(reader, search).invoke("Where was the painter born?")
        'Where was Ada born?'
    """

    if not TYPE_CHECKING:  # to a type checker, the fields are the signature

        def __init__(self, llm: Any = None, retriever: Any = None, **options: Any) -> None:
            super().__init__(llm=llm, retriever=retriever, **options)

    def rewrite(self, input: Any, config: RunnableConfig | None = None) -> DynQRResult:
        """Return the whole result: both queries and answers, each decision and why, costs."""
        # LangChain types what runs under a config as the runnable's own output, a text.
        myself: Any = self
        result: DynQRResult = myself._call_with_config(self._decided, input, config)
        return result

    async def arewrite(self, input: Any, config: RunnableConfig | None = None) -> DynQRResult:
        """Like ``rewrite``, without blocking the event loop."""
        myself: Any = self
        result: DynQRResult = await myself._acall_with_config(self._adecided, input, config)
        return result

    def _decided(
        self, given: Any, run_manager: CallbackManagerForChainRun, config: RunnableConfig
    ) -> DynQRResult:
        result: DynQRResult = run(self._program(given), self._services(), on_event=announce)
        return result

    async def _adecided(
        self, given: Any, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> DynQRResult:
        program = self._program(given)
        async with Announcing(config) as listener:
            return await arun(program, self._services(), on_event=listener)

    def get_input_schema(self, config: RunnableConfig | None = None) -> type[BaseModel]:
        """Return the arguments that ``as_tool`` shows to a model."""
        return SearchInput

    def _program(self, given: Any) -> Program[DynQRResult]:
        question, history, _ = asked(given)
        return self.core.program(question, history)

    def _output(self, result: DynQRResult) -> str:
        return result.query


class UncertaintyRewriteRetriever(Rewriting, BaseRetriever):  # type: ignore[misc]  # as above
    """Retrieves; searches again with a rewritten query when the reader is uncertain of its answer.

    It returns the documents behind the less uncertain answer, as copies with their ids and metadata. Unless
    ``decision_key`` is None, each tells in its metadata, under that key, how it came to be chosen: ``kept``,
    ``query``, both answers with their uncertainties, ``steps`` and costs. Such entries compare equal,
    whatever they say, so that retrievers around this one (MultiQueryRetriever) still find out duplicates. The
    same is told by the events ``uncertainty_rewriting.gate`` and ``uncertainty_rewriting.decided``.

    It is asked with a text. Options can be set for one call (``invoke(query, top_n=3)``); ``k``, LangChain's
    own word, means ``top_n``. It serialises as :class:`UncertaintyRewriter` does.

    Attributes:
        llm: The reader; see :class:`UncertaintyRewriter`.
        retriever: A retriever, or a runnable from a question to documents; or one of surerag.
        rewriter: A model that rewrites; the reader itself if left out.
        entailer: See :class:`UncertaintyRewriter`.
        vocabulary_size: Tokens that the model can emit, where only the likeliest are listed.
        decision_key: Where in a document's metadata to tell the decision.

    Example:
        >>> from langchain_core.runnables import RunnableLambda
        >>> from surerag import FakeReader
        >>> search = RunnableLambda(lambda query: [Document(f"Found for {query}")])
        >>> retriever = UncertaintyRewriteRetriever(FakeReader(["Velm"]), search)
        >>> [found] = retriever.invoke("Where was Ada born?")
        >>> found.page_content, found.metadata["uncertainty_rewrite"]["kept"]
        ('Found for Where was Ada born?', 'original')
    """

    decision_key: str | None = "uncertainty_rewrite"

    if not TYPE_CHECKING:  # to a type checker, the fields are the signature

        def __init__(self, llm: Any = None, retriever: Any = None, **options: Any) -> None:
            super().__init__(llm=llm, retriever=retriever, **options)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None, **options: Any
    ) -> list[Document]:
        config = patch_config(ensure_config(), callbacks=run_manager.get_child())
        core = self._for_call(k, options)
        program = core.program(query)
        with set_config_context(config) as context:
            result = context.run(run, program, core.services, on_event=announcer(config))
        return self._found(result)

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        **options: Any,
    ) -> list[Document]:
        config = patch_config(ensure_config(), callbacks=run_manager.get_child())
        core = self._for_call(k, options)
        async with Announcing(config) as listener:
            with set_config_context(config) as context:
                work = arun(core.program(query), core.services, on_event=listener)
                return self._found(await asyncio.get_running_loop().create_task(work, context=context))

    def _for_call(self, k: int | None, options: dict[str, Any]) -> CoreRewriter:
        """Return the method with the options of one call."""
        changed = options if k is None else {"top_n": k, **options}
        return self.core.with_options(**changed) if changed else self.core

    def _found(self, result: DynQRResult) -> list[Document]:
        documents = documents_of(result.passages)
        if self.decision_key is not None:
            for document in documents:
                document.metadata[self.decision_key] = Decision(result.to_dict())
        return documents
