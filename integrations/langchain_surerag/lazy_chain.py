"""L-RAG as a LangChain chain: answer from a summary, retrieve only when the reader is unsure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, NamedTuple, Self, cast

from langchain_core.callbacks import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.load.serializable import SerializedConstructor, SerializedNotImplemented
from langchain_core.runnables import Runnable, RunnableConfig, RunnableSerializable
from langchain_core.runnables.utils import AddableDict, ConfigurableFieldSpec, get_unique_config_specs
from pydantic import BaseModel, ConfigDict, Field

from langchain_surerag._chain_batch import answers_of
from langchain_surerag._chain_output import ChainOutput, closing_of, opening_of, output_of
from langchain_surerag._events import Announcing, announce
from langchain_surerag._inputs import ChainInput, QuestionInput, joined, question_of
from langchain_surerag._serialising import loads_again
from langchain_surerag.prompts import PromptLike, prompt_from
from langchain_surerag.readers import reader_from_model
from langchain_surerag.retrievers import AS_MANY, RunnableRetriever
from langchain_surerag.summaries import Summarize, summaries_of
from surerag import LazyRAG
from surerag.calibration import Calibration
from surerag.errors import MissingServiceError
from surerag.methods.gating import Aggregate, Estimate
from surerag.methods.lazy_rag import LazyRAGPrompts, LazyRAGResult, Mode
from surerag.prompts import CLOSED_BOOK, FROM_CONTEXT, FROM_CONTEXT_AND_DETAILS
from surerag.readers import Reader

_SERVICES = ("llm", "retriever", "summaries")
_AT_ONCE = 64
"""Questions that a batch asks a local model at the same time, if the caller sets no limit."""


class _Made(NamedTuple):
    """A reader, and the model it was made of."""

    llm: Any
    reader: Reader


class LazyRetrievalChain(RunnableSerializable[ChainInput, ChainOutput]):
    """Answers from document summaries, and retrieves only when its reader's entropy says that it must.

    Ask it with a question, or with a mapping that holds one under ``question``, ``input`` or ``query``. It
    returns a dictionary:

    - ``answer``: the answer's text;
    - ``documents``: what was retrieved and shown to the reader; empty where the gate stayed shut;
    - ``decision``: ``retrieve``, ``reason``, ``entropy`` (nats), ``lower``, ``upper``, ``exact`` and
      ``threshold``;
    - with ``return_details``: ``summaries``, ``mode``, ``usage`` and ``timings`` (seconds by stage).

    ``stream`` yields documents and decision first, then the answer in pieces; the chunks add up to that
    dictionary. Events ``lazy_rag.gate`` and ``lazy_rag.answering`` reach callback handlers and
    ``astream_events``. ``batch`` and ``abatch`` read a local model's questions in merged batches.

    Its settings can be made configurable (``tau``, ``k``, ``mode`` …). It serialises with LangChain's
    ``dumps``; services that cannot be written down (a local model, most vector stores) are left out and
    given back with :meth:`attach`.

    Attributes:
        llm: A chat model, an LLM, with bindings, retries and fallbacks around it if any (see
            :func:`~langchain_surerag.reader_from_model`); or any reader of surerag.
        retriever: Tier 2: a retriever, or a runnable from a question to documents; or one of surerag.
        summaries: Tier 1: the summary of the one document as text; a retriever of summaries; or what
            :func:`~langchain_surerag.summaries_of` makes of documents.
        mode: ``"lazy"``, or one of the paper's baselines: ``"none"``, ``"standard"``, ``"strong"``,
            ``"oracle"`` (gold documents come with the question, under ``documents``).
        tau: Retrieve iff the entropy exceeds this, in nats; or a calibration, which warns when it was
            made for another reader or gate.
        gate_tokens: Tokens of the first pass that the gate looks at.
        aggregate: ``"mean"``, ``"max"`` or ``"first"``.
        estimate: Point of an entropy interval to decide on: ``"lower"``, ``"middle"`` or ``"upper"``.
        k: Documents to show at most; None leaves it to the retriever.
        m: Summaries to join for the first pass.
        max_tokens: Length of an answer, at most.
        stop: Texts that end an answer.
        closed_book_prompt: Slot ``question``; text or PromptTemplate, as for the other two.
        first_prompt: Slots ``context`` and ``question``.
        second_prompt: Slots ``context``, ``details`` and ``question``.
        vocabulary_size: Tokens that the model can emit, where only the likeliest are listed.
        return_details: Whether the output has the further keys.
        detached: Services that were left out when the chain was written down.

    Raises:
        ConfigurationError: If a setting is out of range or of the wrong kind.
        MissingServiceError: If the mode needs a service that is not there.
        CapabilityError: If the gate needs entropies that the model cannot give.

    Example:
        >>> from surerag import ScriptedReader
        >>> from langchain_core.runnables import RunnableLambda
        >>> reader = ScriptedReader(["Velm"], entropy=0.1)
        >>> chain = LazyRetrievalChain(reader, RunnableLambda(lambda question: []), "Ada was born in Velm.")
        >>> output = chain.invoke("Where was Ada born?")
        >>> output["answer"], output["decision"]["retrieve"]
        ('Velm', False)
    """

    llm: Any = None
    retriever: Any = None
    summaries: Any = None
    mode: Mode = "lazy"
    tau: float = 1.0
    gate_tokens: int = 8
    aggregate: Aggregate = "mean"
    estimate: Estimate = "middle"
    k: int | None = None
    m: int = 3
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    closed_book_prompt: PromptLike | None = None
    first_prompt: PromptLike | None = None
    second_prompt: PromptLike | None = None
    vocabulary_size: int = 300_000
    return_details: bool = False
    detached: tuple[str, ...] = ()
    made: Any = Field(default=None, exclude=True, repr=False)
    """The reader made of ``llm``: kept, so that reconfigured copies share it and its merging queue."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    def __init__(
        self, llm: Any = None, retriever: Any = None, summaries: Any = None, **settings: Any
    ) -> None:
        calibration = settings.get("tau")
        if isinstance(calibration, Calibration):
            settings["tau"] = calibration.tau
        services = {"llm": llm, "retriever": retriever, "summaries": summaries}
        super().__init__(**services, **settings)
        if not self.detached:
            rag = self._rag()
            if isinstance(calibration, Calibration):
                calibration.check(rag.reader.name, rag.signal)

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[Document],
        llm: Any,
        retriever: Any,
        embeddings: Embeddings,
        *,
        summarize: Summarize = None,
        **settings: Any,
    ) -> Self:
        """Build a chain whose summaries are made of whole documents.

        Args:
            documents: The corpus, not cut into passages.
            llm: See the class.
            retriever: See the class.
            embeddings: What the summaries are searched with.
            summarize: A number of lead sentences, a metadata key, a function, or a model that writes
                each summary once; default two sentences.
            **settings: See the class.

        Raises:
            InputError: If there is no document with text.
        """
        summaries = summaries_of(documents, summarize=summarize, embeddings=embeddings)
        return cls(llm, retriever, summaries, **settings)

    def attach(self, *, llm: Any = None, retriever: Any = None, summaries: Any = None) -> Self:
        """Return a copy with services given back that serialisation left out, or with others.

        Raises:
            MissingServiceError: If the mode still lacks a service.
        """
        given = {"llm": llm, "retriever": retriever, "summaries": summaries}
        given = {name: service for name, service in given.items() if service is not None}
        fields = {name: getattr(self, name) for name in type(self).model_fields if name not in given}
        fields["detached"] = tuple(name for name in self.detached if name not in given)
        return type(self)(**fields, **given)

    # LangChain's protocol.

    def invoke(self, input: ChainInput, config: RunnableConfig | None = None, **kwargs: Any) -> ChainOutput:
        """Answer one question."""
        return self._call_with_config(self._answer, input, config, **kwargs)

    async def ainvoke(
        self, input: ChainInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> ChainOutput:
        """Answer one question without blocking the event loop."""
        return await self._acall_with_config(self._aanswer, input, config, **kwargs)

    def batch(
        self,
        inputs: list[ChainInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[ChainOutput]:
        """Answer many questions, at most ``max_concurrency`` at a time; each has a run of its own."""
        if self.detached or not self._rag().reader.capabilities.local:
            return super().batch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return self._batch_with_config(
            self._answers, inputs, config, return_exceptions=return_exceptions, **kwargs
        )

    def stream(
        self, input: ChainInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> Iterator[ChainOutput]:
        """Yield documents and decision, then the answer in pieces."""
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
        services = [getattr(self, name) for name in _SERVICES]
        return get_unique_config_specs(
            spec for service in services if isinstance(service, Runnable) for spec in service.config_specs
        )

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Say that ``dumps`` and ``loads`` work."""
        return True

    def to_json(self) -> SerializedConstructor | SerializedNotImplemented:
        """Write the chain down; services that could not be loaded again are left out and named."""
        left = [
            name
            for name in _SERVICES
            if getattr(self, name) is not None and not loads_again(getattr(self, name))
        ]
        detached = tuple(dict.fromkeys([*self.detached, *left]))
        written = self.model_copy(update={**dict.fromkeys(left), "detached": detached})
        return super(LazyRetrievalChain, written).to_json()

    # The method.

    def _rag(self) -> LazyRAG:
        """Return the core's component with the settings as they are now."""
        for name in self.detached:
            raise MissingServiceError(
                f"the chain was loaded without its {name}", hint=f"call attach({name}=…)"
            )
        return LazyRAG(
            self._reader(),
            RunnableRetriever(self.retriever) if isinstance(self.retriever, Runnable) else self.retriever,
            summaries_of(self.summaries) if self.summaries is not None else None,
            mode=self.mode,
            tau=self.tau,
            gate_tokens=self.gate_tokens,
            aggregate=self.aggregate,
            estimate=self.estimate,
            k=AS_MANY if self.k is None else self.k,
            m=self.m,
            max_tokens=self.max_tokens,
            stop=self.stop,
            prompts=LazyRAGPrompts(
                prompt_from(self.closed_book_prompt, CLOSED_BOOK),
                prompt_from(self.first_prompt, FROM_CONTEXT),
                prompt_from(self.second_prompt, FROM_CONTEXT_AND_DETAILS),
            ),
        )

    def _reader(self) -> Reader:
        if self.llm is None:
            raise MissingServiceError("LazyRetrievalChain needs a model", hint="pass llm=…")
        if isinstance(self.llm, Reader):
            return self.llm
        made = cast("_Made | None", self.made)
        if made is None or made.llm is not self.llm:
            made = _Made(self.llm, reader_from_model(self.llm, vocabulary_size=self.vocabulary_size))
            self.made = made
        return made.reader

    def _answer(
        self, given: Any, run_manager: CallbackManagerForChainRun, config: RunnableConfig
    ) -> ChainOutput:
        question = question_of(given)
        return self._output(self._rag().run(question.text, oracle=question.oracle, on_event=announce))

    def _answers(
        self, given: list[Any], run_manager: list[CallbackManagerForChainRun], config: list[RunnableConfig]
    ) -> list[ChainOutput | Exception]:
        at_once = config[0].get("max_concurrency") or _AT_ONCE
        results = answers_of(self._rag(), given, config, at_once)
        return [self._output(item) if isinstance(item, LazyRAGResult) else item for item in results]

    async def _aanswer(
        self, given: Any, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> ChainOutput:
        question = question_of(given)
        async with Announcing(config) as announce:
            result = await self._rag().arun(question.text, oracle=question.oracle, on_event=announce)
        return self._output(result)

    def _pieces(
        self, chunks: Iterator[Any], run_manager: CallbackManagerForChainRun, config: RunnableConfig
    ) -> Iterator[ChainOutput]:
        question = question_of(joined(list(chunks)))
        with self._rag().stream(question.text, oracle=question.oracle, on_event=announce) as stream:
            yield opening_of(stream.announced)
            for piece in stream:
                yield AddableDict(answer=piece)
            yield closing_of(stream.result, details=self.return_details)

    async def _apieces(
        self, chunks: AsyncIterator[Any], run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> AsyncIterator[ChainOutput]:
        question = question_of(joined([chunk async for chunk in chunks]))
        async with Announcing(config) as announce:
            stream = await self._rag().astream(question.text, oracle=question.oracle, on_event=announce)
            async with stream:
                # The decision is known to all before the first word.
                await announce.drained()
                yield opening_of(stream.announced)
                async for piece in stream:
                    yield AddableDict(answer=piece)
                yield closing_of(stream.result, details=self.return_details)

    def _output(self, result: LazyRAGResult) -> ChainOutput:
        return output_of(result, details=self.return_details)
