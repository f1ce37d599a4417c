"""Ways to call methods (blocking, awaited or in threads), so that sync and async code is written once.

A thread cannot be interrupted, so a model in a thread calls ``raise_if_cancelled`` before each step. At the
end of the process, the threads that call local models are stopped in the same way.

Each blocking call that async code awaits has its own daemon thread. The thread pool of the event loop is not
used, because the pool is small, and because the loop waits for the pool when the loop ends. So a cancelled
call that still blocks in the pool would delay the end of the process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import inspect
import logging
import os
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, ClassVar, Literal, TypeVar

logger = logging.getLogger("surerag")

T = TypeVar("T")
R = TypeVar("R")


class CancelledWorkError(BaseException):
    """Work was stopped because nobody waits for its result; the service itself did not fail.

    It derives from BaseException so that ``except Exception`` does not catch it.
    """


_ENDING_SECONDS = 10.0
"""Longest wait for running calls of local models at the end of the process, in seconds."""
_cancelled: ContextVar[Callable[[], bool]] = ContextVar("surerag_cancelled", default=lambda: False)


@contextmanager
def cancel_when(predicate: Callable[[], bool]) -> Iterator[None]:
    """Inside the ``with`` block, let ``raise_if_cancelled`` raise its error once ``predicate()`` is True.

    Inside nested blocks, ``raise_if_cancelled`` raises its error once the predicate of any block is True.
    """
    outer = _cancelled.get()
    token = _cancelled.set(lambda: predicate() or outer())
    try:
        yield
    finally:
        _cancelled.reset(token)


def raise_if_cancelled() -> None:
    """Raise CancelledWorkError if nobody waits for the running work's result, or if the process ends."""
    if _ModelCalls.ending or _cancelled.get()():
        raise CancelledWorkError("nobody waits for the result any more")


class _BlockingThread(threading.Thread):
    """A thread of :func:`start_in_thread`."""


class _ModelCalls:
    ending = False
    running = 0
    changed = threading.Condition()
    threads: ClassVar[weakref.WeakSet[_BlockingThread]] = weakref.WeakSet()


@contextmanager
def model_call() -> Iterator[None]:
    """Count a call of a local model, which runs in the ``with`` block.

    When the process ends, running calls are stopped at their next token. The process waits for the end of
    the calls, and for the end of the threads of :func:`start_in_thread` that have made such calls, because
    torch would abort the process otherwise, even if a thread only frees a tensor.
    """
    thread = threading.current_thread()
    with _ModelCalls.changed:
        raise_if_cancelled()
        _ModelCalls.running += 1
        if isinstance(thread, _BlockingThread):
            _ModelCalls.threads.add(thread)
    try:
        yield
    finally:
        with _ModelCalls.changed:
            _ModelCalls.running -= 1
            _ModelCalls.changed.notify_all()


@atexit.register
def _end_model_calls() -> None:
    latest = time.monotonic() + _ENDING_SECONDS
    with _ModelCalls.changed:
        _ModelCalls.ending = True
        _ModelCalls.changed.wait_for(lambda: not _ModelCalls.running, timeout=_ENDING_SECONDS)
    for thread in list(_ModelCalls.threads):
        thread.join(max(0.0, latest - time.monotonic()))


def start_in_thread(function: Callable[..., R], *arguments: Any) -> Future[R]:
    """Start a blocking function in a daemon thread; return the future of the function's result.

    The function gets a copy of the caller's context variables. The future cannot be cancelled.
    """
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

    _BlockingThread(target=run, name="surerag-blocking", daemon=True).start()
    return future


async def in_thread(function: Callable[..., R], *arguments: Any) -> R:
    """Run a blocking function in a thread and await its result.

    If the caller is cancelled, the function ends at its next call of ``raise_if_cancelled``.
    """
    cancelled = threading.Event()

    def call() -> R:
        with cancel_when(cancelled.is_set):
            return function(*arguments)

    try:
        return await asyncio.wrap_future(start_in_thread(call))
    except asyncio.CancelledError:
        cancelled.set()
        raise


def run_blocking(coroutine: Coroutine[Any, Any, R]) -> R:
    """Return the result of a coroutine that never suspends, because it makes only blocking calls."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]  # what the coroutine returned
    raise RuntimeError("expected a coroutine that makes only blocking calls, but it waits for an event loop")


async def maybe_await(result: Any) -> Any:
    """Return a result; if the result is awaitable, await it first."""
    return await result if inspect.isawaitable(result) else result


def renew_after_fork(callback: Callable[[], object]) -> None:
    """Register a function that each forked process calls first, for example to replace a held lock."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=callback)


