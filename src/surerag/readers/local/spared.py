"""What a call had ready when one of its prompts failed, so that the others need not be asked for again.

A call answers all of its prompts or none. Where many callers' prompts are merged into one call, a model
that thinks about one of them without an end would cost all others their answers: they are asked once more,
one caller at a time. What is asked for again is the same by construction (a sample depends on its prompt,
the seed and its number alone), so it is handed out from here, until something else is asked for.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from surerag.readers.local.growing import GrowingSequence, Wanted
from surerag.readers.local.sequences import Handle, close


class Spared:
    """Grown sequences and begun ones by what was asked for. Not thread-safe."""

    def __init__(self) -> None:
        self._rows: dict[Hashable, list[GrowingSequence]] = {}
        self._handles: dict[Hashable, list[Handle]] = {}

    def keep_rows(self, wanted: Sequence[Wanted], rows: Sequence[list[GrowingSequence]]) -> None:
        """Keep the samples of each prompt."""
        self.clear()
        self._rows = {_key(one): row for one, row in zip(wanted, rows, strict=True)}

    def rows(self, wanted: Sequence[Wanted]) -> list[list[GrowingSequence]] | None:
        """Return the samples of all these prompts, if they are here; they stay for the next who asks."""
        found = [self._rows.get(_key(one), []) for one in wanted]
        if wanted and all(len(row) >= one.sampling.n for one, row in zip(wanted, found, strict=True)):
            return [row[: one.sampling.n] for one, row in zip(wanted, found, strict=True)]
        self.clear()
        return None

    def keep_handles(self, wanted: Sequence[Wanted], n_tokens: int, handles: Sequence[Handle]) -> None:
        """Keep what was begun of each prompt."""
        self.clear()
        for one, handle in zip(wanted, handles, strict=True):
            self._handles.setdefault((_key(one), n_tokens), []).append(handle)

    def handles(self, wanted: Sequence[Wanted], n_tokens: int) -> list[Handle] | None:
        """Return what was begun of all these prompts, if it is here, and let go of it."""
        keys = [(_key(one), n_tokens) for one in wanted]
        if keys and all(len(self._handles.get(key, [])) >= keys.count(key) for key in keys):
            return [self._handles[key].pop(0) for key in keys]
        self.clear()
        return None

    def clear(self) -> None:
        """Let go of everything."""
        close([handle for handles in self._handles.values() for handle in handles], "cancelled")
        self._rows, self._handles = {}, {}


def _key(wanted: Wanted) -> Hashable:
    return tuple(wanted.asked.ids), replace(wanted.sampling, n=1)
