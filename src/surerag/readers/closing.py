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
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

from surerag.readers.forks import in_child
from surerag.readers.threads import start_in_thread

logger = logging.getLogger("surerag")

HangUp = Callable[[], "Future[None] | None"]
"""Passes something on to be closed, from anywhere and without waiting, and returns what is done once it was
closed; calling it again does nothing, and returns None."""

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


def close_in_loop_when_dropped(handle: object, close: Callable[[], Coroutine[Any, Any, object]]) -> HangUp:
    """Like :func:`close_when_dropped`, for what has to be closed in the running event loop."""
    return _finaliser(handle, _soon, asyncio.get_running_loop(), contextvars.copy_context(), close)


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


def _reset() -> None:
    global _closer
    _closer = _Closer()


in_child(_reset)


_closing: set[asyncio.Task[object]] = set()
"""Tasks that close something: an event loop itself holds them only weakly."""


def _soon(
    loop: asyncio.AbstractEventLoop,
    context: contextvars.Context,
    close: Callable[[], Coroutine[Any, Any, object]],
) -> Future[None]:
    closed: Future[None] = Future()
    # A loop that is closing at this very moment closes its connections by itself.
    if loop.is_closed():
        closed.set_result(None)
        return closed
    try:
        loop.call_soon_threadsafe(_spawn, loop, context, close, closed)
    except RuntimeError:
        logger.debug("an event loop ended before a stream of it could be closed")
        closed.set_result(None)
    return closed


def _spawn(
    loop: asyncio.AbstractEventLoop,
    context: contextvars.Context,
    close: Callable[[], Coroutine[Any, Any, object]],
    closed: Future[None],
) -> None:
    task = loop.create_task(_aclose(close, closed), context=context)
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _aclose(close: Callable[[], Coroutine[Any, Any, object]], closed: Future[None]) -> None:
    try:
        await close()
    except Exception:
        logger.debug("closing an abandoned stream failed", exc_info=True)
    finally:
        closed.set_result(None)
