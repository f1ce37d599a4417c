"""Finds the LLM call that wrote an engine's answer, and computes how sure the LLM was of the answer.

The LLM needs no wrapper, because LlamaIndex reports LLM calls and spans (runs of methods, one inside another)
to its dispatcher. Each LLM call is stored with all spans that are open during the call, so that concurrent
queries of one engine, in tasks or in threads, are never mixed up. When a span returns a response, the
certainty of the response is taken from the newest call in this span that wrote the response's text.
"""

from __future__ import annotations

import hashlib
import logging
import math
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
"""Name of the event that reports the certainty of an answer."""
KEY = "certainty"
"""Key of the certainty in the metadata of a response, and in the output of an agent."""
NO_LOGPROBS_REQUESTED = "the model was not asked for log-probabilities"
_EMPTY_RESPONSE = "Empty Response"
"""Text that LlamaIndex returns in place of an empty answer."""
NOT_WRITTEN = "no single call of a model wrote the text of the answer"
UNREADABLE = "the log-probabilities of the answer could not be read"

_END: Any = object()
_CALLS_KEPT = 32
"""Maximum number of LLM calls, the newest, that an open span stores: an agent's span may be open for days."""
_LOCK = Lock()


_SETTINGS = (
    "temperature", "top_p", "top_k", "seed", "stop", "max_tokens", "max_output_tokens", "max_new_tokens",
    "top_logprobs", "additional_kwargs", "generate_kwargs", "generation_config", "_generation_config",
    "reasoning_effort", "system_prompt",
)  # fmt: skip
"""Names of those settings of an LLM or of a call that change the answer or its measured certainty."""


class Wishes(NamedTuple):
    """The settings that the user passed to ``with_certainty`` for an LLM.

    Attributes:
        policy: Estimates the probability that an answer is right; None for no estimate.
        measure: The measure of the uncertainty; None for the default.
    """

    policy: AbstentionPolicy | None = None
    measure: Measure | None = None


