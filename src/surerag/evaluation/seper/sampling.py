"""Figure 3: how many samples are enough? From the samples that there are, without asking again.

The first 20 samples of a context hold every smaller run: any n of them are a run of n, so the mean
correlation over random subsets is that of runs of n. Their spread is not: subsets of 20 overlap, and there
is only one of 20. The spread is therefore that of bootstrap resamples of size n, drawn with replacement.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from surerag.evaluation.seper.analysis import Record, table_contexts
from surerag.evaluation.seper.asking import Samples
from surerag.evaluation.seper.results import SampleRow, Spread
from surerag.methods.seper_scoring import beliefs_of_counts

SIZES = (1, 5, 10, 15, 20)
"""Of Figure 3."""

DRAWS = 20


def sample_rows(
    records: Sequence[Record], two_hop: Sequence[bool], sizes: Sequence[int] = SIZES, *, seed: int = 0
) -> tuple[SampleRow, ...]:
    """Return Figure 3's points for both kernels.

    Args:
        records: Every question with all of its samples.
        two_hop: Whether each question is a two-hop one.
        sizes: Samples a context; those there are too few of are left out.
        seed: Of the draws.
    """
    rows = table_contexts(records)
    utilities = np.array([context.utility for _, context, _, _ in rows])
    hops = np.array([two_hop[number] for number, *_ in rows])
    most = min(len(record.before.texts) for record in records)
    sizes = [size for size in sizes if size <= most]
    found = []
    for kernel in ("soft", "hard"):
        rng = np.random.default_rng(seed)
        before = [_redrawn(record.before, sizes, rng, hard=kernel == "hard") for record in records]
        deltas = np.stack(
            [
                _redrawn(after, sizes, rng, hard=kernel == "hard") - before[number]
                for number, _, _, after in rows
            ]
        )
        for at, size in enumerate(sizes):
            subsets, resamples = deltas[:, at, 0], deltas[:, at, 1]
            single, chains = (
                _spread(subsets[part], resamples[part], utilities[part]) for part in (~hops, hops)
            )
            found.append(SampleRow(size, kernel, single, chains, float(resamples.std(axis=1, ddof=1).mean())))
    return tuple(found)


def _redrawn(
    samples: Samples, sizes: Sequence[int], rng: np.random.Generator, *, hard: bool
) -> NDArray[np.float64]:
    """Return SePer of redrawn samples, shape [sizes, 2, draws]: of subsets, and of bootstrap resamples."""
    total = len(samples.texts)
    counts = []
    for size in sizes:
        chosen = np.tile(np.arange(total) < size, (DRAWS, 1)).astype(np.int64)
        counts += [rng.permuted(chosen, axis=1), rng.multinomial(size, np.full(total, 1 / total), size=DRAWS)]
    kernel = (samples.matches if hard else samples.degrees)[:, None]
    beliefs = beliefs_of_counts(
        np.concatenate(counts), samples.texts, samples.logs.tolist(), kernel, "distinct", "max"
    )
    return beliefs.reshape(len(sizes), 2, DRAWS)


def _spread(
    subsets: NDArray[np.float64], resamples: NDArray[np.float64], utilities: NDArray[np.float64]
) -> Spread:
    """Return the mean correlation of subsets, and its deviation over resamples; both [contexts, draws]."""
    if len(utilities) < 2:
        return Spread(float("nan"), float("nan"))
    of_subsets, of_resamples = (_correlations(table, utilities) for table in (subsets, resamples))
    return Spread(float(of_subsets.mean()), float(of_resamples.std(ddof=1)))


def _correlations(table: NDArray[np.float64], utilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Pearson's correlation of each column; NaN where one is constant."""
    x, y = table - table.mean(axis=0), utilities - utilities.mean()
    spread = np.sqrt((x**2).sum(axis=0) * (y**2).sum())
    found: NDArray[np.float64] = np.divide(
        y @ x, spread, out=np.full(len(spread), np.nan), where=spread > 1e-9
    )
    return found
