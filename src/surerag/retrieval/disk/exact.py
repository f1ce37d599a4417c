"""Exact search through stored vectors, block by block: what an index is measured against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from surerag.retrieval.disk.rows import BLOCK, StoredRows
from surerag.retrieval.index import top_places

Found = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Rows, best first, and their scores."""


def exact_rows(stored: StoredRows, queries: NDArray[np.float32], k: int) -> list[NDArray[np.int64]]:
    """Return the rows nearest to each query [queries, dimensions], best first, by looking at all of them."""
    best = [(np.zeros(0, np.int64), np.zeros(0, np.float32))] * len(queries)
    for start in range(0, stored.rows, BLOCK):
        scores = queries @ stored.block(start, BLOCK).T
        for place, theirs in enumerate(scores):
            some = top_places(theirs, k)
            rows = np.concatenate([best[place][0], some + start])
            known = np.concatenate([best[place][1], theirs[some]])
            chosen = top_places(known, k)
            best[place] = rows[chosen], known[chosen]
    return [rows for rows, _ in best]


def recall_of(
    found: Sequence[tuple[NDArray[np.int64], NDArray[np.float32]]], exact: Sequence[NDArray[np.int64]]
) -> float:
    """Return which part of the exact rows was found."""
    shared = sum(np.isin(rows, there).sum() for (there, _), rows in zip(found, exact, strict=True))
    return float(shared / sum(map(len, exact)))
