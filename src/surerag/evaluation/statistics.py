"""Means, paired differences and trade-offs of a run, by :mod:`surerag.measures.statistics`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surerag.errors import InputError, extra
from surerag.evaluation.run import EvaluationRun
from surerag.measures.statistics import (
    Estimate,
    constant_interval,
    exact_paired_test,
    holm,
    mean_interval,
    paired_difference,
    wilson,
)

COSTS = ("tokens", "calls", "seconds")
"""Larger is worse, without an upper bound."""
_FLIPS = 10_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """A system against the baseline, on the questions that both answered.

    Attributes:
        system: The system.
        difference: Mean of the system less that of the baseline.
        p_value: Of "there is no difference"; exact for right and wrong answers, by permutation for others.
        adjusted: The same, adjusted for the number of systems (Holm).
    """

    system: str
    difference: Estimate
    p_value: float
    adjusted: float


def summarize(run: EvaluationRun, measure: str, confidence: float = 0.95) -> dict[str, Estimate | None]:
    """Return the mean of a metric or cost for each system; None where nothing was measured.

    Intervals of right and wrong answers are Wilson's, others are bootstrapped.
    """
    bounds = (0.0, 1.0) if measure in run.metrics or measure == "errors" else None
    summary: dict[str, Estimate | None] = {}
    for system in run.systems:
        values = list(run.values(system, measure).values())
        if not values:
            summary[system] = None
        elif bounds is not None and is_binary(values):
            n, right = len(values), round(sum(values))
            summary[system] = Estimate(right / n, wilson(right, n, confidence), n)
        else:
            summary[system] = mean_interval(values, confidence=confidence, bounds=bounds)
    return summary


def pairs(run: EvaluationRun, first: str, second: str, measure: str) -> tuple[list[float], list[float]]:
    """Return a measure of two systems on the questions that both have a value for.

    Raises:
        InputError: If there is no such question.
    """
    a, b = run.values(first, measure), run.values(second, measure)
    keys = [key for key in a if key in b]
    if not keys:
        raise InputError(
            f"{first} and {second} have no question with a value of {measure} in common",
            hint="metrics need reference answers; costs, a system that reports them",
        )
    return [a[key] for key in keys], [b[key] for key in keys]


def compare_systems(
    run: EvaluationRun, measure: str, baseline: str = "", confidence: float = 0.95
) -> list[Comparison]:
    """Compare every system with the baseline, the first one by default."""
    baseline = baseline or run.systems[0]
    bounds = (-1.0, 1.0) if measure in run.metrics else None
    others = [system for system in run.systems if system != baseline]
    results = []
    for system in others:
        try:
            first, second = pairs(run, system, baseline, measure)
        except InputError:
            continue
        difference = paired_difference(first, second, confidence=confidence, bounds=bounds)
        results.append((system, difference, paired_p_value(first, second)))
    adjusted = holm([p for _, _, p in results])
    return [Comparison(*result, p) for result, p in zip(results, adjusted, strict=True)]


def paired_p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p-value of "the pairs do not differ".

    Example:
        >>> round(paired_p_value([1] * 9 + [0], [0] * 9 + [1]), 4)
        0.0215
    """
    differences: NDArray[np.float64] = np.subtract(first, second, dtype=np.float64)
    if is_binary(first) and is_binary(second):
        return exact_paired_test(int((differences > 0).sum()), int((differences < 0).sum()))
    changed = differences[differences != 0]
    if not len(changed):
        return 1.0
    rng = np.random.default_rng(0)
    observed, extreme, block = abs(changed.sum()), 0, max(1, 2_000_000 // len(changed))
    for start in range(0, _FLIPS, block):
        signs = rng.choice([-1.0, 1.0], size=(min(block, _FLIPS - start), len(changed)))
        extreme += int((np.abs(signs @ changed) >= observed - 1e-12).sum())
    return (extreme + 1) / (_FLIPS + 1)


def mean_bounds(
    values: ArrayLike, confidence: float, bounds: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Return one-sided bounds of a mean, by t; exact ones for equal values that lie within bounds.

    Raises:
        MissingExtraError: If scipy is not installed.

    Example:
        >>> [round(bound, 2) for bound in mean_bounds([1, 2, 3], 0.95)]
        [0.31, 3.69]
    """
    with extra("evaluation"):
        from scipy.stats import t
    sample = np.asarray(values, dtype=np.float64)
    n, mean = len(sample), float(sample.mean())
    if n < 2:
        return -math.inf, math.inf
    if np.ptp(sample) == 0:
        return constant_interval(mean, n, bounds, 2 * confidence - 1) or (mean, mean)
    reach = float(t.ppf(confidence, n - 1)) * float(sample.std(ddof=1)) / math.sqrt(n)
    return mean - reach, mean + reach


def is_binary(values: ArrayLike) -> bool:
    """Return whether all values are 0 or 1."""
    return bool(np.isin(values, (0, 1)).all())


def pareto_front(points: dict[str, tuple[float, float]]) -> list[str]:
    """Return the systems that no other one beats on cost (first, smaller) and quality (second, larger).

    Example:
        >>> pareto_front({"plain": (10, 0.8), "lazy": (5, 0.8), "none": (1, 0.3)})
        ['none', 'lazy']
    """
    front = []
    for name, (cost, quality) in sorted(points.items(), key=lambda item: item[1]):
        if not any(c <= cost and q >= quality and (c, q) != (cost, quality) for c, q in points.values()):
            front.append(name)
    return front
