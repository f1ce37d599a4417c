"""Finds the LLM call that wrote an engine's answer, and how sure the LLM was; no engine is wrapped.

LlamaIndex reports calls and spans to its dispatcher. Each call is kept with the spans around it, so that
concurrent queries of one engine, in tasks or in threads, are never mixed up. If a span returns a response,
the newest call that wrote the response's text gives its certainty.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, WeakValueDictionary, finalize, ref

from llama_index.core.agent.workflow import AgentOutput
from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse
from llama_index.core.base.response.schema import (
    AsyncStreamingResponse,
    PydanticResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.chat_engine.types import AgentChatResponse, StreamingAgentChatResponse
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.llm import (
    LLMChatEndEvent,
    LLMChatInProgressEvent,
    LLMChatStartEvent,
    LLMCompletionEndEvent,
    LLMCompletionInProgressEvent,
    LLMCompletionStartEvent,
)
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.llms import LLM
from llama_index.core.llms.structured_llm import StructuredLLM
from llama_index.core.prompts.mixin import PromptMixin
from llama_index.core.workflow import StopEvent, Workflow
from llama_index_instrumentation import root_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.span import BaseSpan

from llama_index_surerag.events import dispatch
from llama_index_surerag.llm import has_choices, plain, reply_part, reply_parts
from surerag import AbstentionPolicy
from surerag.certainty import NO_WORDS, Certainty, Measure, certainty_of
from surerag.errors import ConfigurationError, SureragError
from surerag.messages import EntropyTrace, Event, Generation, TokenTrace
from surerag.readers import (
    ReplyPart,
    answer_tokens,
    finish_of,
    next_reply_part,
    split_thoughts,
    trace_of_answer,
)

logger = logging.getLogger("surerag")

EVENT = "surerag.certainty"
"""Name of the event with the certainty of an answer."""
KEY = "certainty"
"""Key of the certainty in the metadata of a response, and in the output of an agent."""
NO_LOGPROBS_REQUESTED = "the model was not asked for log-probabilities"
_EMPTY_RESPONSE = "Empty Response"
"""Text that LlamaIndex shows in place of an answer without words."""
NOT_WRITTEN = "no single call of a model wrote the answer as it is shown"
UNREADABLE = "the log-probabilities of the answer could not be read"

_END: Any = object()
_CALLS_KEPT = 32
"""Number of newest calls that an open span keeps; the answer is among them. Agents may run for days."""
_LOCK = Lock()


_SETTINGS = (
    "temperature", "top_p", "top_k", "seed", "stop", "max_tokens", "max_output_tokens", "max_new_tokens",
    "top_logprobs", "additional_kwargs", "generate_kwargs", "generation_config", "_generation_config",
    "reasoning_effort", "system_prompt",
)  # fmt: skip
"""Settings of LLMs, and of their calls, that change answers or their measurement."""


class Wishes(NamedTuple):
    """What a user wants to know about the answers of an LLM.

    Attributes:
        policy: Tells the probability that an answer is right.
        measure: The measure of the uncertainty; None for the default.
    """

    policy: AbstentionPolicy | None = None
    measure: Measure | None = None


class Source:
    """The writer of a text: a call of an LLM, or an engine inside another engine.

    Attributes:
        wishes: What the user wants to know about the text; None for nothing.
    """

    wishes: Wishes | None = None

    def __init__(self) -> None:
        self._ended = False
        self._listeners: list[Callable[[], None]] = []

    def end(self) -> None:
        """Note that the text is complete."""
        with _LOCK:
            self._ended, listeners, self._listeners = True, self._listeners, []
        for listener in listeners:
            listener()

    def when_ended(self, listener: Callable[[], None]) -> None:
        """Call a listener as soon as the text is complete."""
        with _LOCK:
            if not self._ended:
                self._listeners.append(listener)
                return
        listener()

    def certainty(self, shown: str | None) -> Mapping[str, Any] | None:
        """Return the certainty of a text as plain values; None if another source wrote the text.

        If ``shown`` is None, it is the certainty of everything that was written.
        """
        raise NotImplementedError


class Answer(Source):
    """The answer of an engine or agent.

    Args:
        values: Object that gets the certainty under :data:`KEY`: metadata of a response, or an agent's
            output.
        text: The answer; None if it is not known yet, or is not a text.
    """

    def __init__(self, values: Any, text: str | None = None) -> None:
        super().__init__()
        self.values = values
        self.text = text
        self._span_id = ""
        self._engine: BaseQueryEngine | None = None
        self._tagged: list[BaseSpan] = []

    def passes(self, span: _Span, span_id: str) -> None:
        """Note that a span returns the answer; the records of other handlers about the span will get tags."""
        self._span_id = self._span_id or span_id
        if isinstance(span.instance, BaseQueryEngine):
            self._engine = span.instance
        for handler in root_dispatcher.span_handlers:
            if (other := handler.open_spans.get(span_id)) is not None:
                self._tagged.append(other)

    def certainty(self, shown: str | None) -> Mapping[str, Any] | None:
        """Return the certainty of the answer; None if another text is shown."""
        same = shown is None or self.text is None or shown.strip() == self.text.strip()
        return self.values.get(KEY) if same else None

    def report(self, *, as_event: bool) -> None:
        """Report the certainty: as an event, and as attributes of the spans that return the answer."""
        certainty = self.values.get(KEY)
        if certainty is None:
            return
        if self._engine is not None and "gate" not in certainty["scope"]:
            certainty["scope"] = {**certainty["scope"], "prompt": prompts_of(self._engine)}
        if self.wishes is not None and self.wishes.policy is not None:
            certainty.update(_assessed(Certainty.from_dict(certainty), self.wishes.policy).to_dict())
        if as_event:
            data = {name: value for name, value in certainty.items() if name != "scope"}
            dispatch(Event(EVENT, data), self._span_id)
        attributes = _attributes(certainty)
        for span in self._tagged:
            span.tags = {**span.tags, **attributes}
        if (telemetry := sys.modules.get("opentelemetry.trace")) is not None:
            telemetry.get_current_span().set_attributes(attributes)


def _assessed(certainty: Certainty, policy: AbstentionPolicy) -> Certainty:
    """Return a certainty with the policy's probability, or the reason why the policy gives none."""
    try:
        return policy.assess(certainty)
    except ConfigurationError as error:
        warnings.warn(f"no probability is told: {error}", stacklevel=2)
        reason = "the policy was calibrated for another reader or other settings"
        return replace(certainty, probability=None, reason=reason)