def _forget_model_calls() -> None:
    _ModelCalls.running, _ModelCalls.changed = 0, threading.Condition()
    _ModelCalls.threads.clear()


renew_after_fork(_forget_model_calls)


_closing: set[asyncio.Task[object]] = set()
"""Tasks that close streams; they are kept here, because an event loop has only weak references to tasks."""


def close_in_loop_when_dropped(handle: object, aclose: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Await ``aclose()`` in the running event loop once ``handle`` is garbage-collected.

    A finaliser cannot do this itself, because it must not wait. ``aclose`` must not refer to the handle, or
    else the handle never becomes garbage.
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


class Blocking:
    """Calls methods of objects in this thread, or several methods at once in separate threads.

    Coroutines that make only such calls never suspend, so that ``run_blocking`` can run them.
    """

    prefix: Literal["", "a"] = ""
    """Prefix of the names of the methods that are called."""

    async def call(self, owner: Any, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call the method of ``owner`` with the name ``method``, and return its result."""
        return await maybe_await(getattr(owner, self.prefix + method)(*arguments, **keywords))

    async def stream(self, owner: Any, method: str, *arguments: Any, **keywords: Any) -> AsyncGenerator[Any]:
        """Yield the items of the iterator that the method ``method`` of ``owner`` returns.

        The iterator is closed at its end, or when the caller stops.
        """
        items = await self.call(owner, method, *arguments, **keywords)
        try:
            async for item in items_of(items):
                yield item
        finally:
            await self.close(items)

    async def close(self, items: Any) -> None:
        """Close a sync or async iterator if it can be closed, like a generator or an open stream."""
        close = getattr(items, "aclose", None) or getattr(items, "close", None)
        if close is not None:
            await maybe_await(close())

    async def next(self, items: Any, context: contextvars.Context) -> Any:
        """Return an iterator's next item, or None at its end; the iterator runs in ``context``."""
        return context.run(next, items, None)

    async def shielded(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end even if the caller is being cancelled."""
        return await work

    async def each(
        self, call: Callable[[T], Coroutine[Any, Any, R]], items: Sequence[T], limit: int
    ) -> list[R]:
        """Call a function with every item, at most ``limit`` calls at a time; return the results in order.

        After a failure, no further call starts. The call for a single item uses the caller's context
        variables. If there are several items, each call has its own copy of these variables.
        """
        if len(items) == 1:
            return [await call(items[0])]
        failed = threading.Event()

        def answer(item: T) -> R:
            if failed.is_set():
                raise CancelledWorkError("another call failed")
            try:
                return run_blocking(call(item))
            except BaseException:
                failed.set()
                raise

        if min(limit, len(items)) <= 1:
            return [contextvars.copy_context().run(answer, item) for item in items]
        with ThreadPoolExecutor(min(limit, len(items))) as pool:
            futures = [pool.submit(contextvars.copy_context().run, answer, item) for item in items]
            try:
                # Calls start in order, so the first error is from a call that ran, not from a skipped call.
                return [future.result() for future in futures]
            except BaseException:
                failed.set()
                raise


class Awaiting(Blocking):
    """Awaits the async variants of objects' methods, such as ``agenerate`` for ``generate``."""

    prefix = "a"

    async def next(self, items: Any, context: contextvars.Context) -> Any:
        """Return an async iterator's next item, or None at its end; ``context`` is not used."""
        return await anext(items, None)

    async def shielded(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end even if the task is being cancelled."""
        task = asyncio.ensure_future(work)
        _closing.add(task)
        task.add_done_callback(_closing.discard)
        return await asyncio.shield(task)

    async def each(
        self, call: Callable[[T], Coroutine[Any, Any, R]], items: Sequence[T], limit: int
    ) -> list[R]:
        """Call a function with every item, at most ``limit`` calls at a time; return the results in order.

        A failure cancels the other calls. The call for a single item uses the caller's context variables. If
        there are several items, each call has its own copy of these variables.
        """
        if len(items) == 1:
            return [await call(items[0])]
        free = asyncio.Semaphore(limit)

        async def call_when_free(item: T) -> R:
            async with free:
                try:
                    return await call(item)
                except BaseException:
                    # Waiting calls must not start, so cancel them before the semaphore is free again.
                    for task in tasks:
                        task.cancel()
                    raise

        tasks = [asyncio.ensure_future(call_when_free(item)) for item in items]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            await asyncio.gather(*tasks, return_exceptions=True)
            raise


async def items_of(items: Any) -> AsyncGenerator[Any]:
    """Yield the items of an iterator or async iterator."""
    if hasattr(items, "__anext__"):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


BLOCKING, AWAITING = Blocking(), Awaiting()
