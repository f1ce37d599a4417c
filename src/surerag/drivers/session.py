"""One program at work: its context, its listener, its usage, and the generations that it left open."""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from surerag.drivers.answering import Failed
from surerag.drivers.merging import queues_of
from surerag.effects import (
    CancelGeneration,
    ContinueGeneration,
    Effect,
    Emit,
    Program,
    ReturnAnswer,
    StartGeneration,
)
from surerag.messages import Event, PartialGeneration, Result, Usage
from surerag.services import Services

R = TypeVar("R")
Listener = Callable[[Event], None]
logger = logging.getLogger("surerag")


class Session(Generic[R]):
    """Steps a program in its caller's context, counts its usage, and lists what it began.

    The context (contextvars, hence tracing and callbacks) is copied when the session is made, and every
    step runs in that copy, whichever thread takes it. From then on the queues of local models count the
    program, until it is closed.
    """

    def __init__(self, program: Program[R], services: Services, on_event: Listener | None = None) -> None:
        self.context = contextvars.copy_context()
        self.services = services
        self.effect: Effect[Any] | None = None
        self.result: R | None = None
        self.done = False
        # Whether the driver streams the answer; if not, ReturnAnswer is answered here.
        self.streams = False
        self.closed = False
        self._program = program
        self._on_event = on_event
        self._usage = Usage()
        self._started = time.perf_counter()
        self._open: dict[int, PartialGeneration] = {}
        self._token = object()
        self._queues = queues_of(services)
        for queue in self._queues:
            queue.enter(self._token)

    def start(self) -> None:
        """Run up to the first effect."""
        self._started = time.perf_counter()
        self._step(lambda: next(self._program))

    def advance(self, outcome: Any) -> None:
        """Answer the current effect, or raise what it failed with, and run up to the next one or the end."""
        if isinstance(outcome, Failed):
            error = outcome.error
            self._step(lambda: self._program.throw(error))
        else:
            self._account(outcome)
            self._step(lambda: self._program.send(outcome))

    def close(self) -> tuple[PartialGeneration, ...]:
        """End the program and return what it began and left open; the driver has to cancel that."""
        self.closed = True
        for queue in self._queues:
            queue.leave(self._token)
        self.context.run(self._program.close)
        left = tuple(self._open.values())
        self._open.clear()
        return left

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
                self.result = replace(stop.value, usage=usage)  # type: ignore[assignment]  # the same type

    def _announce(self, event: Event) -> None:
        if event.warning:
            logger.warning("%s", sentence_of(event))
        if self._on_event is not None:
            self._on_event(event)

    def _account(self, value: Any) -> None:
        if isinstance(self.effect, StartGeneration):
            self._open.update((id(begun), begun) for begun in value)
        elif isinstance(self.effect, ContinueGeneration | CancelGeneration):
            for begun in self.effect.begun:
                self._open.pop(id(begun), None)
        if self.effect is not None:
            self._usage += self.effect.usage(value)


_HAPPENED = {
    "lazy_rag.gate": "The first answer cannot be judged, so that passages are searched",
    "lazy_rag.cut_off": "The answer was cut off at its longest length",
    "lazy_rag.nothing_retrieved": "The retriever returned no passages",
    "dynqr.nothing_retrieved": "The retriever returned no passages",
    "dynqr.failed": "No rewrite was tried, and the first answer stays",
    "dense.not_rephrased": "Some passages could not be rephrased and are left as they are",
    "dense.not_conclusive": "Too few answers are usable to say how certain they are",
    "dense.unclear_evaluation": "The model's reply is neither yes nor no, and counts as no",
    "dense_refiner.failed": "The passages could not be refined and are returned as they came",
    "edc2.not_compressed": "The context, or a part of it, could not be shortened and is left as it is",
    "edc2.fallback": "Nothing was found relevant, so that the passages are left as they are",
    "edc2.embedded_again": "The query's vector does not fit the passages', which are embedded again",
    "seper.frequency_weights": "Answers of unknown probability are weighed by how often they came",
    "seper.truncated": "Some answers were cut off at their longest length",
}
_EXCERPT = 120
"""Characters of a question or reply in a log."""


def sentence_of(event: Event) -> str:
    """Return a warning as a sentence for a log; what :data:`_HAPPENED` lacks is told by its name.

    Example:
        >>> sentence_of(Event("dynqr.failed", {"question": "Who?", "reason": "time-out"}))
        'No rewrite was tried, and the first answer stays: time-out; question: Who? [dynqr.failed]'
    """
    words = event.name.rpartition(".")[2].replace("_", " ")
    told = dict(event.data)
    reason = str(told.pop("reason", "") or "")
    parts = [_HAPPENED.get(event.name, words.capitalize()) + (f": {reason}" if reason else "")]
    for name, value in told.items():
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        short = text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]} …"
        parts.append(f"{name.replace('_', ' ')}: {short}")
    return f"{'; '.join(parts)} [{event.name}]"
