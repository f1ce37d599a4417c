"""How a fixed sequence of tests is walked through without making all of them, and without holding all steps.

Thresholds are tested in ascending order until one fails (:mod:`surerag.decisions.search`). Many are passed at
once where the worst that any of them could show passes: all that is mended up to the last, and nothing
that is spoiled after the one before the first. Where this fails, fewer are taken, down to one by one. What is
found is what testing each finds, as long as a sample with more mended and fewer spoiled questions never has
the smaller p-value.

Of more than :data:`MANY` questions only some steps are held, one in so many questions; the others between two
of them are looked at where they are needed. Scores in between are then bet on in blocks that a part of the
questions sets, which is not bet on; all thresholds of a block are certified together or not at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.decisions.paired import bets, betting_p_value
from surerag.decisions.rows import Outcomes

Floats = NDArray[np.float64]

MANY: Final = 10_000
"""Up to so many questions all steps are held, and scores are bet on at each."""
_SOME = 64
"""Questions from one step to the next, of more than that."""
_BLOCKS, _SETTING = 256, 4096
"""Blocks of thresholds that are bet on, and questions that set them."""
_PART = 1 << 16


class Steps(NamedTuple):
    """The distinct finite signals in ascending order, and what lies at or below each.

    Attributes:
        thresholds: Shape [m].
        kept: Questions at or below each threshold, which do not act.
        mended: Of these, those that acting would turn right.
        spoiled: Of these, those that acting would turn wrong.
        n: Questions in the sample.
        whole: Whether every distinct finite signal is there.
    """

    thresholds: Floats
    kept: NDArray[np.int_]
    mended: Floats
    spoiled: Floats
    n: int
    whole: bool = True

    @property
    def loss(self) -> Floats:
        """Estimated loss against always acting at each threshold."""
        return (self.mended - self.spoiled) / self.n


def steps_of(signals: Floats, outcomes: Outcomes | None = None) -> Steps:
    """Sort a sample by its signal; of more than :data:`MANY` questions hold some steps, the last among them.

    Example:
        >>> found = steps_of(np.array([0.5, 0.1, 0.5, np.inf]))
        >>> found.thresholds.tolist(), found.kept.tolist(), found.n
        ([0.1, 0.5], [1, 3], 4)
    """
    return sorted_steps(signals, outcomes) if len(signals) <= MANY else _some_steps(signals, outcomes)


def sorted_steps(signals: Floats, outcomes: Outcomes | None = None) -> Steps:
    """Sort a sample by its signal, and hold every step."""
    order = np.argsort(signals, kind="stable")
    ascending = signals[order]
    ends = np.append(ascending[1:] != ascending[:-1], True) & np.isfinite(ascending)
    benefit = np.zeros(len(signals)) if outcomes is None else outcomes.benefit[order]
    mended, spoiled = (np.cumsum(np.maximum(sign * benefit, 0.0))[ends] for sign in (1, -1))
    return Steps(ascending[ends], np.flatnonzero(ends) + 1, mended, spoiled, len(signals))


def _some_steps(signals: Floats, outcomes: Outcomes | None) -> Steps:
    ordered = np.sort(signals)
    low, high = np.searchsorted(ordered, -math.inf, "right"), np.searchsorted(ordered, math.inf)
    places = np.append(np.arange(low + _SOME - 1, high - 1, _SOME), high - 1)[: None if high > low else 0]
    thresholds = np.unique(ordered[places])
    kept = np.searchsorted(ordered, thresholds, side="right")
    del ordered
    mended, spoiled = np.zeros((2, len(thresholds) + 1))
    for start in range(0, len(signals) if outcomes is not None else 0, _PART):
        some = slice(start, start + _PART)
        at = np.searchsorted(thresholds, signals[some], side="left")
        benefit = outcomes.part(some).benefit  # type: ignore[union-attr]  # the range is empty without
        mended += np.bincount(at, np.maximum(benefit, 0.0), len(mended))
        spoiled += np.bincount(at, np.maximum(-benefit, 0.0), len(spoiled))
    mended, spoiled = np.cumsum(mended[:-1]), np.cumsum(spoiled[:-1])
    return Steps(thresholds, kept, mended, spoiled, len(signals), whole=False)


def walked(
    steps: Steps, fails: Callable[[float, float], bool], between: Callable[[float, float], Steps]
) -> float:
    """Return the last threshold before the first that fails.

    Args:
        steps: In ascending order.
        fails: Whether a threshold fails that keeps from mending and from spoiling so many questions.
        between: Gives all steps above a threshold and up to another, counted from the first of them on.

    Returns:
        A threshold; -inf where the first fails.
    """
    at, stride = 0, 1
    while at < len(steps.thresholds):
        to = min(at + stride, len(steps.thresholds))
        single = to == at + 1
        spoiled = float(steps.spoiled[at - 1]) if at else 0.0
        least = float(steps.spoiled[at]) if single and steps.whole else spoiled
        if not fails(float(steps.mended[to - 1]), least):
            at, stride = to, 2 * stride
        elif not single:
            stride = max(1, (to - at) // 2)
        elif steps.whole:
            break
        else:
            mended = float(steps.mended[at - 1]) if at else 0.0
            above = float(steps.thresholds[at - 1]) if at else -math.inf
            within = between(above, float(steps.thresholds[at]))
            inner = within._replace(mended=within.mended + mended, spoiled=within.spoiled + spoiled)
            found = _walked_within(inner, fails)
            if found < len(inner.thresholds):
                return float(inner.thresholds[found - 1]) if found else above
            at, stride = at + 1, 1
    return float(steps.thresholds[at - 1]) if at else -math.inf


def _walked_within(steps: Steps, fails: Callable[[float, float], bool]) -> int:
    """Return how many of some neighbouring thresholds hold before the first that fails."""
    pairs = zip(steps.mended.tolist(), steps.spoiled.tolist(), strict=True)
    return next((at for at, pair in enumerate(pairs) if fails(*pair)), len(steps.thresholds))


def bet_through(signals: Floats, outcomes: Outcomes, max_loss: float, level: float) -> float:
    """Return the last threshold before the first that fails, by betting; -inf where the first does."""
    # Bets are placed in an order that has nothing to do with the signal.
    order = np.random.default_rng(0).permutation(len(signals)).astype(np.int32)
    if len(signals) > MANY:
        return _bet_on_blocks(signals, outcomes, order, max_loss, level)
    shuffled, benefit = signals[order], outcomes.benefit[order]
    found = -math.inf
    for threshold in sorted_steps(signals).thresholds.tolist():
        losses = np.where(shuffled <= threshold, benefit, 0.0)
        if betting_p_value(losses, max_loss, 1 - level) > level:
            break
        found = threshold
    return found


def _bet_on_blocks(
    signals: Floats, outcomes: Outcomes, order: NDArray[np.int32], max_loss: float, level: float
) -> float:
    setting, rest = signals[order[:_SETTING]], order[_SETTING:]
    finite = np.sort(setting[np.isfinite(setting)])
    places = np.linspace(0, len(finite) - 1, _BLOCKS + 1).round().astype(np.intp)
    edges = np.unique(finite[places[1:]]) if len(finite) else finite

    def losses(above: float, upto: float) -> Iterator[Floats]:
        for start in range(0, len(rest), _PART):
            here = rest[start : start + _PART]
            signal, benefit = signals[here], outcomes.part(here).benefit
            worst = np.where(signal <= above, benefit, np.maximum(benefit, 0.0))
            yield np.where(signal <= upto, worst, 0.0)

    found = -math.inf
    for edge in edges.tolist():
        if bets(losses(found, edge), len(rest), max_loss, 1 - level) > level:
            break
        found = edge
    return found
