"""Functions for all readers: strip streamed text, cut it at stop texts, and add up usage."""

from __future__ import annotations

import threading

from surerag.messages import Usage


class TrimmedPieces:
    r"""Strips an answer's surrounding white space while it streams.

    Example:
        >>> pieces = TrimmedPieces()
        >>> [pieces.feed(text) for text in ["  The", " ", "Orun. ", "\n"]]
        ['The', '', ' Orun.', '']
    """

    def __init__(self) -> None:
        self._started = False
        self._held = ""

    def feed(self, text: str) -> str:
        """Take the next piece and return the text that can be shown now."""
        text = self._held + text
        if not self._started:
            text = text.lstrip()
        ready = text.rstrip()
        self._held = text[len(ready) :]
        self._started = self._started or bool(ready)
        return ready


def cut_at_stop(text: str, stop: tuple[str, ...]) -> str | None:
    r"""Return the text before the first stop text in it, or None if there is none.

    Example:
        >>> cut_at_stop("Velm.\nQuestion", ("\n", "Q"))
        'Velm.'
    """
    ends = [position for position in map(text.find, stop) if position >= 0]
    return text[: min(ends)] if ends else None


def held_for_stop(text: str, stop: tuple[str, ...]) -> int:
    r"""Return how many characters at the end of a text may become the beginning of a stop text.

    Example:
        >>> held_for_stop("Velm. Ques", ("\nA", "Question")), held_for_stop("Velm", ("\n",))
        (4, 0)
    """
    return max(
        (size for item in stop for size in range(1, len(item)) if text.endswith(item[:size])), default=0
    )


class UsageCounter:
    """Adds up usage from many threads."""

    def __init__(self, total: Usage | None = None) -> None:
        self.total = total or Usage()
        # The lock is re-entrant, because a finaliser may run while its own thread holds the lock.
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[type[UsageCounter], tuple[Usage]]:
        return UsageCounter, (self.total,)

    def add(self, usage: Usage) -> None:
        """Add to the total."""
        with self._lock:
            self.total += usage