def prompts_of(engine: PromptMixin) -> str:
    """Return a fingerprint of all prompts of an engine, and of the engines inside it."""
    return _fingerprint(tuple(_prompt_texts(engine)))


def _prompt_texts(part: PromptMixin) -> Iterator[str]:
    # LlamaIndex makes spans of these methods, and copies all templates in get_prompts.
    def call(name: str) -> Mapping[str, Any]:
        method = getattr(type(part), name)
        found: Mapping[str, Any] = getattr(method, "__wrapped__", method)(part)
        return found

    for prompt in call("_get_prompts").values():
        yield prompt.get_template()
    for inner in call("_get_prompt_modules").values():
        yield from _prompt_texts(inner)


@lru_cache(maxsize=1024)
def _fingerprint(texts: tuple[str, ...]) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "replace")).hexdigest()[:16]


def _attributes(certainty: Mapping[str, Any]) -> dict[str, Any]:
    """Return the certainty as attributes of a span: its numbers and their names."""
    told = {name: certainty[name] for name in ("uncertainty", "probability", "measure", "tokens", "is_cut")}
    told |= certainty["uncertainties"]
    return {f"surerag.certainty.{name}": value for name, value in told.items() if value not in (None, "")}


class Call(Source):
    """One call of an LLM; its response, whole or in pieces, is read only if it is the answer.

    Args:
        llm: The LLM that is called.
        keywords: Keywords of the call.
        prompt: The prompt of the call, a text or messages; None if it is unknown.

    Attributes:
        scope: Scope of a calibration with the answer: the name of the model, and a fingerprint of its
            settings.
    """

    def __init__(
        self, llm: LLM, keywords: Mapping[str, Any], prompt: str | list[ChatMessage] | None = None
    ) -> None:
        super().__init__()
        self.llm = llm
        self.prompt = prompt
        self.wishes = _wishes_for(llm)
        self.scope = {
            "reader": llm.metadata.model_name or llm.class_name(),
            "settings": _settings_of(llm, keywords),
        }
        self._top = _requested_top(llm, keywords)
        self._generation: Generation | None = None
        self._pieces: list[Any] = []
        self._so_far = ""

    def feed(self, response: Any) -> None:
        """Take the next piece of a stream."""
        if isinstance(response.raw, Generation):
            self._generation = response.raw
        elif has_choices(response.raw):
            # Each response holds all text so far; keeping only its raw piece saves memory.
            self._pieces.append(response.raw)
        else:
            part, self._so_far = reply_part(response, self._so_far, logprobs=True)
            self._pieces.append(part)

    def finish(self, response: Any) -> None:
        """Take the whole response, or the last piece of a stream whose other pieces were fed."""
        if isinstance(getattr(response, "raw", None), Generation):
            self._generation = response.raw
        elif not self._pieces and response is not None:
            self._pieces = [response]
        self.end()

    def returned(self, response: object) -> bool:
        """Whether the call returned this response object."""
        return any(piece is response for piece in self._pieces) or (
            self._generation is not None and self._generation is getattr(response, "raw", None)
        )

    def certainty(self, shown: str | None) -> Mapping[str, Any] | None:
        """Return the certainty of a text that ends the call's text, for example after thoughts or steps."""
        try:
            found = self._certainty(shown)
        except SureragError as error:
            logger.warning("certainty.unreadable: %s", error.message)
            found = Certainty(reason=UNREADABLE, scope=self.scope)
        return None if found is None else found.to_dict()

    def _certainty(self, shown: str | None) -> Certainty | None:
        parts = [part for piece in self._pieces for part in _parts_in(piece)]
        whole, is_cut = self._answer(parts)
        shown = _shown_of(whole, shown)
        if shown is None:
            return None
        thoughts, answer = split_thoughts(shown)
        if not answer:
            return Certainty(is_cut=is_cut, reason=NO_WORDS, scope=self.scope)
        behind = bool(thoughts) or shown != whole or any(part.thoughts for part in parts)
        trace = self._trace(parts, answer, behind=behind)
        if trace is None and not getattr(self.llm, "logprobs", True):
            return Certainty(is_cut=is_cut, reason=NO_LOGPROBS_REQUESTED, scope=self.scope)
        measure = None if self.wishes is None else self.wishes.measure
        return certainty_of(trace, measure=measure, is_cut=is_cut, scope=self.scope)

    def _answer(self, parts: Sequence[ReplyPart]) -> tuple[str, bool]:
        """Return the whole text of the call, and whether it was cut off."""
        if self._generation is not None:
            return self._generation.text, self._generation.is_cut
        return "".join(part.text for part in parts).strip(), _is_cut(parts)

    def _trace(self, parts: Sequence[ReplyPart], answer: str, *, behind: bool) -> TokenTrace | None:
        """Return the trace of an answer, or None; with ``behind``, other tokens may precede the answer."""
        if self._generation is not None:
            return _trace_within(self._generation.trace, answer, behind=behind)
        entries = [entry for part in parts for entry in part.entries]
        return trace_of_answer(entries, answer, top_logprobs=self._top, thought=behind) if entries else None


