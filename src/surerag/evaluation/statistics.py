"""The statistics behind every claim: small pure functions on numpy arrays and scipy's distributions.

Each returns its value together with the uncertainty of that value, because a figure without an
interval invites reading noise as a finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surerag.errors import InputError
from surerag.extras import extra

with extra("report"):
    from scipy import optimize, stats

Direction = Literal["decreasing", "increasing"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its two-sided interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Proportion:
    """How many of how many, with the two-sided interval of the share."""

    count: int
    n: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two independent samples, ``high`` expected above ``low``.

    Attributes:
        n_high: Size of the sample that is expected to be larger.
        n_low: Size of the other.
        mean_high: Its mean.
        mean_low: The other's mean.
        gap: ``mean_high - mean_low`` with its Welch interval.
        p_welch: Two-sided p-value of Welch's t-test.
        p_rank: Two-sided p-value of the Mann-Whitney test, which assumes no shape.
        cohens_d: The gap in pooled standard deviations.
        auroc: Probability that a random member of ``high`` exceeds one of ``low``.
    """

    n_high: int
    n_low: int
    mean_high: float
    mean_low: float
    gap: Estimate
    p_welch: float
    p_rank: float
    cohens_d: float
    auroc: Estimate


def wilson_interval(count: int, n: int, confidence: float = 0.95) -> Proportion:
    """Return a proportion with its Wilson score interval, which holds near 0 and 1 as well.

    Args:
        count: Successes.
        n: Trials, at least 1.
        confidence: Two-sided confidence level.

    Raises:
        InputError: If there are no trials, or more successes than trials.

    Example:
        Wilson's interval for 8 of 10 is 0.490 to 0.943.

        >>> share = wilson_interval(8, 10)
        >>> round(share.low, 3), round(share.high, 3)
        (0.49, 0.943)
    """
    if not 0 <= count <= n or n == 0:
        raise InputError(f"a proportion needs 0 <= count <= n and n >= 1, got {count} of {n}")
    interval = stats.binomtest(count, n).proportion_ci(confidence, method="wilson")
    return Proportion(count, n, count / n, float(interval.low), float(interval.high))


def share(flags: ArrayLike, confidence: float = 0.95) -> Proportion:
    """Return the share of true values with its Wilson interval.

    Example:
        >>> share([True, False, True, True]).value
        0.75
    """
    values = np.asarray(flags, dtype=bool)
    return wilson_interval(int(values.sum()), values.size, confidence)


def cohens_d(high: ArrayLike, low: ArrayLike) -> float:
    """Return the difference of means in pooled standard deviations; NaN where nothing varies.

    Example:
        Means 3 and 2, variances 1 and 1.

        >>> cohens_d([2.0, 3.0, 4.0], [1.0, 2.0, 3.0])
        1.0
    """
    a, b = _sample(high), _sample(low)
    pooled = ((a.size - 1) * a.var(ddof=1) + (b.size - 1) * b.var(ddof=1)) / (a.size + b.size - 2)
    return float((a.mean() - b.mean()) / np.sqrt(pooled)) if pooled > 0 else float("nan")


def auroc(high: ArrayLike, low: ArrayLike, confidence: float = 0.95) -> Estimate:
    """Return the probability that a member of ``high`` exceeds one of ``low``; ties count half.

    The interval is Newcombe's (2006, Statistics in Medicine 25, method 5): the areas whose own
    standard error reaches the observed one. Unlike the common alternatives it does not collapse to a
    point when the samples separate perfectly.

    Example:
        Of the four pairs, three are in order.

        >>> auroc([2.0, 4.0], [1.0, 3.0]).value
        0.75
    """
    a, b = _sample(high), _sample(low)
    pairs = a.size * b.size
    area = float(stats.mannwhitneyu(a, b).statistic) / pairs
    quantile = float(stats.norm.ppf((1 + confidence) / 2))
    surplus = (a.size + b.size) / 2 - 1

    def excess(theta: float, sign: int) -> float:
        spread = 1 + surplus * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return area - theta - sign * quantile * float(np.sqrt(theta * (1 - theta) * spread / pairs))

    # Areas of 0 and 1 have no spread of their own, and would be their own limits.
    low_end = optimize.brentq(excess, 0.0, min(area, 1 - 1e-9), args=(1,)) if area > 0 else 0.0
    high_end = optimize.brentq(excess, max(area, 1e-9), 1.0, args=(-1,)) if area < 1 else 1.0
    return Estimate(area, float(low_end), float(high_end))


def compare(high: ArrayLike, low: ArrayLike, confidence: float = 0.95) -> Comparison:
    """Compare two independent samples, ``high`` expected above ``low``.

    Raises:
        InputError: If either sample has fewer than two values.

    Example:
        >>> result = compare([2.0, 3.0, 4.0], [1.0, 2.0, 3.0])
        >>> result.gap.value, result.cohens_d, round(result.p_welch, 4)
        (1.0, 1.0, 0.2879)
    """
    a, b = _sample(high), _sample(low)
    welch = stats.ttest_ind(a, b, equal_var=False)
    interval = welch.confidence_interval(confidence)
    return Comparison(
        n_high=a.size,
        n_low=b.size,
        mean_high=float(a.mean()),
        mean_low=float(b.mean()),
        gap=Estimate(float(a.mean() - b.mean()), float(interval.low), float(interval.high)),
        p_welch=float(welch.pvalue),
        p_rank=float(stats.mannwhitneyu(a, b).pvalue),
        cohens_d=cohens_d(a, b),
        auroc=auroc(a, b, confidence),
    )


