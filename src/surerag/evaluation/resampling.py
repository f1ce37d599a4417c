"""Resamples of means and of signs whose cost does not grow with the number of questions.

A resample of n questions is a count for each distinct value, drawn together from a multinomial law; a random
choice of signs is a binomial count for each distinct size. Where there are many distinct values, they are
put into groups of neighbours. Counts of groups are drawn exactly; what the members of a group differ by adds
its variance, as a normal number. Mean and variance of the resamples are then those of the exact ones, and the
rest of their shape differs by less than the resamples themselves do from one seed to the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

GROUPS = 256
DIRECT = 1_000
"""Up to so many values, resamples are drawn from the values themselves."""
_BLOCK = 2_000_000
"""Random numbers that are held at a time."""


class Groups(NamedTuple):
    """Values in groups of neighbours.

    Attributes:
        means: Of each group.
        counts: Values in each group.
        variances: Within each group; 0 where its values are equal.
    """

    means: Floats
    counts: NDArray[np.int64]
    variances: Floats


def grouped(values: Floats, most: int = GROUPS) -> Groups:
    """Put values into groups: one for each distinct value, if that is not too many, else of equal size.

    Args:
        values: Shape [n], n ≥ 1.
        most: Groups, at most.

    Example:
        >>> means, counts, variances = grouped(np.array([1.0, 0.0, 1.0]))
        >>> means.tolist(), counts.tolist(), variances.tolist()
        ([0.0, 1.0], [1, 2], [0.0, 0.0])
    """
    ordered = np.sort(values)
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    distinct = len(begins) <= most
    if not distinct:
        begins = np.unique(np.linspace(0, len(ordered), most, endpoint=False).astype(np.int64))
    counts = np.diff(begins, append=len(ordered))
    means = ordered[begins] if distinct else np.add.reduceat(ordered, begins) / counts
    variances = np.zeros(len(begins))
    if not distinct:
        ordered -= np.repeat(means, counts)
        variances = np.add.reduceat(ordered**2, begins) / counts
    return Groups(means, counts, variances)


def resampled_means(values: Floats, resamples: int, seed: int) -> Floats:
    """Return the means of resamples of some values, drawn with replacement, shape [resamples].

    Args:
        values: Shape [n], n ≥ 1.
        resamples: How many.
        seed: Of the draws.
    """
    rng, n = np.random.default_rng(seed), len(values)
    if n <= DIRECT:
        parts = [values[rng.integers(n, size=(rows, n))].mean(axis=1) for rows in _blocks(resamples, n)]
        return np.concatenate(parts)
    means, counts, variances = grouped(values)
    centre = float(means @ counts) / n
    found = []
    for rows in _blocks(resamples, len(means)):
        drawn = rng.multinomial(n, counts / n, size=rows).astype(np.float64)
        sums = drawn @ (means - centre)
        if variances.any():
            sums += rng.normal(size=rows) * np.sqrt(drawn @ variances)
        found.append(centre + sums / n)
    return np.concatenate(found)


def signed_sums(sizes: Floats, resamples: int, seed: int) -> Floats:
    """Return sums of some sizes with signs that are as likely one as the other, shape [resamples].

    Args:
        sizes: Shape [n], n ≥ 1.
        resamples: How many.
        seed: Of the signs.
    """
    rng, n = np.random.default_rng(seed), len(sizes)
    if n <= DIRECT:
        parts = [(1 - 2 * rng.integers(2, size=(rows, n))) @ sizes for rows in _blocks(resamples, n)]
        return np.concatenate(parts)
    means, counts, variances = grouped(sizes)
    spread = float(np.sqrt(counts @ variances))
    found = []
    for rows in _blocks(resamples, len(means)):
        # What members differ by is not correlated with the sum of their signs, since it adds up to nothing.
        sums = (2.0 * rng.binomial(counts, 0.5, size=(rows, len(counts))) - counts) @ means
        found.append(sums + rng.normal(size=rows) * spread if spread else sums)
    return np.concatenate(found)


def _blocks(rows: int, width: int) -> Iterator[int]:
    """Cut rows into blocks of at most two million values."""
    each = max(1, _BLOCK // width)
    return (min(each, rows - start) for start in range(0, rows, each))