def _shown_of(whole: str, shown: str | None) -> str | None:
    """Return the part of a call's text that is shown; None if the shown text comes from somewhere else."""
    if shown is None or (not whole and shown == _EMPTY_RESPONSE):
        return whole
    shown = shown.strip()
    before = whole.removesuffix(shown)
    if not whole.endswith(shown) or bool(shown) != bool(whole) or before[-1:].isalnum():
        return None  # "12" is not an answer inside "312"
    return shown


def _parts_in(piece: Any) -> Sequence[ReplyPart]:
    """Return a kept response, or a kept piece of a stream, as parts of the call's answer."""
    if isinstance(piece, ReplyPart):
        return [piece]
    if isinstance(piece, ChatResponse | CompletionResponse):
        return reply_parts(piece, logprobs=True)[:1]
    return [next_reply_part(plain(piece), logprobs=True)]


def _is_cut(parts: Sequence[ReplyPart]) -> bool:
    reasons = [part.finish for part in parts if part.finish]
    return bool(reasons) and finish_of(reasons[-1]) != "stop"


def _trace_within(trace: TokenTrace | None, answer: str, *, behind: bool) -> TokenTrace | None:
    """Return the answer's part of a trace; with ``behind``, other tokens may precede the answer."""
    if trace is None or not behind:
        return trace
    inside = answer_tokens(trace.tokens, answer, thought=True)
    own = slice(inside.start, inside.stop)
    entropy = trace.entropy and EntropyTrace(
        trace.entropy.lower[own], trace.entropy.upper[own], trace.entropy.exact
    )
    return TokenTrace(trace.tokens[own], trace.logprobs[own], entropy)


