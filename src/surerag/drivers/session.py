"""Holds one running method: its generator, context, listener, usage, and unfinished generations."""

from __future__ import annotations

import contextvars
import json
import logging
import math
import sys
import time
from collections.abc import Callable
from dataclasses import fields, replace
from string import Formatter
from typing import Any, Generic, TypeVar

from surerag.drivers.answering import Failed, queues_of
from surerag.effects import (
    CancelGeneration,
    ContinueGeneration,
    Effect,
    Emit,
    Program,
    ReturnAnswer,
    StartGeneration,
)
from surerag.messages import EVENT_SENTENCES, Event, Result, Usage
from surerag.readers.failures import described
from surerag.readers.protocol import BegunGeneration
from surerag.services import Services
from surerag.text import on_one_line

R = TypeVar("R")
Listener = Callable[[Event], None]
logger = logging.getLogger("surerag")


class _OneLine(logging.Filter):
    """Escapes characters with which a user's or a service's text could forge further lines of a log."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = on_one_line(record.getMessage()), ()
        return True


logger.addFilter(_OneLine())


class Session(Generic[R]):
    """Runs a method's generator stepwise, counts model calls and tokens, and tracks unfinished generations.

    The caller's context (contextvars, and so tracing and callbacks) is copied when the session is created.
    Every step runs in this copy, whichever thread runs the step. A local
    model has a queue that merges requests into batches. Until the session is closed, this queue waits for
    requests of this method.
    """

    def __init__(self, program: Program[R], services: Services, on_event: Listener | None = None) -> None:
        self.context = contextvars.copy_context()
        self.services = services
        self.effect: Effect[Any] | None = None
        self.result: R | None = None
        self.done = False
        # Whether the driver streams the answer; if not, the session itself answers ReturnAnswer.
        self.streams = False
        self.closed = False
        self._program = program
        self._on_event = on_event
        self._usage = Usage()
        self._started = time.perf_counter()
        self._failure: BaseException | None = None
        self._open: dict[int, BegunGeneration] = {}
        self._token = object()
        self._queues = queues_of(services)
        for queue in self._queues:
            queue.enter(self._token)

    def start(self) -> None:
        """Run the method's generator until it yields its first request (an effect)."""
        self._started = time.perf_counter()
        self._step(lambda: next(self._program))

    def advance(self, outcome: Any) -> None:
        """Give the generator an answer, or raise a failure inside the generator; run to its next request."""
        if isinstance(outcome, Failed):
            error = self._failure = outcome.error
            self._step(lambda: self._program.throw(error))
        else:
            self._account(outcome)
            self._step(lambda: self._program.send(outcome))

    def close(self) -> tuple[BegunGeneration, ...]:
        """Close the generator, and return the unfinished generations, which the driver must close."""
        self.closed = True
        for queue in self._queues:
            queue.leave(self._token)
        self.context.run(self._program.close)
        unfinished = tuple(self._open.values())
        self._open.clear()
        return unfinished

    def _step(self, resume: Callable[[], Effect[Any]]) -> None:
        try:
            self.effect = self.context.run(resume)
            while isinstance(self.effect, Emit) or (
                isinstance(self.effect, ReturnAnswer) and not self.streams
            ):
                if isinstance(self.effect, Emit):
                    self.context.run(self._announce, self.effect.event)
                value = self.effect.generation if isinstance(self.effect, ReturnAnswer) else None
                self.effect = self.context.run(self._program.send, value)
        except StopIteration as stop:
            self.effect, self.result, self.done = None, stop.value, True
            if isinstance(stop.value, Result):
                usage = replace(self._usage, seconds=time.perf_counter() - self._started)
                with_usage = replace(stop.value, usage=usage)
                self.result = with_usage  # type: ignore[assignment]  # the same type
                self.context.run(_report, with_usage)

    def _announce(self, event: Event) -> None:
        level = logging.WARNING if event.warning else logging.DEBUG
        if logger.isEnabledFor(level):
            failure, self._failure = (self._failure, None) if event.warning else (None, self._failure)
            # Only the log shows the error's full text, with the server's address and advice for operators.
            cause = "" if failure is None else f"; {described(failure)}"
            hidden = () if logger.isEnabledFor(logging.DEBUG) else _USERS_WORDS
            data = {name: value for name, value in event.data.items() if name not in hidden}
            logger.log(level, "%s%s", sentence_of(replace(event, data=data)), cause)
        if self._on_event is not None:
            self._on_event(event)

    def _account(self, value: Any) -> None:
        if isinstance(self.effect, StartGeneration):
            self._open.update((id(begun), begun) for begun in value)
        elif isinstance(self.effect, ContinueGeneration | CancelGeneration):
            self._open.pop(id(self.effect.begun), None)
        if self.effect is not None:
            self._usage += self.effect.usage(value)


