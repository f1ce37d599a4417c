"""Adds to each answer of an engine or agent how certain the LLM was, and withholds uncertain answers."""

from __future__ import annotations

import math
import warnings
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from llama_index.core import Response
from llama_index.core.agent.workflow import AgentOutput
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    PydanticResponse,
    StreamingResponse,
)
from llama_index.core.callbacks import CallbackManager
from llama_index.core.chat_engine.types import (
    AgentChatResponse,
    BaseChatEngine,
    StreamingAgentChatResponse,
)
from llama_index.core.llms import LLM
from llama_index.core.llms.structured_llm import StructuredLLM
from llama_index.core.memory import BaseMemory
from llama_index.core.prompts.mixin import PromptMixin, PromptMixinType
from llama_index.core.schema import QueryBundle
from llama_index.core.settings import Settings

from llama_index_surerag.engines import MethodEngine, aread_to_end, read_to_end
from llama_index_surerag.events import dispatch, warn
from llama_index_surerag.llm import family_of, reader_of
from llama_index_surerag.observing import (
    KEY,
    NO_LOGPROBS_REQUESTED,
    NOT_WRITTEN,
    Call,
    Wishes,
    noted_calls,
    observe,
    prompts_of,
)
from llama_index_surerag.pickles import Shareable
from llama_index_surerag.prompts import NestedPrompts, from_chat_messages
from llama_index_surerag.reader_llm import ReaderLLM
from llama_index_surerag.services import manager_of
from surerag import AbstentionPolicy, AreYouSure, SampleAgreement, Services
from surerag.calibration import CalibrationWarning, SelectedAnswer, check_policy, order_hint
from surerag.certainty import NO_WORDS, Certainty, Measure, check_measure
from surerag.drivers import arun, maybe_await, run, run_blocking
from surerag.errors import CapabilityError, ConfigurationError, InputError, check_kind, check_question
from surerag.readers import Reader
from surerag.text import ABSTENTION, check_abstention

SecondOpinion = AreYouSure | SampleAgreement
_SECOND_OPINION_HINT = (
    "to measure certainty by further calls of the LLM, pass second_opinion=surerag.AreYouSure(llm) or "
    "surerag.SampleAgreement(llm) to AbstainingQueryEngine"
)


def with_certainty(
    llm: LLM | Reader | None = None,
    policy: AbstentionPolicy | None = None,
    *,
    measure: Measure | None = None,
    top_logprobs: int = 5,
) -> LLM:
    """Return the LLM with log-probabilities switched on, so that answers come with their certainty.

    ``llm = with_certainty(OpenAI("gpt-4o-mini"))`` is all that a pipeline needs. The certainty costs no
    further call and no further token. The certainty (the plain values of :meth:`surerag.Certainty.to_dict`)
    is in ``response.metadata["certainty"]`` of any query engine or chat engine, and in
    ``output["certainty"]`` of an agent. If the answer is streamed, the certainty is there after the stream
    has been read. The certainty is also reported in three other places: in a ``MethodEvent`` with the name
    ``"surerag.certainty"``, as tags ``surerag.certainty.…`` of LlamaIndex's spans that return the answer, and
    as attributes (with the same names) of the open OpenTelemetry span.

    The returned LLM is a copy of ``llm``, not a wrapper, with the fields ``logprobs`` and ``top_logprobs``
    set. For a reader it is a :class:`ReaderLLM`. The function also adds handlers to LlamaIndex's
    instrumentation of this process. Servers may reject log-probabilities for models that think before they
    answer.

    Args:
        llm: An LLM of OpenAI's API (``OpenAI``, ``AzureOpenAI``, ``OpenAILike`` for vLLM, Ollama, llama.cpp
            and other servers); an LLM of your own whose responses have log-probabilities in ``raw`` or
            ``logprobs``; or a reader of surerag, such as a ``TransformersReader``. By default
            ``Settings.llm``.
        policy: Estimates the probability that an answer is right; from :func:`surerag.calibrate_abstention`.
        measure: The measure that gives ``uncertainty``. If None, the policy's measure or, without a policy,
            the default measure.
        top_logprobs: Number of alternatives to request for each token, 0 to 20; with 0, no entropy can be
            computed.

    Raises:
        CapabilityError: If the LLM's class returns no log-probabilities.
        ConfigurationError: If ``llm`` is not an LLM or reader, or a setting is of the wrong kind or out of
            bounds.
    """
    check_kind(int, "a whole number", top_logprobs=top_logprobs)
    check_policy(policy)
    check_measure(measure)
    if not 0 <= top_logprobs <= 20:
        raise ConfigurationError(f"top_logprobs must be in 0 to 20, got {top_logprobs}")
    llm = Settings.llm if llm is None else llm
    llm = ReaderLLM(reader=llm) if isinstance(llm, Reader) else llm
    check_kind(LLM, "an LLM of LlamaIndex, or a reader of surerag", hint=_llm_hint(llm), llm=llm)
    name, family = type(llm).__name__, family_of(llm)
    if isinstance(llm, StructuredLLM):
        raise ConfigurationError(
            "expected an LLM that writes answers itself, got a StructuredLLM, which calls another LLM",
            hint="pass the inner LLM: with_certainty(llm).as_structured_llm(…)",
        )
    if {"logprobs", "top_logprobs"} <= type(llm).model_fields.keys():
        llm = llm.model_copy(update={"logprobs": True, "top_logprobs": top_logprobs})
    elif family.name == "GoogleGenAI" and not _lists_logprobs(llm):
        raise ConfigurationError(
            f"this {name} is built without log-probabilities",
            hint="build it with generation_config=GenerateContentConfig(response_logprobs=True, logprobs=5)",
        )
    elif not family.logprobs:
        hint = family.hint or "use an LLM of OpenAI's API, or with_certainty(TransformersReader(…))"
        raise CapabilityError(f"{name} returns no log-probabilities", hint=f"{hint}; {_SECOND_OPINION_HINT}")
    observe(llm, Wishes(policy, measure))
    return llm


