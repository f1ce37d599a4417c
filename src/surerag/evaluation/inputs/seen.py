"""Whether something came before, among millions: eight bytes each, not a Python object."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_RECENT = 1 << 15


class Seen:
    """A set of digests that only grows.

    Two different texts have the same 64 bits once among four thousand million; whoever refuses something on
    that account looks again.
    """

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._sorted: list[NDArray[np.uint64]] = []

    def __len__(self) -> int:
        return len(self._recent) + sum(map(len, self._sorted))

    def add(self, *texts: object) -> bool:
        """Take something in, and return whether it was there before."""
        digest = digest_of(*texts)
        if self._holds(digest):
            return True
        self._recent.add(digest)
        if len(self._recent) == _RECENT:
            self._settle()
        return False

    def __contains__(self, texts: tuple[object, ...]) -> bool:
        return self._holds(digest_of(*texts))

    def _holds(self, digest: int) -> bool:
        if digest in self._recent:
            return True
        key = np.uint64(digest)
        for held in self._sorted:
            at = int(np.searchsorted(held, key))
            if at < len(held) and held[at] == key:
                return True
        return False

    def _settle(self) -> None:
        """Sort what is new, and join arrays of like size: there are never more than a few."""
        new = np.fromiter(self._recent, np.uint64, len(self._recent))
        new.sort()
        self._recent.clear()
        while self._sorted and len(self._sorted[-1]) <= len(new):
            new = np.concatenate([self._sorted.pop(), new])
            new.sort()
        self._sorted.append(new)


def digest_of(*texts: object) -> int:
    """Return 64 bits that stand for some texts."""
    joined = "\x1f".join(map(str, texts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "little")
