"""Means and paired differences of an evaluation run, computed with :mod:`surerag.measures.statistics`.

All intervals and tests treat questions of one group, such as one document, as dependent.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from surerag.errors import InputError
from surerag.evaluation.run import Run
from surerag.measures.statistics import (
    Estimate,
    Floats,
    Groups,
    effective_size,
    exact_paired_test,
    group_numbers,
    holm,
    mean_interval,
    paired_difference,
)

COSTS = ("tokens", "calls", "seconds")
"""Names of the costs of a question; larger is worse, and there is no upper bound."""
SIGNIFICANCE = 0.05
"""Significance level of a difference, for p-values that are adjusted for the number of systems (Holm)."""
POWER = 0.8
"""Probability that a test with the recommended number of questions finds a real difference (the power)."""
_FLIPS = 10_000
"""Maximum number of sign flips in the permutation test."""
_EXACT = 2_000
"""Maximum number of pairs for which the power of the exact test is computed and not approximated."""


class Pairs(NamedTuple):
    """The values of two systems for the questions for which both have a value, and each question's group."""

    first: list[float]
    second: list[float]
    groups: list[str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference between a system and the baseline, for the questions that both answered.

    Attributes:
        system: Name of the system.
        difference: Mean of the system minus mean of the baseline.
        p_value: P-value of the hypothesis that there is no difference; see :func:`paired_p_value`.
        adjusted: The p-value after Holm's adjustment for the number of systems.
    """

    system: str
    difference: Estimate
    p_value: float
    adjusted: float


def summarize(run: Run, measure: str) -> dict[str, Estimate | None]:
    """Return the mean of a metric or cost for each system; None for a system without values.

    Intervals are computed by :func:`~surerag.measures.statistics.mean_interval`.

    Args:
        run: The evaluation run.
        measure: Name of a measure of :meth:`Run.values`, such as ``"f1"``, ``"tokens"`` or ``"searched"``.

    Raises:
        ConfigurationError: If the run has no such measure.
    """
    bounds = (0.0, 1.0) if _is_share(run, measure) else None
    summary: dict[str, Estimate | None] = {}
    groups = run.groups
    for system in run.systems:
        values = run.values(system, measure)
        of_each = [groups[key] for key in values]
        summary[system] = mean_interval([*values.values()], of_each, bounds=bounds) if values else None
    return summary


def _is_share(run: Run, measure: str) -> bool:
    return measure in run.metrics or measure in ("errors", "searched")


def pairs(run: Run, first: str, second: str, measure: str) -> Pairs:
    """Return the values of two systems for the questions for which both systems have a value.

    Raises:
        InputError: If there is no question with two values.
    """
    a, b = run.values(first, measure), run.values(second, measure)
    keys = [key for key in a if key in b]
    if not keys:
        raise InputError(
            f"there is no question for which both {first} and {second} have a value of {measure}",
            hint="metrics need reference answers; costs need systems that report their costs",
        )
    groups = run.groups
    return Pairs([a[key] for key in keys], [b[key] for key in keys], [groups[key] for key in keys])


def compare_systems(run: Run, measure: str, baseline: str = "") -> list[Comparison]:
    """Compare each system, except the baseline itself, with the baseline.

    Systems that are not in ``run.comparable`` are left out, because they were asked too few questions.

    Args:
        run: The evaluation run.
        measure: Name of a measure of :meth:`Run.values`.
        baseline: Name of the baseline system; empty means the first system.

    Raises:
        ConfigurationError: If the run has no such measure, or no such system.
    """
    systems = run.comparable
    baseline = baseline or next(iter(systems), "")
    if baseline:
        run.values(baseline, measure)  # raises an error for an unknown name, also if nothing is compared
    bounds = (-1.0, 1.0) if _is_share(run, measure) else None
    others = [system for system in systems if system != baseline and baseline in systems]
    results = []
    for system in others:
        try:
            both = pairs(run, system, baseline, measure)
        except InputError:
            continue
        results.append((system, paired_difference(*both, bounds=bounds), paired_p_value(*both)))
    adjusted = holm([p for _, _, p in results])
    return [Comparison(*result, p) for result, p in zip(results, adjusted, strict=True)]


def paired_p_value(first: Sequence[float], second: Sequence[float], groups: Groups = None) -> float:
    """Return the two-sided p-value of the hypothesis that the values of pairs do not differ.

    The test is exact for binary values without groups. Otherwise, the test is a permutation test: it flips
    the signs of the differences, for all pairs of one group together.

    Example:
        >>> round(paired_p_value([1] * 9 + [0], [0] * 9 + [1]), 4)
        0.0215
        >>> paired_p_value([1] * 10, [0] * 10, [number // 2 for number in range(10)])  # 2 / 2 ** 5
        0.0625
    """
    differences: Floats = np.subtract(first, second, dtype=np.float64)
    number = group_numbers(groups, len(differences))
    if 1 < number.max(initial=-1) + 1 < len(number):
        differences = np.bincount(number, differences).astype(np.float64)
    elif is_binary(first) and is_binary(second):
        return exact_paired_test(int((differences > 0).sum()), int((differences < 0).sum()))
    changed = differences[np.abs(differences) > 1e-12]
    if not len(changed):
        return 1.0
    observed = abs(changed.sum()) - 1e-12
    if 2 ** len(changed) <= _FLIPS:  # few enough to try every combination of signs
        every = 1.0 - 2.0 * (np.arange(2 ** len(changed))[:, None] >> np.arange(len(changed)) & 1)
        return float((np.abs(every @ changed) >= observed).mean())
    rng = np.random.default_rng(0)
    extreme, block = 0, max(1, 2_000_000 // len(changed))
    for start in range(0, _FLIPS, block):
        signs = rng.choice([-1.0, 1.0], size=(min(block, _FLIPS - start), len(changed)))
        extreme += int((np.abs(signs @ changed) >= observed).sum())
    return (extreme + 1) / (_FLIPS + 1)


def questions_to_show(
    first: Sequence[float], second: Sequence[float], groups: Groups = None, *, tests: int = 1
) -> int | None:
    """Return how many pairs are needed to show a difference, if the sample does not show it.

    The number is an estimate, for a difference as large as in the sample.

    With this number, :func:`paired_p_value` is at most 5 % divided by the number of tests (as in the first
    step of Holm's method), with 80 % probability. For binary values, the power of the exact test is computed,
    or for many pairs approximated by McNemar's test (Miettinen 1968) with a continuity correction (Fleiss
    1981). For other values, the power of a paired test of means is used.

    Args:
        first: First value of each pair, shape [n].
        second: Second value of each pair, shape [n].
        groups: Group of each pair, shape [n]; further pairs are assumed to be grouped in the same way.
        tests: Number of systems that are compared with the baseline.

    Returns:
        The number of pairs; None if the means are equal. The number is at least n + 1.

    Example:
        >>> questions_to_show([1] * 5 + [0] * 95, [0] * 5 + [1] * 2 + [0] * 93)
        645
    """
    differences: Floats = np.subtract(first, second, dtype=np.float64)
    n, mean, normal = len(differences), abs(float(differences.mean())), NormalDist()
    if mean < 1e-12:
        return None
    z, of_power = normal.inv_cdf(1 - SIGNIFICANCE / tests / 2), normal.inv_cdf(POWER)
    square = float((differences**2).mean())
    size = ((z * math.sqrt(square) + of_power * math.sqrt(square - mean**2)) / mean) ** 2
    if is_binary(first) and is_binary(second):
        # Counts are whole numbers, so the continuity correction of Fleiss (1981) is applied.
        size = size / 4 * (1 + math.sqrt(1 + 4 / (size * mean))) ** 2
        if size <= _EXACT:
            level = SIGNIFICANCE / tests
            sizes = range(1, 2 * math.ceil(size))
            size = sizes[bisect_left(sizes, POWER, key=lambda n: _power(n, mean, square, level))]
    else:
        size += z * z / 2
    return max(n + 1, math.ceil(size * n / effective_size(differences, groups)))


def _power(n: int, difference: float, discordant: float, level: float) -> float:
    log_factorials = np.append(0.0, np.cumsum(np.log(np.arange(1, n + 1))))

    def log_binomial(count: int, at_most: int, share: float) -> Floats:
        chosen = np.arange(at_most + 1)
        ways = log_factorials[count] - log_factorials[chosen] - log_factorials[count - chosen]
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = np.nan_to_num(chosen * np.log(share), nan=0.0) + (count - chosen) * np.log1p(-share)
        return np.asarray(ways + np.nan_to_num(odds, nan=0.0, neginf=-np.inf))

    chance = np.exp(log_binomial(n, n, discordant))
    loss_share, power = (1 - difference / discordant) / 2, 0.0
    for count in np.flatnonzero(chance > 1e-7).tolist():
        tail = 2 * np.cumsum(np.exp(log_binomial(count, count // 2, 0.5)))
        most = int(np.searchsorted(tail, level, side="right")) - 1
        if most >= 0:
            power += float(chance[count] * np.exp(log_binomial(count, most, loss_share)).sum())
    return power


def is_binary(values: ArrayLike) -> bool:
    """Return whether all values are 0 or 1."""
    return bool(np.isin(values, (0, 1)).all())
