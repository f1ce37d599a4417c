"""Several requests at once, in threads or on the running event loop; results in order."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def each(call: Callable[[T], R], items: Sequence[T], max_concurrency: int) -> list[R]:
    """Call a function for every item; where that is one at a time, in the caller's thread.

    Every call sees the caller's context, so that tracing keeps its parents. After a failure no further
    call is started.

    Args:
        call: What to do with an item.
        items: One for each result.
        max_concurrency: Calls that may be under way at a time.

    Raises:
        Exception: The first failure, in the order of the items.

    Example:
        >>> each(str.upper, ["velm", "tarn"], max_concurrency=2)
        ['VELM', 'TARN']
    """
    workers = min(max_concurrency, len(items))
    if workers <= 1:
        return [call(item) for item in items]
    with ThreadPoolExecutor(workers, thread_name_prefix="surerag-requests") as pool:
        futures = [pool.submit(contextvars.copy_context().run, call, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise


async def aeach(call: Callable[[T], Awaitable[R]], items: Iterable[T], turn: asyncio.Semaphore) -> list[R]:
    """Await a call for every item; the first failure cancels the others and is raised.

    After a failure no further call is started.

    Args:
        call: What to do with an item.
        items: One for each result.
        turn: Limits how many are under way; share it where calls share a limit.

    Raises:
        Exception: The first failure.
    """
    failed = False

    async def one(item: T) -> R:
        nonlocal failed
        async with turn:
            if failed:
                # It got its turn from the one that failed, just before it would have been cancelled.
                raise asyncio.CancelledError
            try:
                return await call(item)
            except BaseException:
                failed = True
                raise

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
