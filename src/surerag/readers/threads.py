"""Blocking calls in separate threads, and work that stops if nobody waits for its result.

A model that generates in a thread cannot be interrupted; it calls ``raise_if_cancelled`` before every step.

Each call has its own daemon thread. An event loop's thread pool would be small, and the loop waits for the
pool when it ends, so that a cancelled call that still blocks would delay the end of the program.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

logger = logging.getLogger("surerag")

R = TypeVar("R")


class CancelledWorkError(BaseException):
    """Work was stopped because nobody waits for its result; the service itself did not fail."""


_cancelled: ContextVar[Callable[[], bool]] = ContextVar("surerag_cancelled", default=lambda: False)


@contextmanager
def cancel_when(predicate: Callable[[], bool]) -> Iterator[None]:
    """Stop work in this context as soon as ``predicate``, or the predicate of an outer block, is True."""
    outer = _cancelled.get()
    token = _cancelled.set(lambda: predicate() or outer())
    try:
        yield
    finally:
        _cancelled.reset(token)


def raise_if_cancelled() -> None:
    """Raise CancelledWorkError if nobody waits for the result any more."""
    if _cancelled.get()():
        raise CancelledWorkError("nobody waits for this any more")


def start_in_thread(function: Callable[..., R], *arguments: Any) -> Future[R]:
    """Call a blocking function in a daemon thread, in a copy of the context; nothing can cancel it."""
    future: Future[R] = Future()
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            result = context.run(function, *arguments)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="surerag-blocking", daemon=True).start()
    return future


async def in_thread(function: Callable[..., R], *arguments: Any) -> R:
    """Await a blocking function in a thread; after a cancellation ``raise_if_cancelled`` stops it there."""
    left = threading.Event()

    def call() -> R:
        with cancel_when(left.is_set):
            return function(*arguments)

    try:
        return await asyncio.wrap_future(start_in_thread(call))
    except asyncio.CancelledError:
        left.set()
        raise


def run_blocking(coroutine: Coroutine[Any, Any, R]) -> R:
    """Return the result of a coroutine that never suspends, because it makes only blocking calls."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # what the coroutine returned
    raise RuntimeError("a blocking call waited for an event loop")


async def maybe_await(result: Any) -> Any:
    """Return a result; if the result is awaitable, await it first."""
    return await result if inspect.isawaitable(result) else result


def renew_after_fork(callback: Callable[[], object]) -> None:
    """Call a function at the beginning of every forked process, where the parent's locks may be held."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=callback)


_closing: set[asyncio.Task[object]] = set()
"""Tasks that close streams and clients; they are kept here, because an event loop keeps no reference."""


def close_in_loop_when_dropped(handle: object, aclose: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Await ``aclose()`` in the running event loop once ``handle`` is garbage; a finaliser must not wait.

    ``aclose`` must not refer to the handle, or else the handle never becomes garbage.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()

    async def close() -> None:
        try:
            await aclose()
        except Exception:
            logger.debug("closing a dropped stream failed", exc_info=True)

    def spawn() -> None:
        task = loop.create_task(close(), context=context)
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    def drop() -> None:
        # If the loop has ended, its connections are closed already.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(spawn)

    weakref.finalize(handle, drop).atexit = False