class _Span:
    """An open span: the texts written within the span, and the span around it."""

    def __init__(self, around: _Span | None, instance: Any, keywords: Mapping[str, Any]) -> None:
        self.around = around
        self.instance = instance
        self.keywords = keywords
        self.sources: deque[Source] = deque(maxlen=_CALLS_KEPT)

    def with_those_around(self) -> Iterator[_Span]:
        """Yield this span, and the spans around it."""
        span: _Span | None = self
        while span is not None:
            yield span
            span = span.around

    def add(self, source: Source) -> None:
        """Keep a source with this span, the spans around it, and the span of the stream being read."""
        for span in self.with_those_around():
            span.sources.append(source)
        read = _READ.get()
        if read is not None and (not read.sources or read.sources[-1] is not source):
            read.sources.append(source)

    @property
    def newest(self) -> Source | None:
        """The newest source."""
        return self.sources[-1] if self.sources else None

    def certainty(self, text: str | None) -> tuple[Mapping[str, Any] | None, Wishes | None]:
        """Return the certainty of a text by the newest source that wrote it, and the wishes for this source.

        Both are None if no user wants to know the certainty.
        """
        sources = list(self.sources)
        found, wishes = None, None
        for source in reversed(sources):
            if (found := source.certainty(text)) is not None:
                wishes = source.wishes
                if isinstance(source, Call) and (noted := _NOTED.get()) is not None:
                    noted.append(source)
                break
        if found is None:
            found = Certainty(reason=NOT_WRITTEN if sources else NO_WORDS).to_dict()
        calls = [source for source in sources if isinstance(source, Call)]
        wanted = not calls or any(call.wishes is not None for call in calls)
        return (found, wishes) if wanted or found["uncertainty"] is not None else (None, None)


def _writes(instance: object) -> bool:
    """Whether this LLM writes texts itself; a structured LLM lets another LLM write."""
    return isinstance(instance, LLM) and not isinstance(instance, StructuredLLM)


class _Spans(BaseSpanHandler[BaseSpan]):
    """Keeps the calls within each open span, and adds the certainty to a response that a span returns."""

    @classmethod
    def class_name(cls) -> str:
        """Name in traces."""
        return "SureragCertaintySpans"

    def span_enter(
        self,
        id_: str,
        bound_args: Any,
        instance: Any = None,
        parent_id: str | None = None,
        tags: Any = None,
        **_: Any,
    ) -> None:
        """Record that a span begins."""
        _OPEN[id_] = _Span(_OPEN.get(parent_id or ""), instance, bound_args.kwargs)

    def span_exit(
        self, id_: str, bound_args: Any, instance: Any = None, result: Any = None, **_: Any
    ) -> None:
        """Note that a span ends, and the value that it returns."""
        span = _OPEN.pop(id_, None)
        if span is None:
            return
        try:
            if isinstance(result, Generator | AsyncGenerator):
                if (call := _CALLS.get(id_)) is not None:
                    _STREAMS[result] = call
            elif isinstance(result, ChatResponse | CompletionResponse):
                _note_unreported(span, result)
            else:
                _note_answer(span, id_, result)
        except Exception:  # LlamaIndex would drop it in silence
            logger.exception("certainty.failed")

    def span_drop(self, id_: str, bound_args: Any, instance: Any = None, err: Any = None, **_: Any) -> None:
        """Record that a span ends with an error."""
        _OPEN.pop(id_, None)

    def new_span(self, *_: Any, **__: Any) -> None:
        """Do nothing: this handler keeps its own spans."""

    def prepare_to_exit_span(self, *_: Any, **__: Any) -> None:
        """Do nothing: this handler makes no spans of LlamaIndex."""

    def prepare_to_drop_span(self, *_: Any, **__: Any) -> None:
        """Do nothing: this handler makes no spans of LlamaIndex."""


