"""What a promise costs in actions: rules to compare with, and how much any valid test may pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from surerag.decisions.paired import betting_p_value, hoeffding_bentkus_p_value, paired_p_value
from surerag.decisions.rows import Outcomes
from surerag.decisions.search import SLIP, bounded_loss
from surerag.decisions.walking import Steps, steps_of

Floats = NDArray[np.float64]
Passes = Callable[[int, int], bool]

_SHARES = np.linspace(0.0, 0.12, 241)
"""Shares of discordant questions beyond the bound: with more of them, approximations are good."""

_MOST = 60
"""Discordant questions, at most: of 250 at these shares there are hardly ever more."""


@dataclass(frozen=True, slots=True)
class SizeRow:
    """Outcomes that a test passes, and how often they come about where the promise is just broken.

    Attributes:
        outcomes: In words; "2:1" are two mended beside one spoiled, of questions that do not act.
        size: The largest probability of them at a loss of the bound, over all shares of discordant questions.
    """

    outcomes: str
    size: float


OUTCOMES: dict[str, Passes] = {
    "at most 1 mended": lambda mended, spoiled: mended <= 1,
    "these, and 2:1 or better": lambda mended, spoiled: mended <= 1 or (mended == 2 and spoiled >= 1),
    "these, and 3:3, 4:4 or better": lambda mended, spoiled: mended <= 1 or mended <= min(4, spoiled),
    "at most 2 mended, 2:0 among them": lambda mended, spoiled: mended <= 2,
}
"""What a test might pass at first, when few questions differ."""


def sizes(n: int, bound: float, level: float = 0.05) -> tuple[SizeRow, ...]:
    """Return how often each of :data:`OUTCOMES`, and what rules pass, is seen where the loss is the bound."""

    def approximately(mended: int, spoiled: int) -> bool:
        return bool(_normal_bound(mended, spoiled, n, level) <= bound)

    passed: dict[str, Passes] = {
        **OUTCOMES,
        "what the normal approximation passes": approximately,
        "the same, less 2:0": lambda mended, spoiled: (
            mended * (not spoiled) < 2 and approximately(mended, spoiled)
        ),
        "what the certified rule passes": lambda mended, spoiled: (
            paired_p_value(n, mended, spoiled, bound, SLIP * level) <= level
        ),
    }
    return tuple(SizeRow(name, size_of(passes, n, bound)) for name, passes in passed.items())


def size_of(passes: Passes, n: int, bound: float) -> float:
    """Return the largest probability of outcomes at a loss of ``bound``, of n questions.

    Example:
        >>> round(size_of(lambda mended, spoiled: mended == spoiled == 0, 250, 0.02), 4)  # 0.98 ** 250
        0.0064
    """
    shares = bound + _SHARES
    discordant = np.arange(min(n, _MOST) + 1)
    mended = discordant[:, None]
    most = len(discordant)
    passed = np.array([[m <= d and passes(m, d - m) for d in range(most)] for m in range(most)])
    found = 0.0
    for share in shares:
        at = stats.binom.pmf(mended, discordant[None, :], min(1.0, (share + bound) / (2 * share)))
        found = max(found, float(((at * passed).sum(axis=0) * stats.binom.pmf(discordant, n, share)).sum()))
    return found


def normal(signals: Floats, outcomes: Outcomes, level: float, max_loss: float) -> float:
    """Return the threshold of the same sequence of tests with the normal approximation's p-values."""
    return _last_passed(_normal(signals, outcomes, level, max_loss))


def normal_without_two(signals: Floats, outcomes: Outcomes, level: float, max_loss: float) -> float:
    """Return that of the normal approximation, had it to stop at two mended and none spoiled."""
    steps, passed = _normal(signals, outcomes, level, max_loss)
    return _last_passed((steps, passed & ~((steps.spoiled == 0) & (steps.mended >= 2))))


def two_starts(signals: Floats, outcomes: Outcomes, level: float, max_loss: float) -> float:
    """Return that of the certified rule, half of the level each from always acting and from the median."""
    early = bounded_loss(signals, outcomes, max_loss, level / 2)
    from_half = np.maximum(signals, np.median(signals))
    return max(early, bounded_loss(from_half, outcomes, max_loss, level / 2))


def betting(signals: Floats, outcomes: Outcomes, level: float, max_loss: float) -> float:
    """Return that of the same sequence with p-values by betting."""
    return _along(signals, outcomes, level, lambda losses: betting_p_value(losses, max_loss, 1 - level))


def hoeffding_bentkus(signals: Floats, outcomes: Outcomes, level: float, max_loss: float) -> float:
    """Return that of the same sequence with p-values that know the range of losses alone."""
    return _along(signals, outcomes, level, lambda losses: hoeffding_bentkus_p_value(losses, max_loss))


def _normal(
    signals: Floats, outcomes: Outcomes, level: float, max_loss: float
) -> tuple[Steps, NDArray[np.bool_]]:
    steps = steps_of(signals, outcomes)
    return steps, _normal_bound(steps.mended, steps.spoiled, steps.n, level) <= max_loss


def _normal_bound(mended: Floats | float, spoiled: Floats | float, n: int, level: float) -> Floats:
    loss = np.asarray((mended - spoiled) / n)
    variance = (mended + spoiled) / n - loss**2
    return np.asarray(loss + stats.norm.ppf(1 - level) * np.sqrt(variance / n))


def _last_passed(found: tuple[Steps, NDArray[np.bool_]]) -> float:
    steps, passed = found
    failing = np.flatnonzero(~passed)
    end = int(failing[0]) if len(failing) else len(steps.thresholds)
    return float(steps.thresholds[end - 1]) if end else -math.inf


def _along(signals: Floats, outcomes: Outcomes, level: float, p_value: Callable[[Floats], float]) -> float:
    found = -math.inf
    for threshold in steps_of(signals).thresholds:
        if p_value(np.where(signals <= threshold, outcomes.benefit, 0.0)) > level:
            break
        found = float(threshold)
    return found
