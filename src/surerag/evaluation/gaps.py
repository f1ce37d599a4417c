"""Right and wrong answers against DENSE: by interval, by threshold, and as a trend (Figures 2 to 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from surerag.errors import InputError
from surerag.evaluation.statistics import Estimate, Proportion, correlation, share


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """Accuracy in one interval of DENSE (Figure 2).

    Attributes:
        low: Lower end of the interval of DENSE, in nats; not in it, 0 excepted.
        high: Upper end.
        accuracy: Share of right answers; its ``n`` is the number of questions.
    """

    low: float
    high: float
    accuracy: Proportion


@dataclass(frozen=True, slots=True)
class GapRow:
    """Questions up to a threshold against those above it (Figure 4).

    Attributes:
        threshold: Questions up to it are certain.
        certain: Accuracy up to it.
        uncertain: Accuracy above it.
        gap: The first less the second.
    """

    threshold: float
    certain: Proportion
    uncertain: Proportion
    gap: Estimate


@dataclass(frozen=True, slots=True)
class Trend:
    """Whether answers get worse as DENSE grows.

    Attributes:
        correlation: Of DENSE with correctness; bootstrap interval over questions.
        z: Cochran and Armitage's statistic; NaN where scores or answers are all alike.
        p: One-sided, of a falling trend.
    """

    correlation: Estimate
    z: float
    p: float


EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, math.inf)
"""Ends of the intervals; the first one holds 0 itself, as one interval with what is certain."""


def by_interval(scores: ArrayLike, correct: ArrayLike) -> tuple[IntervalRow, ...]:
    """Return accuracy by interval of DENSE (Figure 2); intervals without a question are left out.

    Args:
        scores: DENSE of each question, in nats.
        correct: Whether each was answered right.

    Example:
        >>> [(row.low, row.high, row.accuracy.n) for row in by_interval([0.0, 0.2, 0.45], [1, 1, 0])]
        [(0.0, 0.2, 2), (0.4, 0.6, 1)]
    """
    values, right = np.asarray(scores, np.float64), np.asarray(correct, bool)
    places = np.maximum(np.searchsorted(EDGES, values, side="left"), 1)
    return tuple(
        IntervalRow(EDGES[place - 1], EDGES[place], share(right[places == place]))
        for place in range(1, len(EDGES))
        if np.any(places == place)
    )


def gap_at(scores: ArrayLike, correct: ArrayLike, threshold: float) -> GapRow | None:
    """Compare questions up to a threshold with those above it; None where one side is empty."""
    values, right = np.asarray(scores, np.float64), np.asarray(correct, bool)
    certain = values <= threshold
    if certain.all() or not certain.any():
        return None
    low, high = share(right[certain]), share(right[~certain])
    return GapRow(threshold, low, high, difference(low, high))


def by_threshold(scores: ArrayLike, correct: ArrayLike) -> tuple[GapRow, ...]:
    """Return the gap at every value that DENSE takes (Figure 4); others part the questions no differently."""
    values = np.unique(np.asarray(scores, np.float64).round(9))
    rows = (gap_at(np.asarray(scores, np.float64).round(9), correct, float(value)) for value in values)
    return tuple(row for row in rows if row is not None)


def difference(first: Proportion, second: Proportion) -> Estimate:
    """Return the difference of two independent shares with Newcombe's interval from both Wilson intervals.

    Newcombe (1998, Statistics in Medicine 17, method 10).

    Example:
        Newcombe's own: 56 of 70 less 48 of 80.

        >>> found = difference(share([True] * 56 + [False] * 14), share([True] * 48 + [False] * 32))
        >>> round(found.value, 4), round(found.low, 4), round(found.high, 4)
        (0.2, 0.0524, 0.3339)
    """
    value = first.value - second.value
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    return Estimate(value, value - below, value + above)


def trend(scores: ArrayLike, correct: ArrayLike) -> Trend:
    """Test whether the share of right answers falls as DENSE grows (Cochran and Armitage).

    With DENSE itself as the dose, the statistic is √n times the correlation of score and correctness.

    Returns:
        The test; where one side is constant there is no correlation, and p is 1.

    Raises:
        InputError: If there are fewer than two questions.

    Example:
        Of four questions the two certain ones are right: r = −1, z = −2.

        >>> found = trend([0.0, 0.0, 1.0, 1.0], [True, True, False, False])
        >>> found.correlation.value, found.z, round(found.p, 4)
        (-1.0, -2.0, 0.0228)
    """
    values, right = np.asarray(scores, np.float64), np.asarray(correct, np.float64)
    if values.shape != right.shape or values.size < 2:
        raise InputError(f"a trend needs two lists of at least two values, got {values.shape}, {right.shape}")
    found = correlation(values, right)
    z = math.sqrt(values.size) * found.value
    return Trend(found, z, float(stats.norm.cdf(z)) if math.isfinite(z) else 1.0)
