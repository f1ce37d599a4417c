"""Closing what was left open, from a place where closing cannot hang.

A finaliser runs wherever its thread stands when the last reference goes, or when the garbage collector
comes by. That may be in the middle of an HTTP client's pool of connections, whose lock is not re-entrant: a
finaliser that closes a response there waits for its own thread, for ever. So nothing is closed by a
finaliser. What is open belongs to this module until it was closed; dropping its handle, or closing it by
hand, passes it to other threads, or to the event loop that it was opened in.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

from surerag.readers.threads import renew_after_fork, start_in_thread

logger = logging.getLogger("surerag")

HangUp = Callable[[], "Future[None] | None"]
"""Passes something on to be closed, from anywhere and without waiting, and returns what is done once it was
closed; calling it again does nothing, and returns None."""

_Close = Callable[[], Coroutine[Any, Any, object]]

_MOMENT = 1.0
"""Seconds for which somebody waits for a close, which takes milliseconds. Not for ever: a finaliser may have
brought him here, in the middle of what the close is waiting for."""


def close_when_dropped(handle: object, close: Callable[[], object]) -> HangUp:
    """Have something closed in another thread, once its handle is dropped or hung up.

    Args:
        handle: What the caller holds; ``close`` must not refer to it, or it is never dropped.
        close: Closes it; called in a copy of the present context, at most once.

    Returns:
        A function that has it closed now.

    Example:
        >>> closed = threading.Event()
        >>> hang_up = close_when_dropped(handle := type("Handle", (), {})(), closed.set)
        >>> await_closed(hang_up())
        >>> closed.is_set()
        True
    """
    # Here, because a finaliser is no place to start a thread.
    _closer.start()
    return _finaliser(handle, _closer.put, partial(contextvars.copy_context().run, close))


def close_in_loop_when_dropped(handle: object, close: _Close) -> HangUp:
    """Like :func:`close_when_dropped`, for what has to be closed in the running event loop."""
    return _finaliser(
        handle, _soon, asyncio.get_running_loop(), _in_loop(), contextvars.copy_context(), close
    )


def when_loop_ends(close: Callable[[], Awaitable[object]]) -> AsyncGenerator[None]:
    """Have something closed when the running loop ends: that closes all generators which are left.

    Returns:
        What has to be kept until then; dropped, it closes at once.
    """

    async def last_act() -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await close()

    waiting = last_act()
    # Up to its yield it awaits nothing; from then on the running loop knows it.
    with suppress(StopIteration):
        waiting.asend(None).send(None)
    return waiting


def await_closed(*closing: Future[None] | None) -> None:
    """Wait a moment for what was hung up, so that all who watch it have seen it end."""
    wait([future for future in closing if future is not None], timeout=_MOMENT)


async def aawait_closed(*closing: Future[None] | None) -> None:
    """Like :func:`await_closed`, without blocking."""
    futures = [asyncio.wrap_future(future) for future in closing if future is not None]
    if futures:
        await asyncio.wait(futures, timeout=_MOMENT)


def _finaliser(handle: object, pass_on: Callable[..., Future[None]], *what: object) -> HangUp:
    # It keeps what is open alive and reachable, so that the collector never takes it for garbage.
    finaliser = weakref.finalize(handle, pass_on, *what)
    finaliser.atexit = False
    return finaliser


class _Closer:
    """A thread that has others close; it starts when first needed, anew in a forked process."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        # The only queue that may be put to while the same thread is putting to it.
        self._jobs: SimpleQueue[_Job] = SimpleQueue()

    def start(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=_work, args=(self._jobs,), name="surerag-closer", daemon=True
                )
                self._thread.start()

    def put(self, close: Callable[[], object]) -> Future[None]:
        job = _Job(close, Future())
        self._jobs.put(job)
        return job.closed


class _Job(NamedTuple):
    """What is to be done, and what tells that it is done."""

    close: Callable[[], object]
    closed: Future[None]


def _work(jobs: SimpleQueue[_Job]) -> None:
    while True:
        # In a thread of its own: a server that is silent may hold up one, and no other.
        start_in_thread(_close, jobs.get())


def _close(job: _Job) -> None:
    try:
        job.close()
    except Exception:
        # Nobody asks how it went; the next one is waiting.
        logger.debug("closing an abandoned stream failed", exc_info=True)
    finally:
        job.closed.set_result(None)


_closer = _Closer()


_TURNS = 10
"""For how many turns of a loop that ends something may still be dropped, to be closed in it."""


class _InLoop:
    """What is being closed in the running event loop, which itself holds its tasks only weakly."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()
        self._over = False
        # What is dropped on the way out of a program is closed before the loop is.
        self._last_act = when_loop_ends(self._end)

    def spawn(self, context: contextvars.Context, close: _Close, closed: Future[None]) -> None:
        if self._over:
            # A loop that ends closes its connections by itself, and runs no further task.
            closed.set_result(None)
            return
        task = asyncio.get_running_loop().create_task(_aclose(close, closed), context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self) -> None:
        # Generators that are closed at the same time drop what they hold.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self._over = True
        if self._tasks:
            _, silent = await asyncio.wait(self._tasks, timeout=_MOMENT)
            for task in silent:
                task.cancel()
            if silent:
                await asyncio.wait(silent, timeout=_MOMENT)


_in_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _InLoop] = weakref.WeakKeyDictionary()
_entering = threading.Lock()


def _in_loop() -> _InLoop:
    loop = asyncio.get_running_loop()
    with _entering:
        if loop not in _in_loops:
            # What is to be done when a loop ends holds on to it.
            for ended in [other for other in _in_loops if other.is_closed()]:
                del _in_loops[ended]
            _in_loops[loop] = _InLoop()
        return _in_loops[loop]


def _reset() -> None:
    global _closer, _in_loops, _entering
    _closer = _Closer()
    _in_loops = weakref.WeakKeyDictionary()
    _entering = threading.Lock()


renew_after_fork(_reset)


def _soon(
    loop: asyncio.AbstractEventLoop, here: _InLoop, context: contextvars.Context, close: _Close
) -> Future[None]:
    closed: Future[None] = Future()
    # A loop that is closing at this very moment closes its connections by itself.
    if loop.is_closed():
        closed.set_result(None)
        return closed
    try:
        loop.call_soon_threadsafe(here.spawn, context, close, closed)
    except RuntimeError:
        logger.debug("an event loop ended before a stream of it could be closed")
        closed.set_result(None)
    return closed


async def _aclose(close: _Close, closed: Future[None]) -> None:
    try:
        await close()
    except Exception:
        logger.debug("closing an abandoned stream failed", exc_info=True)
    finally:
        closed.set_result(None)
