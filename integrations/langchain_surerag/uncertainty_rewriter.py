"""DynQR in LangChain: a runnable and a retriever that rewrite a query only when the reader is uncertain."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForChainRun,
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForChainRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableConfig, RunnableSerializable, ensure_config, patch_config
from langchain_core.runnables.config import set_config_context, var_child_runnable_config
from pydantic import ConfigDict

from langchain_surerag._events import Announcing, announce, announcer
from langchain_surerag._rewriting import RewriteFields, asked
from langchain_surerag.documents import Decision, documents_of
from surerag import UncertaintyRewriter as CoreRewriter
from surerag import run_many
from surerag.effects import Program
from surerag.methods.uncertainty_types import RewriteResult

_AT_ONCE = 64
"""Questions that a batch asks a local model at the same time, if the caller sets no limit."""


class UncertaintyRewriter(RewriteFields, RunnableSerializable[Any, str]):
    """From a question to the query to search with: the question itself, unless its reader is uncertain.

    It retrieves and answers; where the answer is uncertain it rewrites the query, retrieves and answers
    again, and returns the query whose answer is the less uncertain one. Put it before a retriever, which then
    searches once more; :class:`UncertaintyRewriteRetriever` returns the documents that were found on the way.

    Ask it with a question; with a mapping that holds one under ``question``, ``input`` or ``query``, and a
    conversation under ``chat_history`` if there is one; or with a prompt's messages. After a conversation the
    rewrite stands alone. Events ``uncertainty_rewriting.gate`` and ``uncertainty_rewriting.decided``, and
    warnings, reach callback handlers and ``astream_events``; :meth:`rewrite` returns the whole result, the
    answer with it. ``batch`` and ``abatch`` read a local model's questions in merged batches.

    It serialises with LangChain's ``dumps``; services that cannot be written down are left out and given back
    with :meth:`attach`. Its fields are those of :class:`surerag.UncertaintyRewriter`, besides ``llm`` and the
    others that :class:`~langchain_surerag._rewriting.RewriteFields` tells of.

    Raises:
        ConfigurationError: If a setting is out of range or of the wrong kind.
        MissingServiceError: If model or retriever is not there.
        CapabilityError: If the model cannot give what the metric needs.
        PromptError: If a prompt's slots do not fit.

    Example:
        >>> from langchain_core.runnables import RunnableLambda
        >>> from surerag import ScriptedReader
        >>> from surerag.readers.scripted import reply
        >>> reader = ScriptedReader([reply("Orun", logprobs=-1.5), "Where was Ada born?", "Velm"])
        >>> search = RunnableLambda(lambda query: [Document(f"Found for {query}")])
        >>> UncertaintyRewriter(reader, search).invoke("Where was the painter born?")
        'Where was Ada born?'
    """

    # LangChain's own base has another configuration, and would win.
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    def rewrite(self, input: Any, config: RunnableConfig | None = None) -> RewriteResult:
        """Return the whole result: both queries and answers, each decision and why, costs."""
        # LangChain types what runs under a config as the runnable's own output, a text.
        myself: Any = self
        result: RewriteResult = myself._call_with_config(self._decided, input, config)
        return result

    async def arewrite(self, input: Any, config: RunnableConfig | None = None) -> RewriteResult:
        """Like ``rewrite``, without blocking the event loop."""
        myself: Any = self
        result: RewriteResult = await myself._acall_with_config(self._adecided, input, config)
        return result

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> str:
        """Return the query to search with."""
        return self._call_with_config(self._query, input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> str:
        """Like ``invoke``, without blocking the event loop."""
        return await self._acall_with_config(self._aquery, input, config, **kwargs)

    def batch(
        self,
        inputs: list[Any],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[str]:
        """Return the queries of many questions; each has a run of its own."""
        if self.detached or not self._core().services.reader.capabilities.local:  # type: ignore[union-attr]  # the core has a reader
            return super().batch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return self._batch_with_config(
            self._queries, inputs, config, return_exceptions=return_exceptions, **kwargs
        )

    def _decided(
        self, given: Any, run_manager: CallbackManagerForChainRun, config: RunnableConfig
    ) -> RewriteResult:
        question, history = asked(given)
        return self._core().run(question, history=history, on_event=announce)

    async def _adecided(
        self, given: Any, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> RewriteResult:
        question, history = asked(given)
        async with Announcing(config) as listener:
            return await self._core().arun(question, history=history, on_event=listener)

    def _query(self, given: Any, run_manager: CallbackManagerForChainRun, config: RunnableConfig) -> str:
        return self._decided(given, run_manager, config).query

    async def _aquery(
        self, given: Any, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> str:
        return (await self._adecided(given, run_manager, config)).query

    def _queries(
        self, given: list[Any], run_manager: list[CallbackManagerForChainRun], config: list[RunnableConfig]
    ) -> list[str | Exception]:
        """Treat many questions in this thread, so that a local model reads them together."""
        core = self._core()
        results: list[Any] = contextvars.copy_context().run(
            run_many,
            (_program(core, item, settled) for item, settled in zip(given, config, strict=True)),
            core.services,
            at_once=config[0].get("max_concurrency") or _AT_ONCE,
            on_event=announce,
            return_exceptions=True,
        )
        return [item.query if isinstance(item, RewriteResult) else item for item in results]


class UncertaintyRewriteRetriever(RewriteFields, BaseRetriever):
    """Retrieves; searches again with a rewritten query when the reader is uncertain of its answer.

    It returns the documents behind the less uncertain answer, as copies with their ids and metadata. Unless
    ``decision_key`` is None, each tells in its metadata, under that key, how it came to be chosen: ``kept``,
    ``query``, both answers with their uncertainties, ``steps`` and costs. Such entries compare equal,
    whatever they say, so that retrievers around this one (MultiQueryRetriever) still find out duplicates. The
    same is told by the events ``uncertainty_rewriting.gate`` and ``uncertainty_rewriting.decided``.

    Questions, conversations and serialisation are as in :class:`UncertaintyRewriter`, except that a retriever
    is asked with a text.

    Attributes:
        decision_key: Where in a document's metadata to tell the decision.

    Example:
        >>> from langchain_core.runnables import RunnableLambda
        >>> from surerag import ScriptedReader
        >>> search = RunnableLambda(lambda query: [Document(f"Found for {query}")])
        >>> retriever = UncertaintyRewriteRetriever(ScriptedReader(["Velm"]), search)
        >>> [found] = retriever.invoke("Where was Ada born?")
        >>> found.page_content, found.metadata["uncertainty_rewrite"]["kept"]
        ('Found for Where was Ada born?', 'original')
    """

    decision_key: str | None = "uncertainty_rewrite"

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None, **kwargs: Any
    ) -> list[Document]:
        config = patch_config(ensure_config(), callbacks=run_manager.get_child())
        with set_config_context(config) as context:
            return self._found(context.run(self._chosen(k).run, query, on_event=announcer(config)))

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        k: int | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        config = patch_config(ensure_config(), callbacks=run_manager.get_child())
        async with Announcing(config) as listener:
            with set_config_context(config) as context:
                work = self._chosen(k).arun(query, on_event=listener)
                return self._found(await asyncio.get_running_loop().create_task(work, context=context))

    def _chosen(self, k: int | None) -> CoreRewriter:
        return self._core() if k is None else self._core(k=k)

    def _found(self, result: RewriteResult) -> list[Document]:
        documents = documents_of(result.passages)
        if self.decision_key is not None:
            for document in documents:
                document.metadata[self.decision_key] = Decision(result.to_dict())
        return documents


def _program(core: CoreRewriter, given: Any, config: RunnableConfig) -> Program[RewriteResult]:
    """Return the program of one question among many.

    A driver copies the context right after it was handed a program: what is set here stays with it.
    """
    var_child_runnable_config.set(config)

    def program() -> Program[RewriteResult]:
        question, history = asked(given)
        return (yield from core.program(question, history=history))

    return program()