def _llm_hint(llm: Any) -> str:
    if isinstance(getattr(llm, "reader", None), Reader):
        return "pass the reader itself: with_certainty(reader)"
    if any(kind.__module__.startswith("langchain") for kind in type(llm).__mro__):
        return "call langchain_surerag.with_certainty for a model of LangChain"
    return order_hint("LLM", llm)


def _lists_logprobs(gemini: LLM) -> bool:
    config = getattr(gemini, "_generation_config", None)
    return isinstance(config, Mapping) and bool(config.get("response_logprobs"))


def certainty_in(response: Any) -> Certainty:
    """Return the certainty that :func:`with_certainty` added to a response or to an agent's output.

    Args:
        response: The response of a query engine or chat engine, or the output of an agent. If the response is
            a stream, read it to its end first.

    Raises:
        InputError: If the response has no certainty.
    """
    values = response if isinstance(response, AgentOutput) else getattr(response, "metadata", None) or {}
    if KEY not in values:
        raise InputError(
            "the response has no certainty",
            hint="build the LLM of the engine with with_certainty(llm); read streams to their end first",
        )
    certainty: Any = values.get(KEY)
    return Certainty.from_dict(certainty)


class _Selecting(Shareable):
    """Base class of engines that return an answer only if the LLM is sure enough of the answer."""

    _engine: Any
    _policy: AbstentionPolicy | None
    _abstention: str
    _second_opinion: SecondOpinion | None
    _prompts: str
    _reader: str

    def _set_up(
        self, engine: Any, policy: AbstentionPolicy | None, abstention: str, opinion: SecondOpinion | None
    ) -> None:
        check_policy(policy)
        check_kind(str, "a text", abstention=abstention)
        kinds = "surerag.AreYouSure(llm) or surerag.SampleAgreement(llm)"
        check_kind(SecondOpinion | None, kinds, second_opinion=opinion)
        check_abstention(abstention)
        self._engine, self._policy, self._abstention = engine, policy, abstention
        self._second_opinion = opinion and replace(opinion, model=reader_of(opinion.model))
        if policy is not None and policy.scope.get("gate") and not policy.scope.get("measure"):
            warnings.warn(
                "the policy does not say by which measure it was calibrated; if it was calibrated on a "
                "gate's score, the policy's guarantee does not hold. Calibrate with rows from "
                "CalibrationRow.of(certainty_in(response), score)",
                CalibrationWarning,
                stacklevel=3,
            )
        if policy is not None and policy.threshold == -math.inf:
            warnings.warn(
                f"with this policy, no answer will be shown: {policy.guarantee}",
                CalibrationWarning,
                stacklevel=3,
            )
        self._reader = ""
        self._prompts = self._prompts_now()
        self._check_engine()

    def _prompts_now(self) -> str:
        return prompts_of(self._engine) if isinstance(self._engine, PromptMixin) else ""

    def _check_engine(self) -> None:
        """Raise a ConfigurationError if the engine's prompts have changed since the engine was built.

        The error is also raised if the engine does not match the policy's calibration.
        """
        observe()
        prompts = self._prompts_now()
        if prompts != self._prompts:
            raise ConfigurationError(
                f"the prompts of the engine changed after this {type(self).__name__} was built",
                hint="restore the prompts, or calibrate again",
            )
        if self._policy is None:
            return
        methods = list(method_engines(self._engine))
        for method in methods:
            self._policy.check(method.core)
        if not methods and prompts and self._policy.scope.get("prompt"):
            self._policy.check({"prompt": prompts})

    async def _selected(self, question: Any, prefix: str) -> tuple[Any, bool, SelectedAnswer]:
        """Query the engine, and decide whether the engine's answer may be shown.

        Args:
            question: A query bundle, or a message and its chat history.
            prefix: ``"a"`` to call the engine's async methods; an empty text to call its blocking methods.

        Returns:
            First, the complete response, with the certainty in its metadata. Second, whether the engine
            returned a stream. Third, the selected answer, whose text is the engine's answer or the
            abstention.
        """
        if isinstance(question, tuple):
            check_question(question[0])
        elif not question.custom_embedding_strs and not question.embedding and not question.image_path:
            check_question(question.query_str)
        self._check_engine()
        nothing: AbstractContextManager[list[Call]] = nullcontext([])
        with nothing if self._second_opinion is None else noted_calls() as calls:
            returned = await maybe_await(_query_engine(self._engine, question, prefix))
            response = await maybe_await((aread_to_end if prefix else read_to_end)(returned))
        answer = str(response) if response.response else ""
        if self._second_opinion is None:
            certainty = _measured(response)
        else:
            certainty = await self._opinion_on(self._second_opinion, calls, answer, prefix)
        self._check_reader(certainty)
        selected = SelectedAnswer(answer, abstained=False, probability=None)
        if self._policy is not None:
            if certainty.uncertainty is None and certainty.reason != NO_WORDS:
                warn("certainty.unknown", reason=certainty.reason)
            certainty = self._policy.assess(certainty)
            selected = self._policy.select(answer, certainty, self._abstention)
        decision = {"abstained": selected.abstained, "probability": selected.probability}
        response.metadata = {**(response.metadata or {}), KEY: certainty.to_dict(), **decision}
        response.metadata.pop("original_answer", None)
        if selected.abstained and isinstance(self._engine, BaseChatEngine):
            await self._correct_memory(answer, prefix)
        return response, response is not returned, selected

    async def _correct_memory(self, answer: str, prefix: str) -> None:
        memory = getattr(self._engine, "_memory", None)
        if not isinstance(memory, BaseMemory):
            return
        messages = list(await maybe_await(getattr(memory, f"{prefix}get_all")()))
        if messages and messages[-1].role == MessageRole.ASSISTANT and messages[-1].content == answer:
            messages[-1] = ChatMessage(role=MessageRole.ASSISTANT, content=self._abstention)
            await maybe_await(getattr(memory, f"{prefix}set")(messages))

    async def _opinion_on(
        self, second_opinion: SecondOpinion, calls: Sequence[Call], answer: str, prefix: str
    ) -> Certainty:
        if not calls or calls[-1].prompt is None:
            return Certainty(reason=NOT_WRITTEN)
        prompt = calls[-1].prompt
        turns = prompt if isinstance(prompt, str) else from_chat_messages(prompt)
        program = second_opinion.program(turns, answer)
        drive: Any = arun if prefix else run
        opinion: Certainty = await maybe_await(
            drive(program, Services(reader=second_opinion.model), on_event=dispatch)
        )
        prompts = {"prompt": self._prompts} if self._prompts else {}
        return replace(opinion, scope={**calls[-1].scope, **prompts})

    def _check_reader(self, certainty: Certainty) -> None:
        reader = certainty.scope.get("reader", "")
        self._reader = self._reader or reader
        if reader and reader != self._reader:
            raise ConfigurationError(
                f"earlier answers came from the model {self._reader!r}, and this answer from {reader!r}",
                hint="restore the model, or calibrate again",
            )


