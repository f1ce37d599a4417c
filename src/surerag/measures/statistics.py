"""Confidence intervals of means, differences and shares, and paired tests.

No interval has zero width. If all values of a sample are equal, a normal or bootstrap interval would be a
single point; here it is replaced by an exact interval.

Values of one group, such as the questions about one document, depend on each other. An interval of grouped
values is as wide as an interval of fewer, independent values; :func:`effective_size` gives their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2_000
_EQUAL_WITHIN = 1e-9
"""Maximum difference of numbers that count as equal, because of rounding errors."""
_WIDTH_BY_CHANCE = 0.005
"""Maximum width of an interval that is replaced by the exact interval, as a share of the possible range."""
_CAUTION = 1.0
"""The argument ``expected`` of :func:`group_correlation` counts as much as this number of observed values."""
Floats = NDArray[np.float64]
Bounds = tuple[float, float]
Groups = Sequence[object] | NDArray[np.intp] | None
"""Type of groups: the group of each value, such as its document; None or an empty text means no group."""


class Interval(NamedTuple):
    """The ends of a confidence interval, or the smallest and largest possible value of a quantity."""

    lower: float
    upper: float


class Estimate(NamedTuple):
    """An estimate from ``n`` values; its confidence ``interval`` is None if it cannot be computed."""

    value: float
    interval: Interval | None
    n: int

    def text(self, sign: str = "", scale: float = 1.0, digits: int = 3) -> str:
        """Return the value and its interval as text.

        Args:
            sign: ``"+"`` writes a plus sign before positive numbers.
            scale: Factor by which the numbers are multiplied, such as 100 for percent.
            digits: Number of decimals.

        Example:
            >>> Estimate(-0.05, Interval(-0.1, 0.02), 40).text("+", 100, 1)
            '-5.0 [-10.0, +2.0]'
        """
        numbers = (self.value, *(self.interval or ()))
        value, *ends = (f"{scale * number:{sign}.{digits}f}" for number in numbers)
        return f"{value} [{', '.join(ends)}]" if ends else value


def mean_interval(
    values: ArrayLike,
    groups: Groups = None,
    *,
    confidence: float = 0.95,
    bounds: Bounds | None = (0.0, 1.0),
) -> Estimate:
    """Return the mean of a sample with its confidence interval.

    If each value is one of the two bounds (such as 0 or 1), and both bounds occur, the interval is Wilson's
    interval. If all values are equal, :func:`constant_interval` gives the interval, or None without bounds.
    Otherwise, the interval is computed as in :func:`paired_difference`.

    Args:
        values: The sample, shape [n].
        groups: Group of each value. Values of one group are treated as dependent.
        confidence: Confidence level of the two-sided interval.
        bounds: Smallest and largest possible value; None if there are no bounds.

    Raises:
        ValueError: If the sample is empty, a value is not finite, or there is not one group for
            each value.

    Example:
        >>> tuple(round(end, 4) for end in mean_interval([1.0] * 10).interval)
        (0.6915, 1.0)
        >>> mean_interval([3.5] * 10, bounds=None).interval is None
        True
    """
    sample = _sample(values)
    mean, n = float(sample.mean()), len(sample)
    size = effective_size(sample, groups, confidence)
    if np.ptp(sample) > 0 and bounds is not None and np.isin(sample, bounds).all():
        low, high = bounds
        ends = _wilson(float((sample == high).mean()), size, confidence)
        return Estimate(mean, Interval(*(low + end * (high - low) for end in ends)), n)
    return Estimate(mean, _interval_with_pseudo_pair(sample, size, bounds, confidence), n)


def paired_difference(
    first: ArrayLike,
    second: ArrayLike,
    groups: Groups = None,
    *,
    confidence: float = 0.95,
    bounds: Bounds | None = (-1.0, 1.0),
) -> Estimate:
    """Return the mean of ``first − second`` over pairs, with its confidence interval.

    The interval is a normal interval after two extreme values were added to the differences. For binary
    scores, or if most differences are equal, the two values are the bounds (Bonett & Price 2012). For other
    differences, they are the mean plus and minus the largest deviation. ``python -m studies.levels``
    simulates how often these intervals contain the true mean.

    Args:
        first: First value of each pair, shape [n].
        second: Second value of each pair, shape [n].
        groups: Group of each pair. Pairs of one group are treated as dependent.
        confidence: Confidence level of the two-sided interval.
        bounds: Smallest and largest possible difference; None if there are no bounds.

    Raises:
        ValueError: If lengths differ, or there is no pair.

    Example:
        >>> value, interval, n = paired_difference([1] * 6 + [0] * 34, [0] * 3 + [1] * 5 + [0] * 32)
        >>> value, tuple(round(end, 3) for end in interval)
        (0.025, (-0.099, 0.147))
    """
    a, b = _sample(first), _sample(second)
    if len(a) != len(b):
        raise ValueError(f"pairs need equal lengths, got {len(a)} and {len(b)}")
    differences = a - b
    size = effective_size(differences, groups, confidence)
    interval = _interval_with_pseudo_pair(differences, size, bounds, confidence)
    return Estimate(float(differences.mean()), interval, len(differences))


def effective_size(
    values: ArrayLike, groups: Groups = None, confidence: float = 0.95, correlation: float = 1.0
) -> float:
    """Return how many independent values would give the mean with the precision that this sample gives.

    For groups of m values with correlation ρ, the size is n / (1 + (m - 1) ρ) (Kish 1965), times a factor
    for the number of groups G: the squared ratio of the normal quantile to Student's quantile with G - 1
    degrees of freedom. Values of a single group count as independent; the sample then describes only the
    group.

    Args:
        values: The sample, shape [n].
        groups: Group of each value; None or an empty text for a value without a group.
        confidence: Confidence level of the two-sided interval, for the quantiles.
        correlation: Expected correlation ρ; see :func:`group_correlation`.

    Example:
        >>> effective_size([1, 1, 0, 0] * 10), effective_size([1, 1, 0, 0] * 10, ["a"] * 40)
        (40.0, 40.0)
        >>> round(effective_size([1, 1, 0, 0] * 10, np.arange(40) // 2), 1)  # each group has two equal values
        17.5
    """
    sample = np.asarray(values, dtype=np.float64)
    n, number = len(sample), group_numbers(groups, len(sample))
    if not _has_several_groups(number):
        return float(n)
    of_group = _mean_group_size(number)
    effect = 1 + (of_group - 1) * group_correlation(sample, number, correlation)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return max(1.0, n / effect * (z / student_quantile(z, max(n / of_group - 1, 1.0))) ** 2)


def group_correlation(values: ArrayLike, groups: Groups, expected: float = 1.0) -> float:
    """Return the correlation ρ of the values within groups: 0 if they are independent, 1 if they are equal.

    The estimate of ρ reproduces the cluster-robust variance of the mean, Σ_g (Σ_i∈g e_i)² G / (G - 1) / n²,
    with residuals e and G groups. A sample whose values are almost all equal contains little information
    about ρ. So the estimate is averaged with ``expected``, the value of ρ that is expected before the sample
    is known. The weight of the estimate is at most the number of groups minus one; the weight of
    ``expected`` is one.

    Example:
        >>> group_correlation([1, 1, 0, 0] * 10, np.arange(40) // 2), group_correlation([1] * 4, [0, 0, 1, 1])
        (1.0, 1.0)
        >>> round(group_correlation([1, 0, 1, 0] * 10, np.arange(40) // 2), 2)
        0.05
    """
    sample = np.asarray(values, dtype=np.float64)
    n, number = len(sample), group_numbers(groups, len(sample))
    residuals = sample - sample.mean()
    square = float((residuals**2).sum())
    if not _has_several_groups(number) or square <= _EQUAL_WITHIN * max(
        1.0, float(np.abs(sample).max()) ** 2
    ):
        return expected
    sums = np.bincount(number, residuals)
    effect = float((sums**2).sum()) * len(sums) / (len(sums) - 1) * (n - 1) / n / square
    estimate = min(max((effect - 1) / (_mean_group_size(number) - 1), 0.0), 1.0)
    # The effective number of values behind the estimate. If few values are 1 and all others are 0, this is
    # about the number of ones.
    weight = min(square**2 / float((residuals**4).sum()), len(sums) - 1)
    return (weight * estimate + _CAUTION * expected) / (weight + _CAUTION)


def _has_several_groups(number: NDArray[np.intp]) -> bool:
    return bool(1 < number.max(initial=-1) + 1 < len(number))


def _mean_group_size(number: NDArray[np.intp]) -> float:
    return float((np.bincount(number) ** 2).sum()) / len(number)


def group_numbers(groups: Groups, n: int) -> NDArray[np.intp]:
    """Number the groups from 0, and return the group number of each value.

    Each value without a group is a group of its own.

    Example:
        >>> group_numbers(["a", "", "a", None], 4).tolist(), group_numbers(None, 2).tolist()
        ([0, 1, 0, 2], [0, 1])
    """
    if groups is None:
        return np.arange(n)
    if len(groups) != n:
        raise ValueError(f"expected a group for each of {n} values, got {len(groups)}")
    if isinstance(groups, np.ndarray) and groups.dtype.kind == "i":
        return np.unique(groups, return_inverse=True)[1].astype(np.intp)
    numbers: dict[object, int] = {}
    keys = ((place, None) if one is None or one == "" else one for place, one in enumerate(groups))
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.intp)


def student_quantile(z: float, freedom: float) -> float:
    """Return the quantile of Student's distribution that corresponds to the normal quantile ``z``.

    The quantile is approximated by an expansion in the degrees of freedom (Fisher & Cornish 1960).

    Example:
        >>> round(student_quantile(1.96, 9), 3), round(student_quantile(1.96, 39), 3)
        (2.262, 2.023)
    """
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def _interval_with_pseudo_pair(
    sample: Floats, size: float, bounds: Bounds | None, confidence: float
) -> Interval | None:
    value = float(sample.mean())
    if np.ptp(sample) == 0:
        return constant_interval(value, size, bounds, confidence)
    mostly_equal = np.median(np.abs(sample - np.median(sample))) == 0
    if bounds is not None and (mostly_equal or np.isin(sample, (*bounds, sum(bounds) / 2)).all()):
        more: tuple[float, ...] = bounds
    else:
        farthest = float(np.abs(sample - value).max())
        more = (value - farthest, value + farthest)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    total = size + len(more)
    centre = (size * value + sum(more)) / total
    square = (
        size * float(((sample - centre) ** 2).mean()) + sum((one - centre) ** 2 for one in more)
    ) / total
    reach = z * math.sqrt(square / total)
    low, high = bounds or (-math.inf, math.inf)
    ends = max(low, min(centre - reach, value)), min(high, max(centre + reach, value))
    return _not_below_exact(ends, value, size, bounds, confidence)


def bootstrap_interval(
    resampled: Floats, value: float, n: float, bounds: Bounds | None = (0.0, 1.0), confidence: float = 0.95
) -> Interval | None:
    """Return the bootstrap percentile interval of the estimate ``value`` from its resamples.

    If the resamples are almost equal, the interval is widened to include the exact interval of
    :func:`constant_interval`, which needs ``bounds``; without bounds, the result is then None.

    Args:
        resampled: Value of the estimate in each resample, shape [resamples].
        value: Value of the estimate in the sample.
        n: Number of independent observations in the sample.
        bounds: Smallest and largest possible value of the estimate; None if there are no bounds.
        confidence: Confidence level of the two-sided interval.
    """
    lower, upper = np.quantile(resampled, ((1 - confidence) / 2, (1 + confidence) / 2))
    return _not_below_exact((float(lower), float(upper)), value, n, bounds, confidence)


def _not_below_exact(
    ends: Bounds, value: float, n: float, bounds: Bounds | None, confidence: float
) -> Interval | None:
    points = [*ends, value]
    narrow = _WIDTH_BY_CHANCE * (bounds[1] - bounds[0]) if bounds else _EQUAL_WITHIN * max(map(abs, points))
    if ends[1] - ends[0] <= narrow:
        exact = constant_interval(value, n, bounds, confidence)
        if exact is None:
            return None
        points += exact
    return Interval(min(points), max(points))


def resample_counts(n: int, seed: int | tuple[int, ...] = 0) -> NDArray[np.int64]:
    """Draw bootstrap resamples of n observations, and return how often each resample contains each of them.

    The result has the shape [resamples, n].

    Example:
        >>> resample_counts(5).sum(axis=1).tolist() == [5] * RESAMPLES
        True
    """
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)


def constant_interval(
    value: float, n: float, bounds: Bounds | None = (0.0, 1.0), confidence: float = 0.95
) -> Interval | None:
    """Return the exact interval of a mean if all n observations have the same value; None without bounds.

    At confidence 1 − α, the share of other values in the population is at most 1 − (α/2)^(1/n) (Clopper &
    Pearson 1934), and these values lie within the bounds. For a value of 0 or 1, the result is the
    Clopper-Pearson interval.

    Example:
        >>> tuple(round(end, 4) for end in constant_interval(0.0, 20))
        (0.0, 0.1684)
    """
    if bounds is None or not bounds[0] - _EQUAL_WITHIN <= value <= bounds[1] + _EQUAL_WITHIN:
        return None
    others = 1 - ((1 - confidence) / 2) ** (1 / n)
    ends = [value * (1 - others) + bound * others for bound in bounds]
    return Interval(*ends)


def difference_interval(first: float, of_first: Interval, second: float, of_second: Interval) -> Interval:
    """Return the confidence interval of ``first − second`` from the intervals of two independent estimates.

    This is method 10 of Newcombe (1998).

    Example:
        >>> tuple(round(end, 2) for end in difference_interval(1, Interval(0.7, 1), 0, Interval(0, 0.3)))
        (0.58, 1.0)
    """
    delta = first - second
    lower = delta - math.hypot(first - of_first.lower, of_second.upper - second)
    upper = delta + math.hypot(of_first.upper - first, second - of_second.lower)
    return Interval(lower, upper)


def wilson(count: int, n: int, confidence: float = 0.95) -> Interval:
    """Return Wilson's confidence interval (1927) of the share ``count / n``.

    Example:
        >>> tuple(round(end, 3) for end in wilson(8, 10))
        (0.49, 0.943)
    """
    if not 0 <= count <= n or n < 1:
        raise ValueError(f"expected a count of at most n, and n at least 1, got {count} of {n}")
    return _wilson(count / n, n, confidence)


def _wilson(share: float, n: float, confidence: float) -> Interval:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    square = z * z
    centre = (share + square / (2 * n)) / (1 + square / n)
    reach = z / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return Interval(max(0.0, min(centre - reach, share)), min(1.0, max(centre + reach, share)))


def exact_paired_test(wins: int, losses: int) -> float:
    """Return the two-sided p-value of the hypothesis that wins and losses are equally likely.

    This is the exact McNemar test or sign test. A win is a pair in which only the first answer is right, and
    a loss is a pair in which only the second answer is right.

    Example:
        >>> round(exact_paired_test(9, 1), 4), exact_paired_test(0, 0)
        (0.0215, 1.0)
    """
    n = wins + losses
    ways = sum(math.comb(n, k) for k in range(min(wins, losses) + 1))
    return min(1.0, ways / 2 ** (n - 1)) if n else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values of several tests after Holm's adjustment (1979), in the order of the input.

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values)
    adjusted = np.empty(len(values))
    adjusted[order] = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    return [min(1.0, float(p)) for p in adjusted]


def _sample(values: ArrayLike) -> Floats:
    sample = np.asarray(values, dtype=np.float64)  # None becomes NaN
    if sample.ndim != 1 or not len(sample):
        raise ValueError(f"expected a list of at least one number, got an array of shape {sample.shape}")
    if len(others := np.flatnonzero(~np.isfinite(sample))):
        raise ValueError(
            f"expected finite values, but {len(others)} of {len(sample)} values are missing or not finite, "
            f"the first at index {others[0]}: leave these cases out; of a pair, leave out both values"
        )
    return sample
