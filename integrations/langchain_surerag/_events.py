"""A method's events as LangChain's custom events, visible in ``astream_events`` and to callback handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langchain_core.runnables import RunnableConfig, ensure_config

from langchain_surerag._local_runs import RunEvent
from surerag.messages import Event


def announcer(config: RunnableConfig) -> Callable[[Event], None]:
    """Return a listener that hands events to the handlers of a run, as they happen."""

    def announce_to_run(event: Event) -> None:
        if isinstance(event, RunEvent):
            event.tell(config)
        elif _has_run(config):
            dispatch_custom_event(event.name, dict(event.data), config=config)

    return announce_to_run


def announce(event: Event) -> None:
    """Hand an event to the handlers of the run that this context belongs to, if there is one."""
    announcer(ensure_config())(event)


_announcing: ContextVar[Announcing | None] = ContextVar("surerag_langchain_announcing", default=None)


async def announced() -> None:
    """Wait until what this context's method announced so far has been heard: so that order is kept."""
    announcing = _announcing.get()
    if announcing is not None:
        await announcing.drained()


class Announcing:
    """The same for coroutines: events are handed on in order, by a task beside the method's.

    A method announces from inside a step that cannot await; a handler may have to.
    """

    def __init__(self, config: RunnableConfig) -> None:
        self._config = config
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def __call__(self, event: Event) -> None:
        """Take an event."""
        self._events.put_nowait(event)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._hand_on())
        self._token = _announcing.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ValueError):  # a generator may be closed from another context
            _announcing.reset(self._token)
        self._events.put_nowait(None)
        if self._task is not None:
            if kind is not None and not issubclass(kind, Exception):
                # The caller has gone; nobody is left to listen.
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=kind is not None)

    async def drained(self) -> None:
        """Wait until every event so far has reached its handlers."""
        await self._events.join()

    async def _hand_on(self) -> None:
        # A handler that asks something of its own waits for nobody here.
        _announcing.set(None)
        failure: Exception | None = None
        while (event := await self._events.get()) is not None:
            try:
                if isinstance(event, RunEvent):
                    await event.atell(self._config)
                elif _has_run(self._config):
                    await adispatch_custom_event(event.name, dict(event.data), config=self._config)
            except Exception as error:
                # A handler that raises is heard at the end, and does not silence the others.
                failure = failure or error
            finally:
                self._events.task_done()
        if failure is not None:
            raise failure


def _has_run(config: RunnableConfig) -> bool:
    """Whether there is a run that events can belong to; without one, LangChain raises."""
    callbacks: Any = config.get("callbacks")
    return getattr(callbacks, "parent_run_id", None) is not None
