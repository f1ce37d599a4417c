"""A limit on requests in flight, and what belongs to an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from surerag.readers.fan_out import aeach, each

T = TypeVar("T")
R = TypeVar("R")


class Turns:
    """One limit on requests in flight: for all threads, and for all tasks of each event loop.

    Attributes:
        max_concurrency: Requests that may be open at a time.
    """

    def __init__(self, max_concurrency: int) -> None:
        self.max_concurrency = max_concurrency
        self._threads = threading.BoundedSemaphore(max_concurrency)
        self._tasks = PerLoop(lambda: asyncio.Semaphore(max_concurrency))

    def __reduce__(self) -> tuple[type[Turns], tuple[int]]:
        """A pickle or a deep copy is a limit of its own: what is under way here does not count there."""
        return Turns, (self.max_concurrency,)

    def map(self, call: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call a function for every item, in order; see :func:`surerag.readers.fan_out.each`."""

        def one(item: T) -> R:
            with self._threads:
                return call(item)

        return each(one, list(items), self.max_concurrency)

    async def amap(self, call: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
        """Await a call for every item, in order; the first failure cancels the others and is raised."""
        return await aeach(call, items, self._tasks.get())


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
                # A value may hold on to its loop, as a semaphore does, and neither would ever go away.
                for closed in [other for other in self._values if other.is_closed()]:
                    del self._values[closed]
                self._values[loop] = self._build()
            return self._values[loop]