def _measured(response: Any) -> Certainty:
    has_certainty = KEY in (response.metadata or {})
    certainty = certainty_in(response) if has_certainty else Certainty(reason=NO_LOGPROBS_REQUESTED)
    if certainty.reason == NO_LOGPROBS_REQUESTED:
        raise ConfigurationError(
            NO_LOGPROBS_REQUESTED,
            hint=f"build the engine with with_certainty(llm) in place of llm; {_SECOND_OPINION_HINT}",
        )
    return certainty


def _query_engine(engine: Any, question: Any, prefix: str) -> Any:
    if isinstance(engine, BaseQueryEngine):
        return getattr(engine, f"{prefix}query")(question)
    message = question.query_str if isinstance(question, QueryBundle) else question[0]
    history = None if isinstance(question, QueryBundle) else question[1]
    return getattr(engine, f"{prefix}chat")(message, history)


def method_engines(engine: object) -> Iterator[MethodEngine[Any]]:
    """Yield ``engine`` if it is an engine of surerag; else yield all engines of surerag inside it."""
    if isinstance(engine, MethodEngine):
        yield engine
        return
    for value in vars(engine).values():
        inner = list(value.values()) if isinstance(value, dict) else value
        for item in inner if isinstance(inner, list | tuple) else [inner]:
            if isinstance(item, BaseQueryEngine):
                yield from method_engines(item)


