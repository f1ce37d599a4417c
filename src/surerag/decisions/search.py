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
from functools import partial

import numpy as np
from numpy.typing import NDArray

from surerag.decisions.paired import paired_p_value
from surerag.decisions.rows import Outcomes
from surerag.decisions.walking import Steps, bet_through, sorted_steps, steps_of, walked
from surerag.extras import extra

Floats = NDArray[np.float64]

SLIP = 0.01
"""Share of the level that the exact test gives up for the nuisance."""


def bounded_loss(signals: Floats, outcomes: Outcomes, max_loss: float, level: float) -> float:
    """Return the largest threshold that loses at most ``max_loss``, at confidence 1 - ``level``.

    Answers that are right or wrong are tested exactly (:func:`~surerag.decisions.paired.paired_p_value`),
    scores in between by betting (:func:`~surerag.decisions.paired.betting_p_value`); see
    :mod:`surerag.decisions.walking` for how few tests that takes.

    Returns:
        A threshold; -inf, which always acts and loses nothing, where none is certified.
    """
    if not _binary(outcomes):
        return bet_through(signals, outcomes, max_loss, level)
    steps = steps_of(signals, outcomes)
    n = len(signals)

    def fails(mended: float, spoiled: float) -> bool:
        return paired_p_value(n, round(mended), round(spoiled), max_loss, SLIP * level) > level

    return walked(steps, fails, partial(_within, signals, outcomes))


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
    n = len(signals)
    # The p-value grows with the number that acts: the most that may act says which signal comes first.
    most = int(binom.ppf(level, n, budget))
    while most >= 0 and binom.cdf(most, n, budget) > level:
        most -= 1
    if most < 0:
        return math.inf
    at = max(n - most - 1, 0)
    threshold = float(np.partition(signals, at)[at])
    if threshold == -math.inf:
        threshold = float(signals[np.isfinite(signals)].min(initial=math.inf))
    return threshold


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
    return all(bool(((side == 0) | (side == 1)).all()) for side in (outcomes.without, outcomes.with_))


def _within(signals: Floats, outcomes: Outcomes, above: float, upto: float) -> Steps:
    """Return all steps between two thresholds, each question counted from the first of them on."""
    here = np.flatnonzero((signals > above) & (signals <= upto))
    return sorted_steps(signals[here], outcomes.part(here))
