"""What a rule gains over acting at random equally often, with an interval that its choice cannot flatter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.decisions.rows import Outcomes

Floats = NDArray[np.float64]

DIRECT = 10_000
"""Up to so many questions, each is given a random weight; of more, the questions between two thresholds."""
_DRAWS = 1000
_BLOCK = 1_000_000
"""Random numbers that are held at a time."""

RATES = np.linspace(0.04, 0.96, 24)
"""Rates of acting whose thresholds the interval has to cover together."""


@dataclass(frozen=True, slots=True)
class Gain:
    """A difference in mean score, with a two-sided interval.

    Attributes:
        value: Mean score of the rule less that of acting at random on the same share of questions.
        lower: Lower end.
        upper: Upper end.
    """

    value: float
    lower: float
    upper: float


def gain_at(signals: Floats, outcomes: Outcomes, threshold: float, confidence: float = 0.95) -> Gain:
    """Return the gain of acting above a threshold over acting at random equally often.

    It is the covariance of acting and of what acting changes: 0 where a signal says nothing of the benefit,
    however often the first answer is wrong. The threshold was chosen on the same questions, so the interval
    is one of a band that covers all thresholds together (the multiplier bootstrap of the largest studentised
    deviation; Chernozhukov, Chetverikov & Kato, Annals of Statistics 41, 2013).

    Args:
        signals: Shape [n].
        outcomes: Scores of the same questions.
        threshold: The rule acts above it.
        confidence: Of the band.

    Example:
        >>> right = Outcomes(np.array([1.0, 1.0, 0.0, 0.0] * 50), np.ones(200))
        >>> gain_at(np.tile([0.1, 0.2, 0.8, 0.9], 50), right, 0.5).value
        0.25
    """
    finite = signals[np.isfinite(signals)]
    grid = np.quantile(finite, 1 - RATES, overwrite_input=True) if len(finite) else np.empty(0)
    at = _many if len(signals) > DIRECT else _each
    value, spread, widest = at(signals, outcomes, np.append(threshold, grid))
    if spread == 0:
        return Gain(value, value, value)
    half = float(np.quantile(widest, confidence) * spread / np.sqrt(len(signals)))
    return Gain(value, value - half, value + half)


class _Band(NamedTuple):
    """The gain at the first threshold, its spread, and the largest studentised deviation of each draw."""

    value: float
    spread: float
    widest: Floats


def _each(signals: Floats, outcomes: Outcomes, thresholds: Floats) -> _Band:
    """Draw a weight for each question."""
    n, benefit = len(signals), outcomes.benefit
    acts = signals[:, None] > thresholds[None, :]
    centred = (benefit - benefit.mean())[:, None] * (acts - acts.mean(axis=0))
    influence = centred - centred.mean(axis=0)
    spread = influence.std(axis=0)
    told = spread > 0
    studentised = influence[:, told] / spread[told]
    rng, draws = np.random.default_rng(0), list[Floats]()
    rows = max(1, _BLOCK // n)
    for start in range(0, _DRAWS if told.any() else 0, rows):
        drawn = rng.standard_normal((min(rows, _DRAWS - start), n)) @ studentised
        draws.append(np.abs(drawn).max(axis=1) / np.sqrt(n))
    widest = np.concatenate([np.empty(0), *draws])
    return _Band(float(centred[:, 0].mean()), float(spread[0]), widest)


def _many(signals: Floats, outcomes: Outcomes, thresholds: Floats) -> _Band:
    """Draw, for the questions between two thresholds, the two sums of their weights that all depends on.

    Acting is the same for all of them. So a draw needs the sum of their weights, and that of their weights
    times what acting changes: two normal numbers with known variances and covariance, which is exact.
    """
    n, steps = len(signals), np.sort(thresholds)
    counts, sums, squares = np.zeros((3, len(steps) + 1))
    mean = float(sum(part.sum() for _, part in _parts(signals, outcomes))) / n
    for some, benefit in _parts(signals, outcomes):
        between = np.searchsorted(steps, some, side="left")
        counts += np.bincount(between, minlength=len(counts))
        sums += np.bincount(between, benefit - mean, len(counts))
        squares += np.bincount(between, (benefit - mean) ** 2, len(counts))
    acts = (np.arange(len(counts))[:, None] > np.searchsorted(steps, thresholds)[None, :]).astype(np.float64)
    acting = acts - counts @ acts / n
    values = sums @ acting / n
    spread = np.sqrt(np.maximum(squares @ acting**2 / n - values**2, 0.0))
    spread[spread < 1e-12] = 0.0
    told = spread > 0
    held = np.maximum(counts, 1)
    rest = np.sqrt(np.maximum(squares - sums**2 / held, 0.0))
    first, second = np.random.default_rng(0).standard_normal((2, _DRAWS, len(counts)))
    weights = first * np.sqrt(counts)
    changed = first * sums / np.sqrt(held) + second * rest
    drawn = (changed @ acting - weights.sum(axis=1)[:, None] * values)[:, told] / spread[told]
    widest = np.abs(drawn).max(axis=1, initial=0.0) / np.sqrt(n)
    return _Band(float(values[0]), float(spread[0]), widest)


def _parts(signals: Floats, outcomes: Outcomes) -> Iterator[tuple[Floats, Floats]]:
    """Yield signals and benefits, some questions at a time."""
    for start in range(0, len(signals), DIRECT):
        some = slice(start, start + DIRECT)
        yield signals[some], outcomes.part(some).benefit
