"""What two measurements of the same questions differ by, with the uncertainty of that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surerag.errors import InputError
from surerag.evaluation.resampling import resampled_means


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Mean of ``treatment - control`` over the same questions.

    Attributes:
        value: The mean difference.
        low: Lower end of the two-sided interval.
        high: Upper end of the two-sided interval.
        lower_bound: One-sided lower confidence bound, at the same confidence.
    """

    value: float
    low: float
    high: float
    lower_bound: float


def paired_difference(
    treatment: ArrayLike,
    control: ArrayLike,
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> PairedDifference:
    """Bootstrap the mean difference of two measurements on the same questions.

    Where both are right or wrong on every question and all differ by the same, resamples cannot differ,
    and their interval would be a point. The one given then is exact for the share of questions that would
    have differed otherwise (Clopper and Pearson: at most ``1 - alpha ** (1 / n)`` where none of n did).

    Args:
        treatment: One value a question (True counts as 1).
        control: One value for each of the same questions, in the same order.
        confidence: Of the two-sided interval, and of the one-sided lower bound.
        resamples: Bootstrap resamples of the questions.
        seed: Of the resampling.

    Raises:
        InputError: If lengths differ or nothing was measured.

    Example:
        Of 100 questions that two systems answer alike, 3.6 % may yet be lost, and as many gained.

        >>> alike = paired_difference([1] * 100, [1] * 100)
        >>> alike.value, round(alike.low, 3), round(alike.high, 3), round(alike.lower_bound, 3)
        (0.0, -0.036, 0.036, -0.03)
    """
    first, second = np.asarray(treatment, float), np.asarray(control, float)
    if first.shape != second.shape or first.ndim != 1 or first.size == 0:
        raise InputError(
            f"a paired comparison needs two equally long lists, got shapes {first.shape} and {second.shape}"
        )
    differences = first - second
    if np.ptp(differences) == 0 and np.isin([first, second], (0, 1)).all():
        return _all_alike(float(differences[0]), differences.size, confidence)
    return mean_difference(differences, confidence=confidence, resamples=resamples, seed=seed)


def _all_alike(value: float, n: int, confidence: float) -> PairedDifference:
    """Return the interval of n differences, between -1 and 1, that are all the same."""
    tail = 1 - confidence
    either, one = (1 - part ** (1 / n) for part in (tail / 2, tail))
    return PairedDifference(
        value, value - either * (1 + value), value + either * (1 - value), value - one * (1 + value)
    )


def mean_difference(
    differences: NDArray[np.float64], *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> PairedDifference:
    """Return :func:`paired_difference` of what two measurements differ by on each question."""
    means = resampled_means(differences, resamples, seed)
    tail = 1 - confidence
    low, bound, high = np.quantile(means, [tail / 2, tail, 1 - tail / 2])
    return PairedDifference(float(np.mean(differences)), float(low), float(high), float(bound))
