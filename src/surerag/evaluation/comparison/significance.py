"""Means with bootstrap intervals, paired tests, and Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from surerag.errors import InputError
from surerag.evaluation.resampling import resampled_means, signed_sums
from surerag.evaluation.statistics import Estimate

RESAMPLES = 10_000
_EXACT_UP_TO = 14
"""All signs of so many differences are tried; beyond it, random ones."""


def mean_with_interval(
    values: ArrayLike, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """Return the mean of some questions' values, and its percentile bootstrap interval.

    What it costs does not grow with the questions; see :mod:`surerag.evaluation.resampling`.

    Args:
        values: One a question, shape [n].
        confidence: Of the two-sided interval.
        resamples: Resamples of the questions.
        seed: Of the resampling.

    Raises:
        InputError: If there is no value.

    Example:
        >>> mean_with_interval([0.5, 0.5, 0.5])
        Estimate(value=0.5, low=0.5, high=0.5)
    """
    given = np.asarray(values, dtype=np.float64)
    if given.ndim != 1 or given.size == 0:
        raise InputError(f"a mean needs a list of at least one value, got shape {given.shape}")
    mean = float(given.mean())
    if np.all(given == given[0]):
        return Estimate(mean, mean, mean)
    tail = (1 - confidence) / 2
    low, high = np.quantile(resampled_means(given, resamples, seed), [tail, 1 - tail])
    return Estimate(mean, float(low), float(high))


def permutation_p(differences: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """Return the two-sided p-value of a paired permutation test on the mean difference.

    If the systems do not differ, each question's difference is as likely as its opposite. Up to 14
    differences, all choices of signs are tried and the value is exact; beyond, random ones, of which the
    one observed counts as one. What it costs does not grow with the questions.

    Args:
        differences: One a question, shape [n].
        resamples: Random choices of signs.
        seed: Of the choices.

    Example:
        Of the 8 choices of signs, two have a mean as far from 0 as this.

        >>> permutation_p([1.0, 2.0, 3.0])
        0.25
    """
    given = np.asarray(differences, dtype=np.float64)
    given = given[given != 0]  # a sign makes no difference to them
    if given.size == 0:
        return 1.0
    observed = abs(given.sum())
    reach = observed - 1e-12 * max(1.0, float(np.abs(given).sum()))  # equal sums differ by rounding
    if given.size <= _EXACT_UP_TO:
        choices = np.arange(2**given.size)[:, None] >> np.arange(given.size) & 1
        return float(np.mean(np.abs((1 - 2 * choices) @ given) >= reach))
    as_far = int(np.sum(np.abs(signed_sums(np.abs(given), resamples, seed)) >= reach))
    return (as_far + 1) / (resamples + 1)


def wilcoxon_p(differences: ArrayLike) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test.

    Differences of zero are ranked too, and counted half on each side.

    Example:
        >>> wilcoxon_p([0.0, 0.0]), round(wilcoxon_p([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 4)
        (1.0, 0.0312)
    """
    given: NDArray[np.float64] = np.asarray(differences, dtype=np.float64)
    if not np.any(given):
        return 1.0
    return float(stats.wilcoxon(given, zero_method="zsplit" if np.any(given == 0) else "wilcox").pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm, 1979): the family errs as seldom as one test.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected
