"""Means, paired differences and trade-offs of a run, by :mod:`surerag.measures.statistics`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surerag.errors import InputError
from surerag.evaluation.run import EvaluationRun
from surerag.measures.statistics import Estimate, exact_paired_test, holm, mean_interval, paired_difference

COSTS = ("tokens", "calls", "seconds")
"""Larger is worse, without an upper bound."""
_FLIPS = 10_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """A system less the baseline, on the questions that both answered.

    The p-value of "there is no difference" is exact for right and wrong answers, by permutation for others;
    once more, it is adjusted for the number of systems (Holm).
    """

    system: str
    difference: Estimate
    p_value: float
    adjusted: float


def summarize(run: EvaluationRun, measure: str) -> dict[str, Estimate | None]:
    """Return the mean of a metric or cost for each system; None where nothing was measured.

    Intervals are those of :func:`~surerag.measures.statistics.mean_interval`.
    """
    bounds = (0.0, 1.0) if measure in run.metrics or measure == "errors" else None
    summary: dict[str, Estimate | None] = {}
    for system in run.systems:
        values = list(run.values(system, measure).values())
        summary[system] = mean_interval(values, bounds=bounds) if values else None
    return summary


def pairs(run: EvaluationRun, first: str, second: str, measure: str) -> tuple[list[float], list[float]]:
    """Return a measure of two systems on the questions that both have a value for."""
    a, b = run.values(first, measure), run.values(second, measure)
    keys = [key for key in a if key in b]
    if not keys:
        raise InputError(
            f"{first} and {second} have no question with a value of {measure} in common",
            hint="metrics need reference answers; costs, a system that reports them",
        )
    return [a[key] for key in keys], [b[key] for key in keys]


def compare_systems(run: EvaluationRun, measure: str, baseline: str = "") -> list[Comparison]:
    """Compare every system with the baseline, the first one by default.

    Systems that were asked only some of the questions are left out (``run.comparable``), so that they take no
    part in Holm's adjustment.
    """
    systems = run.comparable
    baseline = baseline or next(iter(systems), "")
    bounds = (-1.0, 1.0) if measure in run.metrics else None
    others = [system for system in systems if system != baseline and baseline in systems]
    results = []
    for system in others:
        try:
            first, second = pairs(run, system, baseline, measure)
        except InputError:
            continue
        difference = paired_difference(first, second, bounds=bounds)
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


def is_binary(values: ArrayLike) -> bool:
    """Return whether all values are 0 or 1."""
    return bool(np.isin(values, (0, 1)).all())
