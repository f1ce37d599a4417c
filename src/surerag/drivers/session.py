"""One program at work: its context, its listener, and what it holds open."""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from surerag.effects import (
    CancelGeneration,
    ContinueGeneration,
    Effect,
    Emit,
    Entail,
    Generate,
    Program,
    ReturnAnswer,
    StartGeneration,
)
from surerag.errors import ConfigurationError
from surerag.messages import Event, Generation, PartialGeneration, Result, Usage
from surerag.services import Services

R = TypeVar("R")
Listener = Callable[[Event], None]
logger = logging.getLogger("surerag")


@dataclass(frozen=True, slots=True)
class Answered:
    """What an effect was answered with."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """The exception that an effect ended in; it is raised inside the program, at its ``yield``."""

    error: BaseException


Outcome = Answered | Failed


def check_window(window: int) -> None:
    """Refuse to run no programs at a time.

    Raises:
        ConfigurationError: If ``window`` is less than 1.
    """
    if window < 1:
        raise ConfigurationError(f"window must be at least 1, got {window!r}")


class Session(Generic[R]):
    """Steps a program in its caller's context and keeps account of the generations it began.

    The context (contextvars, hence tracing and callbacks) is copied when the session is made, and every
    step runs in that copy, whichever thread takes it. A result that has a place for it is told what it cost.

    Attributes:
        streams: Whether the driver streams the answer, and has to be shown one that is there already.
    """

    def __init__(self, program: Program[R], services: Services, on_event: Listener | None = None) -> None:
        self.context = contextvars.copy_context()
        self._program = program
        self._on_event = on_event
        self._services = services
        self._usage = Usage()
        self._started = time.perf_counter()
        self._open: dict[int, PartialGeneration] = {}
        self.effect: Effect | None = None
        self.result: R | None = None
        self.done = False
        self.streams = False
        self.closed = False

    def start(self) -> None:
        """Run up to the first effect."""
        self._step(lambda: next(self._program))

    def advance(self, outcome: Outcome) -> None:
        """Answer the current effect and run up to the next one, or to the end.

        Raises:
            BaseException: Whatever the program raises.
        """
        if isinstance(outcome, Failed):
            error = outcome.error
            self._step(lambda: self._program.throw(error))
        else:
            value = outcome.value
            self._account(value)
            if self.effect is not None:
                self._usage += usage_of_effect(self.effect, value)
            self._step(lambda: self._program.send(value))

    def _step(self, resume: Callable[[], Effect]) -> None:
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
            logger.warning("%s: %s", event.name, dict(event.data))
        if self._on_event is not None:
            self._on_event(event)

    def _account(self, value: Any) -> None:
        if isinstance(self.effect, StartGeneration):
            self._open.update((id(begun), begun) for begun in value)
        elif isinstance(self.effect, ContinueGeneration | CancelGeneration):
            for begun in self.effect.begun:
                self._open.pop(id(begun), None)

    def close(self) -> tuple[PartialGeneration, ...]:
        """End the program and return what it began and left open; the driver has to cancel that."""
        self.closed = True
        self.context.run(self._program.close)
        left = tuple(self._open.values())
        self._open.clear()
        return left


def usage_of_effect(effect: Effect, answer: Any) -> Usage:
    """Return the calls and tokens of an answered effect; retrieving and embedding are no calls."""
    match effect:
        case Generate():
            first = [samples[0] for samples in answer]
            return _prompts(first, sum(map(len, answer))) + _completions(
                [item for row in answer for item in row]
            )
        case StartGeneration():
            return _prompts([item.partial for item in answer], len(answer))
        case ContinueGeneration():
            return _completions(answer)
        case CancelGeneration(begun):
            return _completions([item.partial for item in begun])
        case Entail(pairs):
            return Usage(requests=len(pairs))
        case _:
            return Usage()


def _prompts(first: Sequence[Generation], requests: int) -> Usage:
    """Return the usage of reading prompts; samples of one prompt read it once."""
    return Usage(
        requests=requests,
        prompt_tokens=sum(item.prompt_tokens for item in first),
        cached_tokens=sum(item.cached_tokens for item in first),
    )


def _completions(generations: Sequence[Generation]) -> Usage:
    return Usage(
        completion_tokens=sum(item.completion_tokens for item in generations),
        thinking_tokens=sum(item.thinking_tokens for item in generations),
    )