class AbstainingQueryEngine(NestedPrompts, _Selecting, BaseQueryEngine):
    """Returns another engine's answer if the LLM was sure enough of the answer, else "I do not know.".

    ``response.metadata`` has the ``certainty`` of the answer, whether the answer is withheld (``abstained``),
    and the ``probability`` that the answer is right. The response nowhere holds the text of a withheld
    answer. A policy also withholds empty answers and answers that were cut off. If the inner engine streams,
    its stream is read to the end before the decision, and the response is a stream of one piece.

    The engine checks that the policy was calibrated with the same model and prompts and, for surerag's own
    engines, with the same gate and retriever.

    Args:
        engine: Any query engine or chat engine whose LLM is made by :func:`with_certainty`; or a
            ``LazyRetrievalQueryEngine`` or ``UncertaintyRewriteQueryEngine`` with any LLM that returns
            log-probabilities.
        policy: From :func:`surerag.calibrate_abstention`, with answers of the same engine. If None, every
            answer is returned with its certainty, for example to collect answers for a calibration.
        abstention: Text that replaces a withheld answer.
        second_opinion: For an LLM without log-probabilities: :class:`surerag.AreYouSure` or
            :class:`surerag.SampleAgreement`, which call the LLM again (their docstrings state the cost).
        callback_manager: Receives LlamaIndex's callbacks.

    Raises:
        ConfigurationError: If the abstention is empty, if the policy was calibrated for another model, gate,
            retriever or prompt, or if the LLM is not asked for log-probabilities. Some of these errors are
            raised only at the first answer.
        InputError: If the question is empty.
    """

    def __init__(
        self,
        engine: BaseQueryEngine | BaseChatEngine,
        policy: AbstentionPolicy | None,
        *,
        abstention: str = ABSTENTION,
        second_opinion: SecondOpinion | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        kinds, hint = BaseQueryEngine | BaseChatEngine, order_hint("engine", engine)
        check_kind(kinds, "a query engine or a chat engine", hint=hint, engine=engine)
        super().__init__(callback_manager=manager_of(callback_manager))
        self._set_up(engine, policy, abstention, second_opinion)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {"engine": self._engine} if isinstance(self._engine, PromptMixin) else {}

    def _query(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        response, is_stream, selected = run_blocking(self._selected(query_bundle, ""))
        if not is_stream:
            return _response_with(response, selected)
        pieces = _piece(selected.text)
        return StreamingResponse(pieces, response.source_nodes, response.metadata, selected.text)

    async def _aquery(self, query_bundle: QueryBundle) -> RESPONSE_TYPE:
        response, is_stream, selected = await self._selected(query_bundle, "a")
        if not is_stream:
            return _response_with(response, selected)
        pieces = _apiece(selected.text)
        return AsyncStreamingResponse(pieces, response.source_nodes, response.metadata, selected.text)


def _response_with(response: Any, selected: SelectedAnswer) -> RESPONSE_TYPE:
    """Return a response whose text is the selected text: the engine's answer or the abstention.

    A structured response that is not withheld is returned unchanged.
    """
    if isinstance(response, PydanticResponse) and not selected.abstained:
        return response
    return Response(selected.text, response.source_nodes, response.metadata)


class AbstainingChatEngine(_Selecting, BaseChatEngine):
    """Returns another chat engine's answer if the LLM was sure enough of the answer, else "I do not know.".

    ``response.metadata`` has the same keys as for :class:`AbstainingQueryEngine`. In the chat engine's
    memory, the abstention replaces a withheld answer. ``stream_chat`` waits for the complete answer, and then
    yields the answer or the abstention in one piece.

    Args:
        engine: The chat engine whose answers are returned or withheld.
        policy: From :func:`surerag.calibrate_abstention`, as for :class:`AbstainingQueryEngine`.
        abstention: Text that replaces a withheld answer.
        second_opinion: As for :class:`AbstainingQueryEngine`.

    Raises:
        ConfigurationError: As for :class:`AbstainingQueryEngine`.
        InputError: If the message is empty.
    """

    def __init__(
        self,
        engine: BaseChatEngine,
        policy: AbstentionPolicy | None,
        *,
        abstention: str = ABSTENTION,
        second_opinion: SecondOpinion | None = None,
    ) -> None:
        check_kind(BaseChatEngine, "a chat engine", hint=order_hint("engine", engine), engine=engine)
        self._set_up(engine, policy, abstention, second_opinion)

    def chat(self, message: str, chat_history: list[ChatMessage] | None = None) -> AgentChatResponse:
        """Return the inner engine's answer to a message, or the abstention."""
        return _as_chat(*run_blocking(self._selected((message, chat_history), "")))

    async def achat(self, message: str, chat_history: list[ChatMessage] | None = None) -> AgentChatResponse:
        """Answer as ``chat`` does, without blocking the event loop."""
        return _as_chat(*await self._selected((message, chat_history), "a"))

    def stream_chat(
        self, message: str, chat_history: list[ChatMessage] | None = None
    ) -> StreamingAgentChatResponse:
        """Return the inner engine's answer, or the abstention, as a stream of one piece."""
        whole = self.chat(message, chat_history)
        return _as_stream(whole, chat_stream=_message(whole.response))

    async def astream_chat(
        self, message: str, chat_history: list[ChatMessage] | None = None
    ) -> StreamingAgentChatResponse:
        """Answer as ``stream_chat`` does, without blocking the event loop."""
        whole = await self.achat(message, chat_history)
        return _as_stream(whole, achat_stream=_amessage(whole.response))

    def reset(self) -> None:
        """Forget the conversation."""
        self._engine.reset()

    @property
    def chat_history(self) -> list[ChatMessage]:
        """The conversation so far."""
        history: list[ChatMessage] = self._engine.chat_history
        return history


def _as_chat(response: Any, _: bool, selected: SelectedAnswer) -> AgentChatResponse:
    sources = [] if selected.abstained else response.sources
    nodes = response.source_nodes
    return AgentChatResponse(selected.text, sources, nodes, metadata=response.metadata)


def _as_stream(whole: AgentChatResponse, **stream: Any) -> StreamingAgentChatResponse:
    """Return a complete response as a streaming response.

    The answer is in the chat engine's memory already, so LlamaIndex must not write it there a second time.
    """
    response = StreamingAgentChatResponse(
        sources=whole.sources, source_nodes=whole.source_nodes, is_writing_to_memory=False, **stream
    )
    response.metadata = whole.metadata  # type: ignore[attr-defined]  # as AgentChatResponse has it
    return response


def _piece(text: str) -> Generator[str]:
    yield text


async def _apiece(text: str) -> AsyncGenerator[str]:
    yield text


def _message(text: str) -> Generator[ChatResponse]:
    yield ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=text), delta=text)


async def _amessage(text: str) -> AsyncGenerator[ChatResponse]:
    yield ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=text), delta=text)
