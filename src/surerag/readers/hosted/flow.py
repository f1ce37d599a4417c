"""How many requests may be under way: as many as the server takes, within the user's limit.

It begins at the user's limit. A server that refuses for now (429, 503) halves it; answers that come much
later than they used to lower it by a part; every round of good answers raises it by one. So it settles
where the server does, whatever the server's own limit is, and however many programs share it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from surerag.errors import TransientServiceError
from surerag.readers.hosted.retry import OverloadedError

_PATIENCE = 2.0
"""How many times longer than usual answers may take before fewer are asked for at once."""
_RECENT, _USUAL = 0.1, 0.02
"""Weight of a new answer in the average of recent ones, and of all. With 0.3, a few long answers among many
short ones would be taken for a slow server; with 0.05, a slow server would not be noticed."""


class Flow:
    """The number of requests that may be under way. Thread-safe.

    Args:
        most: The user's limit.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._limit = float(most)
        self._lock = threading.Lock()
        self._recent = self._usual = 0.0
        self._changed = 0.0

    @property
    def limit(self) -> int:
        """Requests that may be under way now; at least one."""
        return max(1, int(self._limit))

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Learn from how a request fares, and how long it takes."""
        started = time.monotonic()
        try:
            yield
        except TransientServiceError as error:
            if isinstance(error, OverloadedError) and error.refused:
                self._refused(started)
            raise
        self._answered(started, time.monotonic() - started)

    def _refused(self, started: float) -> None:
        with self._lock:
            # Those that went out before the last change are no news: it was made for their sake.
            if started >= self._changed:
                self._limit = max(1.0, self._limit / 2)
                self._changed = time.monotonic()

    def _answered(self, started: float, seconds: float) -> None:
        with self._lock:
            self._recent += _RECENT * (seconds - self._recent) if self._recent else seconds
            self._usual += _USUAL * (seconds - self._usual) if self._usual else seconds
            if self._recent > _PATIENCE * self._usual and self._limit > 1:
                if started >= self._changed:
                    self._limit = max(1.0, self._limit * 0.8)
                    self._changed = time.monotonic()
                return
            self._limit = min(float(self.most), self._limit + 1 / self._limit)


class Slots:
    """Turns for threads; as many at a time as a flow lets through."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._taken = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            while self._taken >= self._flow.limit:
                self._changed.wait()
            self._taken += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._taken -= 1
            # More than one may have become free: the limit may have grown meanwhile.
            self._changed.notify(self._flow.limit)

    @contextmanager
    def left(self) -> Iterator[None]:
        """Leave one's turn to others, and wait for another."""
        self.__exit__()
        try:
            yield
            self.__enter__()
        except BaseException:
            # Whoever breaks off gives the turn back once more, further out.
            with self._changed:
                self._taken += 1
            raise


class AsyncSlots:
    """Turns for the tasks of one event loop; see :class:`Slots`."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if self._taken < self._flow.limit and not self._waiting:
            self._taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # It was given its turn just before.
                self._taken -= 1
            self._wake()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._taken -= 1
        self._wake()

    @asynccontextmanager
    async def left(self) -> AsyncIterator[None]:
        """Leave one's turn to others, and wait for another; see :meth:`Slots.left`."""
        await self.__aexit__()
        try:
            yield
            await self.__aenter__()
        except BaseException:
            self._taken += 1
            raise

    def _wake(self) -> None:
        while self._waiting and self._taken < self._flow.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)
