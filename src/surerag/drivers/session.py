"""One program at work: its context, its listener, and what it holds open."""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from surerag.drivers.spending import Spending
from surerag.effects import Begin, Cancel, Effect, Emit, Finish, Give, Program
from surerag.errors import ConfigurationError
from surerag.prices import Costed
from surerag.services import Services
from surerag.types import Begun, Event

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
        self._spending = Spending(services)
        self._open: dict[int, Begun] = {}
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
                self._spending.note(self.effect, value)
            self._step(lambda: self._program.send(value))

    def _step(self, resume: Callable[[], Effect]) -> None:
        try:
            self.effect = self.context.run(resume)
            while isinstance(self.effect, Emit) or (isinstance(self.effect, Give) and not self.streams):
                if isinstance(self.effect, Emit):
                    self.context.run(self._announce, self.effect.event)
                value = self.effect.generation if isinstance(self.effect, Give) else None
                self.effect = self.context.run(self._program.send, value)
        except StopIteration as stop:
            self.effect, self.result, self.done = None, stop.value, True
            if isinstance(stop.value, Costed):
                # In place: listeners were shown this very result, before anybody could know its cost.
                object.__setattr__(stop.value, "spent", self._spending.total())

    def _announce(self, event: Event) -> None:
        if event.warning:
            logger.warning("%s: %s", event.name, dict(event.data))
        if self._on_event is not None:
            self._on_event(event)

    def _account(self, value: Any) -> None:
        if isinstance(self.effect, Begin):
            self._open.update((id(begun), begun) for begun in value)
        elif isinstance(self.effect, Finish | Cancel):
            for begun in self.effect.begun:
                self._open.pop(id(begun), None)

    def close(self) -> tuple[Begun, ...]:
        """End the program and return what it began and left open; the driver has to cancel that."""
        self.closed = True
        self.context.run(self._program.close)
        left = tuple(self._open.values())
        self._open.clear()
        return left