# Tuples, because isinstance is called for every event of the process.
_PIECES = (LLMChatInProgressEvent, LLMCompletionInProgressEvent)
_STARTS = (LLMChatStartEvent, LLMCompletionStartEvent)
_ENDS = (LLMChatEndEvent, LLMCompletionEndEvent)


class _Events(BaseEventHandler):
    """Collects the responses of LLMs, whole or in pieces."""

    @classmethod
    def class_name(cls) -> str:
        """Name in traces."""
        return "SureragCertaintyEvents"

    def handle(self, event: BaseEvent, **_: Any) -> None:
        """Take an event of an LLM."""
        try:
            self._take(event)
        except Exception:  # LlamaIndex would drop it in silence
            logger.exception("certainty.failed")

    def _take(self, event: BaseEvent) -> None:
        span_id = event.span_id or ""
        if isinstance(event, _PIECES):
            if (call := _CALLS.get(span_id)) is not None:
                call.feed(event.response)
        elif isinstance(event, _STARTS):
            span = _OPEN.get(span_id)
            if span is not None and _writes(span.instance):
                prompt = event.messages if isinstance(event, LLMChatStartEvent) else event.prompt
                call = Call(span.instance, span.keywords, prompt)
                _CALLS[span_id] = call
                span.add(call)
        elif isinstance(event, _ENDS) and span_id in _CALLS:
            _CALLS.pop(span_id).finish(event.response)


_SPANS, _EVENTS = _Spans(), _Events()
_OPEN: dict[str, _Span] = {}
_CALLS: WeakValueDictionary[str, Call] = WeakValueDictionary()
"""Running calls by the ids of their spans; the spans around a call, or its stream, keep the call alive."""
_STREAMS: WeakKeyDictionary[Any, Source] = WeakKeyDictionary()
"""The writers of streams that may still be read."""
_READ: ContextVar[_Span | None] = ContextVar("surerag_read", default=None)
"""The span of the response whose stream is being read: LlamaIndex calls some LLMs only then."""
_NOTED: ContextVar[list[Call] | None] = ContextVar("surerag_noted", default=None)
_WISHES: dict[int, tuple[ReferenceType[LLM], Wishes]] = {}
"""What users want to know of LLMs, by the LLMs' ``id``: they have no hash."""


def observe(llm: LLM | None = None, wishes: Wishes = Wishes()) -> None:  # noqa: B008 (it is immutable)
    """Add the certainty of answers to all responses in this process; further calls change nothing.

    If ``llm`` gives no log-probabilities, its responses say so; responses of other LLMs stay unchanged.
    """
    if llm is not None:
        _WISHES[id(llm)] = ref(llm), wishes
        finalize(llm, _WISHES.pop, id(llm), None)
    if not any(handler is _SPANS for handler in root_dispatcher.span_handlers):
        # It runs before the handlers that end their spans, so that these spans still accept attributes.
        root_dispatcher.span_handlers.insert(0, _SPANS)
    if not any(handler is _EVENTS for handler in root_dispatcher.event_handlers):
        root_dispatcher.event_handlers.insert(0, _EVENTS)


def _wishes_for(llm: LLM) -> Wishes | None:
    known, wishes = _WISHES.get(id(llm), (None, None))
    return wishes if known is not None and known() is llm else None


@contextmanager
def noted_calls() -> Iterator[list[Call]]:
    """Note the calls that write answers in this context; the last one is the outermost engine's."""
    calls: list[Call] = []
    token = _NOTED.set(calls)
    try:
        yield calls
    finally:
        _NOTED.reset(token)


def _requested_top(llm: LLM, keywords: Mapping[str, Any]) -> int | None:
    """Return how many of the likeliest tokens a call requests; None if unknown."""
    own = getattr(llm, "top_logprobs", None) if getattr(llm, "logprobs", None) else None
    asked = keywords.get("top_logprobs", own)
    return asked if isinstance(asked, int) else None


def _settings_of(llm: LLM, keywords: Mapping[str, Any]) -> str:
    """Return a fingerprint of the LLM's settings and the call's own settings."""
    known = {**vars(llm), **(getattr(llm, "__pydantic_private__", None) or {}), **keywords}
    found = [f"{name}={known[name]!r}" for name in _SETTINGS if known.get(name) is not None]
    return _fingerprint(tuple(found))


