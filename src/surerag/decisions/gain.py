"""What a rule gains over acting at random equally often, with an interval that its choice cannot flatter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surerag.decisions.rows import Outcomes

Floats = NDArray[np.float64]

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
    benefit = outcomes.benefit
    finite = signals[np.isfinite(signals)]
    grid = np.quantile(finite, 1 - RATES) if len(finite) else np.empty(0)
    acts = signals[:, None] > np.append(threshold, grid)[None, :]
    centred = (benefit - benefit.mean())[:, None] * (acts - acts.mean(axis=0))
    value = float(centred[:, 0].mean())
    influence = centred - centred.mean(axis=0)
    spread = influence.std(axis=0)
    if spread[0] == 0:
        return Gain(value, value, value)
    told = spread > 0
    studentised = influence[:, told] / spread[told]
    draws = np.random.default_rng(0).standard_normal((1000, len(signals))) @ studentised
    widest = np.abs(draws).max(axis=1) / np.sqrt(len(signals))
    half = float(np.quantile(widest, confidence) * spread[0] / np.sqrt(len(signals)))
    return Gain(value, value - half, value + half)
