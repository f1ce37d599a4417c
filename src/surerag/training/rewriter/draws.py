"""Which queries each stage gets: drawn at random, whatever order a file is in, and however long it is."""

from __future__ import annotations

import hashlib
import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.inputs.seen import Seen
from surerag.training.rewriter.queries import Query, merged


@dataclass(frozen=True, slots=True)
class Shares:
    """What part of the queries is for what; the rest is for sampling and aligning.

    Attributes:
        distil: For the first stage, of those to learn from.
        held_out: To measure on; never learnt from.
        most_held_out: So many of these are enough.

    Raises:
        ConfigurationError: If nothing would be left for a stage.
    """

    distil: float = 0.5
    held_out: float = 0.2
    most_held_out: int = 500

    def __post_init__(self) -> None:
        if not (0 < self.distil < 1 and 0 <= self.held_out < 1):
            raise ConfigurationError(
                f"shares must be in (0, 1), got distil {self.distil!r} and held_out {self.held_out!r}"
            )


class Draw(NamedTuple):
    """Queries by what they are for, and what became of the others.

    Attributes:
        distil: For the first stage.
        sample: For the second and third.
        held_out: To measure on.
        rows: Rows that were read.
        duplicates: Rows with a text that stood before; their gold answers went to the first.
    """

    distil: tuple[Query, ...]
    sample: tuple[Query, ...]
    held_out: tuple[Query, ...]
    rows: int
    duplicates: int

    @property
    def drawn(self) -> int:
        """Queries that are used."""
        return len(self.distil) + len(self.sample) + len(self.held_out)

    def __str__(self) -> str:
        """Tell it in words.

        Example:
            >>> queries = [Query("Where?", ("Velm",)), Query("Who?"), Query("Where?", ("Orun",))]
            >>> print(draw(queries, Shares(held_out=0)))
            2 of 2 queries drawn at random: 1 to distil, 1 to sample, 0 held out; 1 duplicate merged
        """
        different = self.rows - self.duplicates
        told = (
            f"{self.drawn:,} of {different:,} queries drawn at random: {len(self.distil):,} to distil, "
            f"{len(self.sample):,} to sample, {len(self.held_out):,} held out"
        )
        merged = f"; {self.duplicates:,} duplicate{'s' * (self.duplicates > 1)} merged"
        return told + (merged if self.duplicates else "")


def draw(queries: Iterable[Query], shares: Shares, *, most: int | None = None, seed: int = 0) -> Draw:
    """Draw queries at random and share them out, each kind in equal parts.

    A query's number in the draw is a digest of its text and the seed: the order of the rows does not matter,
    duplicates fall together, and a row more changes little. Memory holds the queries that are drawn, and
    eight bytes for each of the others.

    Args:
        queries: Any number of them, read once.
        shares: What part is for what.
        most: Queries to draw, at most; None for all.
        seed: Other numbers, another draw.

    Raises:
        InputError: If there are too few queries for every stage.
    """
    kept: dict[str, Query] = {}
    largest: list[tuple[int, str]] = []
    seen = Seen()
    rows = duplicates = 0
    for query in queries:
        rows += 1
        if seen.add(query.text):
            duplicates += 1
            if query.text in kept:
                kept[query.text] = merged(kept[query.text], query)
            continue
        number = _number(seed, query.text)
        if most is None or len(kept) < most:
            kept[query.text] = query
            heapq.heappush(largest, (-number, query.text))
        elif number < -largest[0][0]:
            # What is put out here would be put out again: its number is above all that stay.
            _, out = heapq.heapreplace(largest, (-number, query.text))
            del kept[out]
            kept[query.text] = query
    kinds: dict[str, list[Query]] = defaultdict(list)
    for _, text in sorted(largest, reverse=True):
        kinds[kept[text].kind].append(kept[text])
    return _shared(list(kinds.values()), shares, rows, duplicates)


def _shared(kinds: Sequence[Sequence[Query]], shares: Shares, rows: int, duplicates: int) -> Draw:
    drawn = sum(map(len, kinds))
    held = min(round(shares.held_out * drawn), shares.most_held_out)
    distil = min(max(round((drawn - held) * shares.distil), 1), drawn - held - 1)
    if distil < 1:
        raise InputError(
            f"{drawn} different queries cannot be shared among the stages", hint="give more queries"
        )
    # One kind after the other, in turn as their sizes have it: every piece of this order has all kinds.
    order = sorted(
        ((place + 0.5) / len(kind), at, query)
        for at, kind in enumerate(kinds)
        for place, query in enumerate(kind)
    )
    mixed = [query for _, _, query in order]
    return Draw(
        tuple(mixed[held : held + distil]),
        tuple(mixed[held + distil :]),
        tuple(mixed[:held]),
        rows,
        duplicates,
    )


def _number(seed: int, text: str) -> int:
    digest = hashlib.blake2b(f"{seed}\x1f{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big")