class Source:
    """Base class of what can write an answer's text: an LLM call, or an engine inside another engine.

    Attributes:
        wishes: The user's settings for the LLM that wrote the text; None if the user did not pass this LLM to
            ``with_certainty``.
    """

    wishes: Wishes | None = None

    def __init__(self) -> None:
        self._ended = False
        self._listeners: list[Callable[[], None]] = []

    def end(self) -> None:
        """Mark the text as complete, and call the listeners that were passed to :meth:`when_ended`."""
        with _LOCK:
            self._ended, listeners, self._listeners = True, self._listeners, []
        for listener in listeners:
            listener()

    def when_ended(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when the text is complete, or at once if the text is complete already."""
        with _LOCK:
            if not self._ended:
                self._listeners.append(listener)
                return
        listener()

    def certainty(self, shown: str | None) -> Mapping[str, Any] | None:
        """Return the certainty of a text as plain values; None if this source did not write the text.

        The text is ``shown`` or, if ``shown`` is None, this source's whole text.
        """
        raise NotImplementedError


class Answer(Source):
    """The answer of an engine or agent.

    Args:
        values: The metadata of an engine's response, or the output of an agent. The certainty is added to
            ``values`` under :data:`KEY`.
        text: The text of the answer; None if the answer is not complete yet, or is not a text.
    """

    def __init__(self, values: Any, text: str | None = None) -> None:
        super().__init__()
        self.values = values
        self.text = text
        self._span_id = ""
        self._engine: BaseQueryEngine | None = None
        self._tagged: list[BaseSpan] = []

    def passes(self, span: _Span, span_id: str) -> None:
        """Record that a span returns the answer, so that :meth:`report` can tag the span."""
        self._span_id = self._span_id or span_id
        if isinstance(span.instance, BaseQueryEngine):
            self._engine = span.instance
        for handler in root_dispatcher.span_handlers:
            if (span_record := handler.open_spans.get(span_id)) is not None:
                self._tagged.append(span_record)

    def certainty(self, shown: str | None) -> Mapping[str, Any] | None:
        """Return the certainty of the answer; None if unknown yet, or if ``shown`` is not the answer."""
        same = shown is None or self.text is None or shown.strip() == self.text.strip()
        return self.values.get(KEY) if same else None

    def report(self, *, as_event: bool) -> None:
        """Write the certainty into the tags of all spans that return the answer, and send an event.

        First, two values are added to the certainty: a hash of the engine's prompts, and the probability that
        the policy estimates. If ``as_event`` is False, no event is sent.
        """
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
    try:
        return policy.assess(certainty)
    except ConfigurationError as error:
        warnings.warn(
            f"the policy cannot estimate the probability that the answer is right: {error}", stacklevel=2
        )
        reason = "the policy was calibrated for another reader or other settings"
        return replace(certainty, probability=None, reason=reason)


def prompts_of(engine: PromptMixin) -> str:
    """Return one hash of the texts of all prompts in an engine and in the components inside the engine."""
    return _fingerprint(tuple(_prompt_texts(engine)))


def _prompt_texts(part: PromptMixin) -> Iterator[str]:
    # get_prompts would copy all templates, and the decorator of these methods would open a span.
    def call(name: str) -> Mapping[str, Any]:
        method = getattr(type(part), name)
        prompts: Mapping[str, Any] = getattr(method, "__wrapped__", method)(part)
        return prompts

    for prompt in call("_get_prompts").values():
        yield prompt.get_template()
    for inner in call("_get_prompt_modules").values():
        yield from _prompt_texts(inner)


@lru_cache(maxsize=1024)
def _fingerprint(texts: tuple[str, ...]) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "replace")).hexdigest()[:16]


def _attributes(certainty: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: certainty[name] for name in ("uncertainty", "probability", "measure", "tokens", "is_cut")}
    values |= certainty["uncertainties"]
    return {f"surerag.certainty.{name}": value for name, value in values.items() if value not in (None, "")}


class Call(Source):
    """One call of an LLM, and the response, which is parsed only when :meth:`certainty` is called.

    Args:
        llm: The LLM that is called.
        keywords: Keyword arguments of the call.
        prompt: The prompt of the call, a text or messages; None if it is unknown.

    Attributes:
        beside: Weak references to the other LLM calls that were running when this call began.
        scope: What a calibration depends on: the name of the model, and a hash of the settings of the LLM and
            of the call.
    """

    def __init__(
        self, llm: LLM, keywords: Mapping[str, Any], prompt: str | list[ChatMessage] | None = None
    ) -> None:
        super().__init__()
        self.llm = llm
        self.prompt = prompt
        self.wishes = _wishes_for(llm)
        self.beside = _CALLS.valuerefs()
        self.scope = {
            "reader": llm.metadata.model_name or llm.class_name(),
            "settings": _settings_of(llm, keywords),
        }
        self._top = _requested_top(llm, keywords)
        self._generation: Generation | None = None
        self._pieces: list[Any] = []
        self._so_far = ""

    def feed(self, response: Any) -> None:
        """Add the next piece of a streaming response."""
        if isinstance(response.raw, Generation):
            self._generation = response.raw
        elif has_choices(response.raw):
            # Each response holds the whole text so far; response.raw holds only the new piece.
            self._pieces.append(response.raw)
        else:
            part, self._so_far = reply_part(response, self._so_far, logprobs=True)
            self._pieces.append(part)

    def finish(self, response: Any) -> None:
        """Add the complete response, unless ``feed`` has added its pieces, and end the call."""
        if isinstance(getattr(response, "raw", None), Generation):
            self._generation = response.raw
        elif not self._pieces and response is not None:
            self._pieces = [response]
        self.end()

    def returned(self, response: object) -> bool:
        """Whether ``response`` is the object, or one of the pieces, that the call returned."""
        return any(piece is response for piece in self._pieces) or (
            self._generation is not None and self._generation is getattr(response, "raw", None)
        )

    def certainty(self, shown: str | None) -> Mapping[str, Any] | None:
        """Return the certainty of the text ``shown``; None if the call's text does not end with ``shown``.

        Thoughts or the steps of an agent may precede ``shown`` in the call's text.
        """
        try:
            certainty = self._certainty(shown)
        except SureragError as error:
            logger.warning("certainty.unreadable: %s", error.message)
            certainty = Certainty(reason=UNREADABLE, scope=self.scope)
        return None if certainty is None else certainty.to_dict()

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
        if self._generation is not None:
            return self._generation.text, self._generation.is_cut
        return "".join(part.text for part in parts).strip(), _is_cut(parts)

    def _trace(self, parts: Sequence[ReplyPart], answer: str, *, behind: bool) -> TokenTrace | None:
        """Return the answer's tokens with log-probabilities; None if the response has none.

        ``behind`` tells whether other tokens, such as thoughts, may precede the answer.
        """
        if self._generation is not None:
            return _trace_within(self._generation.trace, answer, behind=behind)
        entries = [entry for part in parts for entry in part.entries]
        return trace_of_answer(entries, answer, top_logprobs=self._top, thought=behind) if entries else None


def _shown_of(whole: str, shown: str | None) -> str | None:
    """Return ``shown`` without outer white space if the LLM's text ``whole`` ends with ``shown``; else None.

    Thoughts or the steps of an agent may precede ``shown`` in ``whole``. If ``shown`` is None, ``whole`` is
    returned.
    """
    if shown is None or (not whole and shown == _EMPTY_RESPONSE):
        return whole
    shown = shown.strip()
    before = whole.removesuffix(shown)
    if not whole.endswith(shown) or bool(shown) != bool(whole) or before[-1:].isalnum():
        return None  # the answer "12" does not come from the text "312"
    return shown


def _parts_in(piece: Any) -> Sequence[ReplyPart]:
    if isinstance(piece, ReplyPart):
        return [piece]
    if isinstance(piece, ChatResponse | CompletionResponse):
        return reply_parts(piece, logprobs=True)[:1]
    return [next_reply_part(plain(piece), logprobs=True)]


def _is_cut(parts: Sequence[ReplyPart]) -> bool:
    reasons = [part.finish for part in parts if part.finish]
    return bool(reasons) and finish_of(reasons[-1]) != "stop"


def _trace_within(trace: TokenTrace | None, answer: str, *, behind: bool) -> TokenTrace | None:
    """Return the tokens of the answer, cut out of the trace of everything that the LLM wrote.

    If ``behind`` is True, tokens before the answer, such as thoughts, are left out. If ``behind`` is False,
    the LLM wrote nothing but the answer, and the trace is returned unchanged.
    """
    if trace is None or not behind:
        return trace
    positions = answer_tokens(trace.tokens, answer, thought=True)
    part = slice(positions.start, positions.stop)
    entropy = trace.entropy and EntropyTrace(
        trace.entropy.lower[part], trace.entropy.upper[part], trace.entropy.exact
    )
    return TokenTrace(trace.tokens[part], trace.logprobs[part], entropy)


class _Span:
    """An open span of LlamaIndex's instrumentation.

    Attributes:
        around: The span that encloses this span; None for an outermost span.
        instance: The object whose method opened the span.
        keywords: The keyword arguments of this method call.
        sources: LLM calls, and answers of inner engines, since the span was opened; only the newest are kept.
    """

    def __init__(self, around: _Span | None, instance: Any, keywords: Mapping[str, Any]) -> None:
        self.around = around
        self.instance = instance
        self.keywords = keywords
        self.sources: deque[Source] = deque(maxlen=_CALLS_KEPT)

    def with_outer_spans(self) -> Iterator[_Span]:
        span: _Span | None = self
        while span is not None:
            yield span
            span = span.around

    def add(self, source: Source) -> None:
        for span in self.with_outer_spans():
            span.sources.append(source)
        stream_span = _STREAM_SPAN.get()
        if stream_span is not None and (not stream_span.sources or stream_span.sources[-1] is not source):
            stream_span.sources.append(source)

    @property
    def newest(self) -> Source | None:
        return self.sources[-1] if self.sources else None

    def certainty(self, text: str | None) -> tuple[Mapping[str, Any] | None, Wishes | None]:
        """Return the certainty of a text, and the user's settings for the LLM that wrote the text.

        The newest source that wrote the text counts. If several calls wrote the text at the same time, the
        call with the greatest uncertainty counts, because nothing shows which of these calls wrote the
        response. Both results are None if the uncertainty of the text is unknown and, besides, the user
        passed no LLM of this span to ``with_certainty``.
        """
        sources = list(self.sources)
        certainty: Mapping[str, Any]
        source, certainty = _writer_of(text, sources)
        if isinstance(source, Call) and (noted := _NOTED.get()) is not None:
            noted.append(source)
        wishes = None if source is None else source.wishes
        calls = [source for source in sources if isinstance(source, Call)]
        is_observed = not calls or any(call.wishes is not None for call in calls)
        return (certainty, wishes) if is_observed or certainty["uncertainty"] is not None else (None, None)


def _writer_of(text: str | None, sources: Sequence[Source]) -> tuple[Source | None, Mapping[str, Any]]:
    """Return the source that wrote a text, and the certainty of the text.

    If no source wrote the text, the source is None, and the certainty says why it is unknown.
    """
    for source in reversed(sources):
        certainty = source.certainty(text)
        if certainty is not None:
            beside = [one() for one in source.beside] if isinstance(source, Call) else []
            rivals = ((one, one.certainty(text)) for one in sources if one in beside)
            alike = [(source, certainty), *((one, other) for one, other in rivals if other is not None)]
            return max(alike, key=lambda pair: _uncertainty(pair[1]))
    return None, Certainty(reason=NOT_WRITTEN if sources else NO_WORDS).to_dict()


def _uncertainty(certainty: Mapping[str, Any]) -> float:
    return math.inf if certainty["uncertainty"] is None else float(certainty["uncertainty"])


def _writes(instance: object) -> bool:
    """Whether an object is an LLM that writes texts itself; a StructuredLLM calls another LLM."""
    return isinstance(instance, LLM) and not isinstance(instance, StructuredLLM)


class _Spans(BaseSpanHandler[BaseSpan]):
    @classmethod
    def class_name(cls) -> str:
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
        _OPEN[id_] = _Span(_OPEN.get(parent_id or ""), instance, bound_args.kwargs)

    def span_exit(
        self, id_: str, bound_args: Any, instance: Any = None, result: Any = None, **_: Any
    ) -> None:
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
        except Exception:  # otherwise LlamaIndex would ignore the error silently
            logger.exception("certainty.failed")

    def span_drop(self, id_: str, bound_args: Any, instance: Any = None, err: Any = None, **_: Any) -> None:
        _OPEN.pop(id_, None)

    def new_span(self, *_: Any, **__: Any) -> None:
        """Do nothing, because ``span_enter`` records each span."""

    def prepare_to_exit_span(self, *_: Any, **__: Any) -> None:
        """Do nothing, because ``span_exit`` handles each span that ends."""

    def prepare_to_drop_span(self, *_: Any, **__: Any) -> None:
        """Do nothing, because ``span_drop`` handles each span that fails."""


# Tuples, not unions: isinstance is faster with tuples, and is called for every event of the process.
_PIECES = (LLMChatInProgressEvent, LLMCompletionInProgressEvent)
_STARTS = (LLMChatStartEvent, LLMCompletionStartEvent)
_ENDS = (LLMChatEndEvent, LLMCompletionEndEvent)


class _Events(BaseEventHandler):
    @classmethod
    def class_name(cls) -> str:
        return "SureragCertaintyEvents"

    def handle(self, event: BaseEvent, **_: Any) -> None:
        try:
            self._take(event)
        except Exception:  # otherwise LlamaIndex would ignore the error silently
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
"""Running LLM calls, by the id of their span; a call stays in memory while its span or stream is open."""
_STREAMS: WeakKeyDictionary[Any, Source] = WeakKeyDictionary()
"""Streams that may still be read, each with the source of its text."""
_STREAM_SPAN: ContextVar[_Span | None] = ContextVar("surerag_stream_span", default=None)
"""The span of the response whose stream is being read; some LLMs are called only while a stream is read."""
_NOTED: ContextVar[list[Call] | None] = ContextVar("surerag_noted", default=None)
_WISHES: dict[int, tuple[ReferenceType[LLM], Wishes]] = {}
"""Weak references to the observed LLMs, and the users' settings, by ``id``, as LLMs cannot be hashed."""


def observe(llm: LLM | None = None, wishes: Wishes = Wishes()) -> None:  # noqa: B008 (it is immutable)
    """Add surerag's handlers to LlamaIndex's dispatcher, if they are not there yet, and register ``llm``.

    ``wishes`` are the settings that the user passed for ``llm``. If ``llm`` is None, no LLM is registered.

    If a registered LLM returns no log-probabilities, its response gets a certainty that says why. If an
    unregistered LLM returns no log-probabilities, its response gets no certainty.
    """
    if llm is not None:
        _WISHES[id(llm)] = ref(llm), wishes
        finalize(llm, _WISHES.pop, id(llm), None)
    if not any(handler is _SPANS for handler in root_dispatcher.span_handlers):
        # Our handler must be first: other handlers end their spans, and an ended span takes no attributes.
        root_dispatcher.span_handlers.insert(0, _SPANS)
    if not any(handler is _EVENTS for handler in root_dispatcher.event_handlers):
        root_dispatcher.event_handlers.insert(0, _EVENTS)


def _wishes_for(llm: LLM) -> Wishes | None:
    reference, wishes = _WISHES.get(id(llm), (None, None))
    return wishes if reference is not None and reference() is llm else None


@contextmanager
def noted_calls() -> Iterator[list[Call]]:
    """Collect the LLM calls that write the answers of engines in a ``with`` block.

    The last call in the list wrote the last answer.
    """
    calls: list[Call] = []
    token = _NOTED.set(calls)
    try:
        yield calls
    finally:
        _NOTED.reset(token)


def _requested_top(llm: LLM, keywords: Mapping[str, Any]) -> int | None:
    default = getattr(llm, "top_logprobs", None) if getattr(llm, "logprobs", None) else None
    top = keywords.get("top_logprobs", default)
    return top if isinstance(top, int) else None


def _settings_of(llm: LLM, keywords: Mapping[str, Any]) -> str:
    values = {**vars(llm), **(getattr(llm, "__pydantic_private__", None) or {}), **keywords}
    settings = [f"{name}={values[name]!r}" for name in _SETTINGS if values.get(name) is not None]
    return _fingerprint(tuple(settings))


def _note_unreported(span: _Span, response: Any) -> None:
    """Record the response of an LLM call, unless LlamaIndex has already reported the response in an event."""
    is_recorded = isinstance(span.newest, Call) and span.newest.returned(response)
    if _writes(span.instance) and not is_recorded:
        call = Call(span.instance, span.keywords)
        call.finish(response)
        span.add(call)


def _note_answer(span: _Span, span_id: str, result: Any) -> None:
    if isinstance(result, StopEvent):
        # Both the run of an agent and its last step return a StopEvent. Only the run's span has an instance.
        output = result.result if isinstance(span.instance, Workflow) else None
        if isinstance(output, AgentOutput):
            _measure_complete(span, span_id, Answer(output, output.response.content or ""))
    elif isinstance(result, StreamingResponse | AsyncStreamingResponse):
        _follow_stream(span, span_id, result)
    elif isinstance(result, StreamingAgentChatResponse):
        _follow_chat(span, span_id, result)
    elif isinstance(result, Response | PydanticResponse | AgentChatResponse):
        text = result.response if isinstance(result.response, str) else None
        _measure_complete(span, span_id, Answer(_metadata_of(result), text))


def _metadata_of(response: Any) -> dict[str, Any]:
    if getattr(response, "metadata", None) is None:
        response.metadata = {}
    metadata: dict[str, Any] = response.metadata
    return metadata


def _measure_complete(span: _Span, span_id: str, answer: Answer) -> None:
    """Add the certainty to a complete answer, and send an event.

    If an inner span has returned the same answer before, no second event is sent.
    """
    inner = span.newest
    is_repeated = isinstance(inner, Answer) and inner.values is answer.values
    answer.wishes = inner.wishes if inner is not None and is_repeated else None
    answer.passes(span, span_id)
    _measure(span, answer, as_event=not is_repeated)
    if not is_repeated and span.around is not None:
        span.around.add(answer)


def _measure(span: _Span, answer: Answer, *, as_event: bool = True) -> None:
    is_measured = KEY in answer.values
    if not is_measured or _NOTED.get() is not None:
        certainty, wishes = span.certainty(answer.text)
        if certainty is not None and not is_measured:
            answer.values[KEY], answer.wishes = dict(certainty), wishes
    answer.report(as_event=as_event)
    answer.end()


def _follow_stream(span: _Span, span_id: str, response: Any) -> None:
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
    pieces, stream = list[str](), iter(stream)
    try:
        while True:
            with _reading(span):
                piece = next(stream, _END)
            if piece is _END:
                break
            pieces.append(str(piece))
            yield piece
    finally:
        if hasattr(stream, "close"):
            stream.close()
    answer.text = "".join(pieces)
    _measure(span, answer)


async def _apieces(stream: Any, span: _Span, answer: Answer) -> AsyncGenerator[Any]:
    pieces = list[str]()
    try:
        while True:
            with _reading(span):
                piece = await anext(stream, _END)
            if piece is _END:
                break
            pieces.append(str(piece))
            yield piece
    finally:
        if hasattr(stream, "aclose"):
            await stream.aclose()
    answer.text = "".join(pieces)
    _measure(span, answer)


@contextmanager
def _reading(span: _Span) -> Iterator[None]:
    """Assign each LLM call in the ``with`` block to ``span``.

    The block reads the stream of the response that ``span`` returned.
    """
    token = _STREAM_SPAN.set(span)
    try:
        yield
    finally:
        _STREAM_SPAN.reset(token)


def _follow_chat(span: _Span, span_id: str, response: Any) -> None:
    """Add the certainty to a chat engine's streaming response when the stream has ended."""
    answer = Answer(_metadata_of(response))
    answer.passes(span, span_id)
    newest = span.newest
    if newest is None:
        _measure(span, answer)
    else:
        newest.when_ended(lambda: _measure(span, answer))
