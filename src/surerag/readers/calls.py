"""Calls of methods, blocking or awaited, so that code is written once for sync and async callers."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeVar

from surerag.readers.threads import maybe_await, run_blocking

T = TypeVar("T")
R = TypeVar("R")


class Blocking:
    """Calls of objects' methods in this thread, or several calls at once in separate threads.

    Coroutines that make only such calls never suspend, so that ``run_blocking`` can run them.
    """

    prefix: Literal["", "a"] = ""
    """Prefix of a method's name."""

    async def call(self, owner: Any, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method and return its result."""
        return await maybe_await(getattr(owner, self.prefix + method)(*arguments, **keywords))

    async def stream(self, owner: Any, method: str, *arguments: Any, **keywords: Any) -> AsyncGenerator[Any]:
        """Yield the items that a method streams; close the stream after the last item taken."""
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
        """Return the next item of an iterator, which runs in ``context``; None after the last item."""
        return context.run(next, items, None)

    async def shielded(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end even if the caller is being cancelled."""
        return await work

    async def each(
        self, call: Callable[[T], Coroutine[Any, Any, R]], items: Sequence[T], limit: int
    ) -> list[R]:
        """Call a function with every item, at most ``limit`` calls at a time; none starts after a failure."""
        if min(limit, len(items)) <= 1:
            return [await call(item) for item in items]
        with ThreadPoolExecutor(min(limit, len(items))) as pool:
            futures = [
                pool.submit(contextvars.copy_context().run, lambda item: run_blocking(call(item)), item)
                for item in items
            ]
            try:
                return [future.result() for future in futures]
            except BaseException:
                for future in futures:
                    future.cancel()
                raise


class Awaiting(Blocking):
    """Calls of the asynchronous twins of objects' methods, which do not block the event loop."""

    prefix = "a"

    async def next(self, items: Any, context: contextvars.Context) -> Any:
        """Await the next item of an asynchronous iterator, which runs in the task's context."""
        return await anext(items, None)

    async def shielded(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end even if the task is being cancelled."""
        return await asyncio.shield(asyncio.ensure_future(work))

    async def each(
        self, call: Callable[[T], Coroutine[Any, Any, R]], items: Sequence[T], limit: int
    ) -> list[R]:
        """Call a function with every item, ``limit`` calls at a time; a failure cancels the other calls."""
        free = asyncio.Semaphore(limit)

        async def call_when_free(item: T) -> R:
            async with free:
                return await call(item)

        tasks = [asyncio.ensure_future(call_when_free(item)) for item in items]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
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