def _note_unreported(span: _Span, response: Any) -> None:
    """Keep the response of an LLM whose methods report no events."""
    kept = isinstance(span.newest, Call) and span.newest.returned(response)
    if _writes(span.instance) and not kept:
        call = Call(span.instance, span.keywords)
        call.finish(response)
        span.add(call)


def _note_answer(span: _Span, span_id: str, result: Any) -> None:
    """Add the certainty to the response or agent output that a span returns."""
    if isinstance(result, StopEvent):
        # The last step of an agent returns the same event, and has no instance.
        output = result.result if isinstance(span.instance, Workflow) else None
        if isinstance(output, AgentOutput):
            _judge_whole(span, span_id, Answer(output, output.response.content or ""))
    elif isinstance(result, StreamingResponse | AsyncStreamingResponse):
        _follow_stream(span, span_id, result)
    elif isinstance(result, StreamingAgentChatResponse):
        _follow_chat(span, span_id, result)
    elif isinstance(result, Response | PydanticResponse | AgentChatResponse):
        text = result.response if isinstance(result.response, str) else None
        _judge_whole(span, span_id, Answer(_metadata_of(result), text))


def _metadata_of(response: Any) -> dict[str, Any]:
    """Return a response's metadata; create them if there are none."""
    if getattr(response, "metadata", None) is None:
        response.metadata = {}
    metadata: dict[str, Any] = response.metadata
    return metadata


def _judge_whole(span: _Span, span_id: str, answer: Answer) -> None:
    """Add the certainty to an answer that a span returns; spans around it may return the same answer."""
    inner = span.newest
    again = isinstance(inner, Answer) and inner.values is answer.values
    answer.wishes = inner.wishes if inner is not None and again else None
    answer.passes(span, span_id)
    _judge(span, answer, as_event=not again)
    if not again and span.around is not None:
        span.around.add(answer)


def _judge(span: _Span, answer: Answer, *, as_event: bool = True) -> None:
    """Give an answer the certainty of its writer, unless it has one, and report the certainty."""
    is_known = KEY in answer.values
    if not is_known or _NOTED.get() is not None:
        found, wishes = span.certainty(answer.text)
        if found is not None and not is_known:
            answer.values[KEY], answer.wishes = dict(found), wishes
    answer.report(as_event=as_event)
    answer.end()


def _follow_stream(span: _Span, span_id: str, response: Any) -> None:
    """Add the certainty to a response when its stream has been read."""
    answer = _STREAMS.get(response.response_gen)
    if not isinstance(answer, Answer):
        answer = Answer(_metadata_of(response))
        read = _apieces if isinstance(response, AsyncStreamingResponse) else _pieces
        response.response_gen = read(response.response_gen, span, answer)
        _STREAMS[response.response_gen] = answer
        if span.around is not None:
            span.around.add(answer)
    answer.passes(span, span_id)


def _pieces(stream: Any, span: _Span, answer: Answer) -> Generator[Any]:
    """Yield the pieces of a response; after the last one its certainty is known."""
    read, stream = list[str](), iter(stream)
    try:
        while True:
            with _reading(span):
                piece = next(stream, _END)
            if piece is _END:
                break
            read.append(str(piece))
            yield piece
    finally:
        if hasattr(stream, "close"):
            stream.close()
    answer.text = "".join(read)
    _judge(span, answer)


async def _apieces(stream: Any, span: _Span, answer: Answer) -> AsyncGenerator[Any]:
    """Like ``_pieces``."""
    read = list[str]()
    try:
        while True:
            with _reading(span):
                piece = await anext(stream, _END)
            if piece is _END:
                break
            read.append(str(piece))
            yield piece
    finally:
        if hasattr(stream, "aclose"):
            await stream.aclose()
    answer.text = "".join(read)
    _judge(span, answer)


@contextmanager
def _reading(span: _Span) -> Iterator[None]:
    """In this context, calls belong to the response whose stream is read."""
    token = _READ.set(span)
    try:
        yield
    finally:
        _READ.reset(token)


def _follow_chat(span: _Span, span_id: str, response: Any) -> None:
    """Add the certainty to a chat engine's response, which a thread or task reads, at its end."""
    answer = Answer(_metadata_of(response))
    answer.passes(span, span_id)
    newest = span.newest
    if newest is None:
        _judge(span, answer)
    else:
        newest.when_ended(lambda: _judge(span, answer))
