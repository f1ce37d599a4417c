"""L-RAG as a LangChain chain, and as a tool: answer from summaries, retrieve only when unsure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, Self

from langchain_core.callbacks import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun, Callbacks
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.utils import AddableDict, ConfigurableFieldSpec, get_unique_config_specs
from langchain_core.tools import StructuredTool
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from langchain_core.vectorstores import VectorStore
from pydantic import BaseModel, Field

from langchain_surerag._events import Announcing, announce
from langchain_surerag._local_runs import Watch
from langchain_surerag._model_reader import ModelReader
from langchain_surerag.conversations import CONDENSE, Conversation, condensed, shown
from langchain_surerag.documents import documents_of
from langchain_surerag.inputs import ChainInput, QuestionInput, asked, joined
from langchain_surerag.parts import MethodRunnable
from langchain_surerag.prompts import for_core
from langchain_surerag.services import advised, reader_of, retriever_of
from langchain_surerag.summaries import Summarize, asummaries_of, summaries_of
from surerag import LazyRAG, LazyRAGOptions, LazyRAGPlan, LazyRAGResult, PromptSet, astream, stream
from surerag.effects import Program
from surerag.messages import Template
from surerag.retrieval.index import MAX_IN_MEMORY

ChainOutput = dict[str, Any]


class LazyRetrievalChain(  # type: ignore[misc]  # a frozen base; fields that are set are in force
    MethodRunnable[LazyRAG, ChainOutput], LazyRAGOptions
):
    """Answers from document summaries, and retrieves only when a gate says that its reader is unsure.

    Ask it with a question, a message, messages or a prompt's value; or with a mapping that holds one of
    these under ``question``, ``input``, ``query`` or ``messages``, and a conversation under ``chat_history``
    if there is one, as ``RunnableWithMessageHistory`` hands it over. It returns a dictionary:

    - ``answer``: the answer's text;
    - ``context``: what the reader was shown, under the name that ``create_retrieval_chain`` gives it: the
      summaries, and after them what was retrieved, if the gate opened;
    - ``decision``: ``retrieve``, ``reason``, ``gate``, ``signal``, ``unit``, ``lower``, ``upper``, ``exact``,
      ``threshold``, and what it cost: ``calls`` and ``tokens``;
    - with ``return_details``: ``question`` (as it was condensed), ``summaries`` and ``passages`` (what
      ``context`` consists of), ``mode``, ``usage`` and ``timings`` (seconds by stage).

    ``stream`` yields context and decision first, then the answer in pieces; the chunks add up to that
    dictionary. Events ``lazy_rag.gate`` and ``lazy_rag.answering`` reach callback handlers and
    ``astream_events``. ``batch`` and ``abatch`` read a local model's questions in merged batches.

    Requests bear tags for streams and traces: ``surerag:answer`` for what counts, ``surerag:gate`` and
    ``nostream`` for a draft that is thrown away. LangGraph's ``stream_mode="messages"`` and
    ``astream_events`` show the answer alone, a kept draft from its first token on.

    Its options can be made configurable (``threshold``, ``top_n``, ``mode`` …). It serialises with
    LangChain's ``dumps``; services that cannot be written down (a local model, most vector stores) are
    left out and given back with :meth:`attach`.

    Attributes:
        llm: A chat model, an LLM, with bindings, retries and fallbacks around it if any (see
            :func:`~langchain_surerag.reader_from_model`); or any reader of surerag.
        retriever: Tier 2: a retriever, or a runnable from a question to documents; or one of surerag.
        summaries: Tier 1: the summary of the one document as text; a retriever of summaries; or what
            :func:`~langchain_surerag.summaries_of` makes of documents.
        entailer: Says which sampled answers mean the same, for a gate with ``same_meaning="entailment"``: an
            entailer of surerag, such as ``NLIEntailer``.
        vocabulary_size: Tokens that the model can emit, where only the likeliest are listed.
        return_details: Whether the output has the further keys.
        conversation: What becomes of a conversation that comes with the question: ``"condense"`` has the
            reader write a question that stands alone (one more call), ``"show"`` puts the conversation before
            every prompt.
        condense_prompt: The prompt for that, with the slot ``query``; the conversation stands before it.

    Raises:
        ConfigurationError: If a setting is out of range or of the wrong kind.
        MissingServiceError: If the mode needs a service that is not there.
        CapabilityError: If the gate needs log-probabilities that the model cannot give.

    Example:
        >>> from surerag import FakeReader
        >>> from langchain_core.runnables import RunnableLambda
        >>> reader = FakeReader(["Velm"], entropy=0.1)
        >>> chain = LazyRetrievalChain(reader, RunnableLambda(lambda question: []), "Ada was born in Velm.")
        >>> output = chain.invoke("Where was Ada born?")
        >>> output["answer"], output["decision"]["retrieve"]
        ('Velm', False)
    """

    SERVICES = ("llm", "retriever", "summaries", "entailer", "gate", "same_meaning")

    llm: Any = Field(default=None, kw_only=False)
    retriever: Any = Field(default=None, kw_only=False)
    summaries: Any = Field(default=None, kw_only=False)
    entailer: Any = None
    vocabulary_size: int = 300_000
    return_details: bool = False
    conversation: Conversation = "condense"
    condense_prompt: Any = None

    if not TYPE_CHECKING:  # to a type checker, the fields are the signature

        def __init__(
            self, llm: Any = None, retriever: Any = None, summaries: Any = None, **options: Any
        ) -> None:
            services: dict[str, Any] = {"llm": llm, "retriever": retriever, "summaries": summaries}
            super().__init__(**services, **options)

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[Document],
        llm: Any,
        retriever: Any,
        embeddings: Embeddings | None = None,
        *,
        summarize: Summarize = None,
        store: VectorStore | None = None,
        max_summaries: int = MAX_IN_MEMORY,
        **options: Any,
    ) -> Self:
        """Build a chain whose summaries are made of whole documents.

        Args:
            documents: The corpus, not cut into passages.
            llm: See the class.
            retriever: See the class.
            embeddings: What the summaries are searched with, where they are kept in memory.
            summarize: A number of lead sentences, a metadata key, a function, or a model that writes
                each summary once; default two sentences.
            store: A vector store of your own that keeps them, in place of ``embeddings``: what is in it
                already is neither written nor embedded anew, and documents may be a stream of any length.
            max_summaries: More are not kept in memory, but refused.
            **options: See the class.

        Raises:
            InputError: If there is no document with text.
        """
        summaries = summaries_of(
            documents, summarize=summarize, embeddings=embeddings, store=store, max_summaries=max_summaries
        )
        return cls(llm, retriever, summaries, **options)

    @classmethod
    async def afrom_documents(
        cls,
        documents: Iterable[Document],
        llm: Any,
        retriever: Any,
        embeddings: Embeddings | None = None,
        *,
        summarize: Summarize = None,
        store: VectorStore | None = None,
        max_summaries: int = MAX_IN_MEMORY,
        **options: Any,
    ) -> Self:
        """Like :meth:`from_documents`, without blocking the event loop."""
        summaries = await asummaries_of(
            documents, summarize=summarize, embeddings=embeddings, store=store, max_summaries=max_summaries
        )
        return cls(llm, retriever, summaries, **options)

    # LangChain's protocol.

    def stream(
        self, input: ChainInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[ChainOutput]:
        """Yield context and decision, then the answer in pieces."""
        yield from self.transform(iter([input]), config, **kwargs)

    async def astream(
        self, input: ChainInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[ChainOutput]:
        """Like :meth:`stream`, without blocking the event loop."""

        async def inputs() -> AsyncIterator[ChainInput]:
            yield input

        async for chunk in self.atransform(inputs(), config, **kwargs):
            yield chunk

    def transform(
        self, input: Iterator[ChainInput], config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[ChainOutput]:
        """Like :meth:`stream`, for a question that comes in chunks itself."""
        yield from self._transform_stream_with_config(input, self._pieces, config, **kwargs)

    async def atransform(
        self, input: AsyncIterator[ChainInput], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[ChainOutput]:
        """Like :meth:`transform`, without blocking the event loop."""
        async for chunk in self._atransform_stream_with_config(input, self._apieces, config, **kwargs):
            yield chunk

    def get_input_schema(self, config: RunnableConfig | None = None) -> type[BaseModel]:
        """Return the arguments that ``as_tool`` shows to a model."""
        return QuestionInput

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """What the caller's config can set in the services."""
        services = [getattr(self, name) for name in self.SERVICES]
        return get_unique_config_specs(
            spec for service in services if isinstance(service, Runnable) for spec in service.config_specs
        )

    # The method.

    def _core(self) -> LazyRAG:
        reader = reader_of(self.llm, vocabulary_size=self.vocabulary_size)
        with advised(reader):
            return LazyRAG(
                reader,
                retriever_of(self.retriever),
                summaries_of(self.summaries) if self.summaries is not None else None,
                self.entailer,
                **self.chosen(),
            )

    def _build(self) -> None:
        self._condensing()  # raises where the prompt is none
        super()._build()

    def _pieces(
        self, chunks: Iterator[Any], run_manager: CallbackManagerForChainRun, config: RunnableConfig
    ) -> Iterator[ChainOutput]:
        services = self.core.services
        watch = Watch(services, announce)
        program = watch.over(self._program(joined(list(chunks))))
        with stream(program, services, on_event=announce) as answer:
            yield _opening(answer.announced)
            for piece in answer:
                watch.token(piece)
                yield AddableDict(answer=piece)
            # Nothing more to the answer, so that an empty one is there, too.
            yield AddableDict(answer="", **self._details(answer.result))

    async def _apieces(
        self, chunks: AsyncIterator[Any], run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> AsyncIterator[ChainOutput]:
        given = joined([chunk async for chunk in chunks])
        services = self.core.services
        async with Announcing(config) as announce:
            watch = Watch(services, announce)
            answer = await astream(watch.over(self._program(given)), services, on_event=announce)
            async with answer:
                # The decision is known to all before the first word.
                await announce.drained()
                yield _opening(answer.announced)
                async for piece in answer:
                    watch.token(piece)
                    yield AddableDict(answer=piece)
                yield AddableDict(answer="", **self._details(answer.result))

    def _answer(self, given: Any, run_manager: Any, config: RunnableConfig) -> ChainOutput:
        if not self._shows_tokens(run_manager):
            return super()._answer(given, run_manager, config)
        services = self.core.services
        watch = Watch(services, announce)
        with stream(watch.over(self._program(given)), services, on_event=announce) as answer:
            for piece in answer:
                watch.token(piece)
            return self._output(answer.result)

    async def _aanswer(self, given: Any, run_manager: Any, config: RunnableConfig) -> ChainOutput:
        if not self._shows_tokens(run_manager):
            return await super()._aanswer(given, run_manager, config)
        services = self.core.services
        async with Announcing(config) as announce:
            watch = Watch(services, announce)
            answer = await astream(watch.over(self._program(given)), services, on_event=announce)
            async with answer:
                async for piece in answer:
                    watch.token(piece)
                return self._output(answer.result)

    def _shows_tokens(self, run_manager: Any) -> bool:
        """Whether somebody waits for tokens (LangGraph, ``astream_events``), and no model brings them itself.

        LangChain's own models stream for them when they are invoked; so does a reader, here.
        """
        waiting = any(isinstance(one, _StreamingCallbackHandler) for one in run_manager.handlers)
        return waiting and not isinstance(self._services().reader, ModelReader)

    def _program(self, given: Any) -> Program[LazyRAGResult]:
        question, history, oracle = asked(given)
        if not history:
            return self.core.program(question, oracle)
        if self.conversation == "show":
            return shown(history, self.core.program(question, oracle))
        return condensed(
            question, history, self._condensing(), lambda alone: self.core.program(alone, oracle)
        )

    def _condensing(self) -> Template:
        given = CONDENSE.text if self.condense_prompt is None else self.condense_prompt
        return PromptSet(condense=CONDENSE).replaced(for_core({"condense": given}))["condense"]

    def _output(self, result: LazyRAGResult) -> ChainOutput:
        return {
            "answer": result.answer,
            "context": documents_of([*result.summaries, *result.passages]),
            "decision": asdict(result.decision),
            **self._details(result),
        }

    def _details(self, result: LazyRAGResult) -> ChainOutput:
        if not self.return_details:
            return {}
        return {
            "question": result.question,
            "summaries": documents_of(result.summaries),
            "passages": documents_of(result.passages),
            "mode": result.mode,
            "usage": {
                "prompt_tokens": result.prompt_tokens,
                "cached_tokens": result.cached_tokens,
                "completion_tokens": result.completion_tokens,
                "retrievals": result.retrievals,
            },
            "timings": dict(result.timings),
            **result.spent_dict(),
        }


def _opening(plan: LazyRAGPlan) -> ChainOutput:
    """Return the first chunk: what is settled before the answer flows."""
    return AddableDict(
        context=documents_of([*plan.summaries, *plan.passages]), decision=asdict(plan.decision)
    )


def create_lazy_retrieval_tool(
    chain: Runnable[Any, dict[str, Any]],
    name: str,
    description: str,
    *,
    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact",
) -> StructuredTool:
    """Make a tool of a chain, as ``create_retriever_tool`` does of a retriever.

    Args:
        chain: A :class:`~langchain_surerag.LazyRetrievalChain`, configured or wrapped as you like.
        name: Name that the agent's model sees.
        description: What the model is told the tool is for.
        response_format: ``"content"`` returns the answer; ``"content_and_artifact"`` adds the chain's
            whole output (context, decision) as the tool message's artifact.

    Returns:
        A tool with one argument, ``question``.
    """

    def shown(output: dict[str, Any]) -> str | tuple[str, dict[str, Any]]:
        answer: str = output["answer"]
        return (answer, dict(output)) if response_format == "content_and_artifact" else answer

    def ask(question: str, callbacks: Callbacks = None) -> str | tuple[str, dict[str, Any]]:
        return shown(chain.invoke({"question": question}, config={"callbacks": callbacks}))

    async def aask(question: str, callbacks: Callbacks = None) -> str | tuple[str, dict[str, Any]]:
        return shown(await chain.ainvoke({"question": question}, config={"callbacks": callbacks}))

    return StructuredTool(
        name=name,
        description=description,
        func=ask,
        coroutine=aask,
        args_schema=QuestionInput,
        response_format=response_format,
    )
