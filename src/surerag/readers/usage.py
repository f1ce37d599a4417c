"""A reader's running total of what it was asked."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from surerag.messages import Usage

_MANY = 256
"""Requests that are kept apart at most before they are summed up."""


class UsageCount:
    """Adds up usage from many threads, and from finalisers, which must never wait for a lock.

    Example:
        >>> count = UsageCount()
        >>> count.add(Usage(requests=1, completion_tokens=3))
        >>> count.add(Usage(requests=1))
        >>> count.total
        Usage(requests=2, prompt_tokens=0, completion_tokens=3, thinking_tokens=0, cached_tokens=0)
    """

    def __init__(self) -> None:
        self._wake(Usage())

    def _wake(self, total: Usage) -> None:
        self._total = total
        self._added: deque[Usage] = deque()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"total": self.total}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._wake(state["total"])

    def add(self, usage: Usage) -> None:
        """Add to the total; never waits."""
        self._added.append(usage)
        if len(self._added) > _MANY and self._lock.acquire(blocking=False):
            try:
                self._sum_up()
            finally:
                self._lock.release()

    @property
    def total(self) -> Usage:
        """What was added so far."""
        with self._lock:
            self._sum_up()
            return self._total

    def _sum_up(self) -> None:
        while self._added:
            self._total += self._added.popleft()
