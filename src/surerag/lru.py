"""A dictionary of limited size, which caches answers of models."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class LRUDict(Generic[V]):
    """A thread-safe cache: beyond ``limit`` entries, the entry that was used longest ago is removed.

    Example:
        >>> cache: LRUDict[int] = LRUDict(2)
        >>> for name in "abc":
        ...     cache.put(name, ord(name))
        >>> cache.get("a"), cache.get("c"), len(cache)
        (None, 99, 2)
    """

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._entries: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        """Return the value of a key, or None."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, key: Hashable, value: V) -> None:
        """Store a value; if there are too many entries, remove the entry that was used longest ago."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            if len(self._entries) > self._limit:
                self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)

    def __getstate__(self) -> dict[str, Any]:
        return {"_limit": self._limit, "_entries": self._entries.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())