def _report(result: Result) -> None:
    telemetry: Any = sys.modules.get("opentelemetry.trace")
    if telemetry is None and not logger.isEnabledFor(logging.INFO):
        return
    record = decision_record(result)
    if telemetry is not None:
        name = record["method"]
        values = {key: value for key, value in record.items() if value is not None and key != "method"}
        attributes = {f"surerag.{name}.{key}": value for key, value in values.items()}
        telemetry.get_current_span().set_attributes(attributes)
    if logger.isEnabledFor(logging.DEBUG):
        record["question"] = str(getattr(result, "question", getattr(result, "query", "")))
    logger.info("decision %s", json.dumps(record), extra={"decision": record})


def decision_record(result: Result) -> dict[str, str | float | None]:
    """Return a method's decision and cost as JSON values; the only text is the method's name.

    The numbers and booleans come from the result, and from its attribute ``decision`` if it exists. A number
    that is not finite becomes None.
    """
    decision = getattr(result, "decision", result)
    to_dict = getattr(decision, "to_dict", None)
    usage = result.usage
    values = {
        **{item.name: getattr(result, item.name) for item in fields(result)},
        **(to_dict() if to_dict else {}),
        **(
            {"passages": len(passages)} if (passages := getattr(result, "passages", None)) is not None else {}
        ),
        "requests": usage.requests,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "seconds": round(usage.seconds, 4),
    }
    numbers = {name: value for name, value in values.items() if isinstance(value, bool | int | float)}
    finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return {"method": type(result).__name__.removesuffix("Result"), **finite}


_USERS_WORDS = ("question", "query", "reply", "answer", "answers", "original_answer")
"""Keys of event data that are logged only at the level DEBUG, because their values are users' words."""
_EXCERPT = 120
"""Maximum number of characters of a question or reply in a log."""


def sentence_of(event: Event) -> str:
    """Return an event as a sentence for a log; an event without its own sentence is described by its name.

    Example:
        >>> from surerag import UncertaintyRewriter  # DynQR adds the sentences of its events
        >>> sentence_of(Event("dynqr.failed", {"question": "Who?", "reason": "time-out"}))
        'No rewrite was used, and the first answer stays: time-out; question: Who? [dynqr.failed]'
    """
    words = event.name.rpartition(".")[2].replace("_", " ").capitalize()
    remaining = dict(event.data)
    fields = [name for _, name, _, _ in Formatter().parse(EVENT_SENTENCES.get(event.name, words)) if name]
    inserted = {name: remaining.pop(name, "some") for name in fields}
    reason = str(remaining.pop("reason", "") or "")
    parts = [EVENT_SENTENCES.get(event.name, words).format_map(inserted) + (f": {reason}" if reason else "")]
    for name, value in remaining.items():
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        short = text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]} …"
        parts.append(f"{name.replace('_', ' ')}: {short}")
    return on_one_line(f"{'; '.join(parts)} [{event.name}]")