def correlation(
    scores: ArrayLike,
    truth: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> Estimate:
    """Return Pearson's correlation with a bootstrap interval over groups; NaN where a side is constant.

    Args:
        scores: One value an item.
        truth: One value for each of the same items.
        groups: What is resampled as a whole, such as the question that several items belong to; by
            default every item is a group of its own.
        confidence: Of the two-sided interval.
        resamples: Bootstrap resamples of the groups.
        seed: Of the resampling.

    Raises:
        InputError: If lengths differ or there are fewer than two items.

    Example:
        >>> correlation([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]).value
        1.0
    """
    drawn = _correlations([scores], truth, groups, resamples, seed)
    return _bootstrapped(drawn[0], confidence)


def correlation_gap(
    first: ArrayLike,
    second: ArrayLike,
    truth: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> Estimate:
    """Return how much better the first scores correlate with the truth than the second ones.

    Both are resampled together, so that what they share does not widen the interval; see `correlation`.

    Example:
        >>> correlation_gap([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [1.0, 2.0, 3.0]).value
        2.0
    """
    drawn = _correlations([first, second], truth, groups, resamples, seed)
    return _bootstrapped(drawn[0] - drawn[1], confidence)


def rank_correlation(
    first: ArrayLike,
    second: ArrayLike,
    *,
    confidence: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> Estimate:
    """Return Spearman's correlation of systems' means, with a bootstrap interval over the questions.

    Args:
        first: One measurement, shape [systems, questions].
        second: Another one of the same systems on the same questions.
        confidence: Of the two-sided interval.
        resamples: Bootstrap resamples of the questions.
        seed: Of the resampling.

    Returns:
        The correlation of the means; NaN where all systems are equal.

    Raises:
        InputError: If shapes differ, or there are fewer than two systems.

    Example:
        >>> rank_correlation([[0.1, 0.2], [0.8, 0.9], [0.4, 0.5]], [[1, 2], [9, 8], [5, 5]]).value
        1.0
    """
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.shape != b.shape or a.ndim != 2 or len(a) < 2 or a.shape[1] == 0:
        raise InputError(
            f"ranks need two arrays [systems, questions] of at least two systems, got {a.shape} and {b.shape}"
        )
    n = a.shape[1]
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    means = np.stack([np.vstack([np.ones(n), counts]) @ side.T / n for side in (a, b)])
    # What is equal but for rounding is a tie.
    ranks = stats.rankdata(np.round(means, 12), axis=2)
    centred = ranks - ranks.mean(axis=2, keepdims=True)
    spread = np.sqrt((centred**2).sum(axis=2).prod(axis=0))
    shared = centred.prod(axis=0).sum(axis=1)
    found = np.divide(shared, spread, out=np.full(len(spread), np.nan), where=spread > 0)
    return _bootstrapped(found, confidence)


def is_monotone(values: Sequence[float], direction: Direction) -> bool:
    """Return whether values never turn against the direction; equal neighbours are allowed.

    Example:
        >>> is_monotone([1.0, 0.7, 0.7, 0.2], "decreasing"), is_monotone([1.0, 0.7, 0.8], "decreasing")
        (True, False)
    """
    steps = np.diff(np.asarray(values, float))
    return bool(np.all(steps <= 0) if direction == "decreasing" else np.all(steps >= 0))


def _sample(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, np.float64).ravel()
    if array.size < 2:
        raise InputError(
            f"a sample of {array.size} cannot be compared",
            hint="use more questions: both groups need at least two",
        )
    return array


def _correlations(
    scores: Sequence[ArrayLike], truth: ArrayLike, groups: ArrayLike | None, resamples: int, seed: int
) -> NDArray[np.float64]:
    """Return Pearson's correlation of all items, then of each resample, shape [lists, 1 + resamples]."""
    x, y = np.asarray(scores, np.float64), np.asarray(truth, np.float64)
    kinds = np.arange(y.size) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    if x.ndim != 2 or x.shape[1:] != y.shape or kinds.shape != y.shape or y.size < 2:
        raise InputError(
            f"a correlation needs lists of one length of at least two, got {x.shape[1:]}, {y.shape}, "
            f"and groups of {kinds.shape}"
        )
    n = int(kinds.max()) + 1
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    counts = np.vstack([np.ones(n, dtype=drawn.dtype), drawn])

    def totals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        sums: NDArray[np.float64] = counts @ np.bincount(kinds, values, n)
        return sums

    y = y - y.mean()
    items, of_y, of_yy = totals(np.ones_like(y)), totals(y), totals(y * y)
    found = []
    for row in x - x.mean(axis=1, keepdims=True):
        of_x = totals(row)
        spread = (totals(row * row) - of_x**2 / items) * (of_yy - of_y**2 / items)
        shared = totals(row * y) - of_x * of_y / items
        # A resample may be constant but for rounding.
        varied = spread > 1e-18 * max(1.0, float(np.abs(spread).max()))
        root = np.sqrt(np.where(varied, spread, 1.0))
        found.append(np.where(varied, shared / root, np.nan))
    correlations: NDArray[np.float64] = np.clip(np.array(found), -1.0, 1.0)
    return correlations


def _bootstrapped(found: NDArray[np.float64], confidence: float) -> Estimate:
    """Return the first value, with the quantiles of those of the others that are numbers."""
    value, draws = float(found[0]), found[1:][np.isfinite(found[1:])]
    if not np.isfinite(value) or draws.size == 0:
        return Estimate(value, float("nan"), float("nan"))
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Estimate(value, float(low), float(high))
