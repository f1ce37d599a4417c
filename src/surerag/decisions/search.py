"""The threshold that a sample can answer for: tests in a fixed order over all thresholds (Learn then Test).

Angelopoulos, Bates, Candès, Jordan & Lei, "Learn then Test" (arXiv 2110.01052), fixed-sequence testing: where
hypotheses are tested in an order that was fixed beforehand, each at the full level, and testing stops at the
first that is not rejected, the chance of rejecting any true one is at most that level.

Here every real number is a threshold to be tested, in ascending order. Between two signals that were seen
the p-value stays the same, so testing at the signals seen tests all of them; and the first threshold at which
the promise does not hold is a fixed number, at which the p-value is valid. So no grid has to be chosen
beforehand, and ties and the scale of the signal do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.decisions.paired import betting_p_value, paired_p_value
from surerag.decisions.rows import Outcomes
from surerag.extras import extra

Floats = NDArray[np.float64]

SLIP = 0.01
"""Share of the level that the exact test gives up for the nuisance."""


class Steps(NamedTuple):
    """The distinct finite signals in ascending order, and what lies at or below each.

    Attributes:
        thresholds: Shape [m].
        kept: Questions at or below each threshold, which do not act.
        mended: Of these, those that acting would turn right.
        spoiled: Of these, those that acting would turn wrong.
        n: Questions in the sample.
    """

    thresholds: Floats
    kept: NDArray[np.int_]
    mended: Floats
    spoiled: Floats
    n: int

    @property
    def loss(self) -> Floats:
        """Estimated loss against always acting at each threshold."""
        return (self.mended - self.spoiled) / self.n


def steps_of(signals: Floats, outcomes: Outcomes | None = None) -> Steps:
    """Sort a sample by its signal.

    Example:
        >>> found = steps_of(np.array([0.5, 0.1, 0.5, np.inf]))
        >>> found.thresholds.tolist(), found.kept.tolist(), found.n
        ([0.1, 0.5], [1, 3], 4)
    """
    order = np.argsort(signals, kind="stable")
    ascending = signals[order]
    ends = np.append(ascending[1:] != ascending[:-1], True) & np.isfinite(ascending)
    benefit = np.zeros(len(signals)) if outcomes is None else outcomes.benefit[order]
    mended, spoiled = (np.cumsum(np.maximum(sign * benefit, 0.0))[ends] for sign in (1, -1))
    return Steps(ascending[ends], np.flatnonzero(ends) + 1, mended, spoiled, len(signals))


def bounded_loss(signals: Floats, outcomes: Outcomes, max_loss: float, level: float) -> float:
    """Return the largest threshold that loses at most ``max_loss``, at confidence 1 - ``level``.

    Answers that are right or wrong are tested exactly (:func:`~surerag.decisions.paired.paired_p_value`),
    scores in between by betting (:func:`~surerag.decisions.paired.betting_p_value`).

    Returns:
        A threshold; -inf, which always acts and loses nothing, where none is certified.
    """
    steps = steps_of(signals, outcomes)
    p_value = (
        _exact(steps, max_loss, level) if _binary(outcomes) else _betting(signals, outcomes, max_loss, level)
    )
    found = -math.inf
    for at, threshold in enumerate(steps.thresholds):
        if p_value(at) > level:
            break
        found = float(threshold)
    return found


def bounded_rate(signals: Floats, budget: float, level: float) -> float:
    """Return the smallest threshold at which at most ``budget`` of questions act.

    Thresholds are tested in descending order by the exact binomial test, each at ``level``.

    Returns:
        A threshold; inf, which never acts, where none is certified.
    """
    with extra("decisions"):
        from scipy.stats import binom

    if budget >= 1:
        return -math.inf
    steps = steps_of(signals)
    acting = steps.n - steps.kept
    p_values = binom.cdf(acting, steps.n, budget)
    failing = np.flatnonzero(p_values > level)
    first = int(failing[-1]) + 1 if len(failing) else 0
    return float(steps.thresholds[first]) if first < len(steps.thresholds) else math.inf


def questions_needed(signals: Floats, outcomes: Outcomes, max_loss: float, level: float) -> int | None:
    """Return about how many questions could certify a threshold that spares a twentieth of the actions.

    Were rates those of the sample, this many would do for every second sample (the normal approximation of
    Learn then Test's bound, and no fewer than the first step takes).

    Returns:
        A number of questions; None where no number would do, since every such threshold loses more.
    """
    with extra("decisions"):
        from scipy.stats import norm

    steps = steps_of(signals, outcomes)
    least = math.ceil(math.log(level * (1 - SLIP)) / math.log1p(-max_loss)) if max_loss < 1 else 1
    room = max_loss - steps.loss
    useful = (steps.kept >= steps.n / 20) & (room > 0)
    if not useful.any():
        return None
    variance = (steps.mended + steps.spoiled) / steps.n - steps.loss**2
    sizes = (norm.ppf(1 - level) ** 2) * variance[useful] / room[useful] ** 2
    return max(least, math.ceil(float(sizes.min())))


def _binary(outcomes: Outcomes) -> bool:
    return bool(np.isin(outcomes.without, (0.0, 1.0)).all() and np.isin(outcomes.with_, (0.0, 1.0)).all())


def _exact(steps: Steps, max_loss: float, level: float) -> Callable[[int], float]:
    def p_value(at: int) -> float:
        counts = round(float(steps.mended[at])), round(float(steps.spoiled[at]))
        return paired_p_value(steps.n, *counts, max_loss, SLIP * level)

    return p_value


def _betting(signals: Floats, outcomes: Outcomes, max_loss: float, level: float) -> Callable[[int], float]:
    # Bets are placed in an order that has nothing to do with the signal.
    order = np.random.default_rng(0).permutation(len(signals))
    shuffled, benefit = signals[order], outcomes.benefit[order]
    thresholds = steps_of(signals).thresholds

    def p_value(at: int) -> float:
        return betting_p_value(np.where(shuffled <= thresholds[at], benefit, 0.0), max_loss, 1 - level)

    return p_value
