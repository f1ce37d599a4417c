"""Several requests at once, under a limit, in threads or on whichever event loop is running."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
R = TypeVar("R")


class Turns:
    """One limit on requests in flight: for all threads, and for all tasks of each event loop.

    Args:
        at_once: Requests that may be open at a time.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._threads = threading.BoundedSemaphore(at_once)
        self._tasks = PerLoop(lambda: asyncio.Semaphore(at_once))

    def map(self, call: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call a function for every item, in order; a single item stays in the caller's thread.

        Every call sees the caller's context, so that tracing keeps its parents.
        """
        todo = list(items)

        def one(item: T) -> R:
            with self._threads:
                return call(item)

        if len(todo) <= 1:
            return [one(item) for item in todo]
        with ThreadPoolExecutor(min(self._at_once, len(todo)), thread_name_prefix="surerag-llm") as pool:
            futures = [pool.submit(contextvars.copy_context().run, one, item) for item in todo]
            try:
                return [future.result() for future in futures]
            except BaseException:
                for future in futures:
                    future.cancel()
                raise

    async def amap(self, call: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
        """Await a call for every item, in order; the first failure cancels the others and is raised."""
        turn = self._tasks.get()

        async def one(item: T) -> R:
            async with turn:
                return await call(item)

        tasks = [asyncio.ensure_future(one(item)) for item in items]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise


class PerLoop(Generic[T]):
    """A value for each event loop, such as an HTTP client whose connections belong to its loop.

    Args:
        build: Makes the value; called in the loop that it is for.
    """

    def __init__(self, build: Callable[[], T]) -> None:
        self._build = build
        self._values: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def get(self) -> T:
        """Return the running loop's value."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._values:
                self._values[loop] = self._build()
            return self._values[loop]
