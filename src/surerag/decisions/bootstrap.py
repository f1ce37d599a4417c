"""The largest threshold that a sample allows, with its bootstrap interval: what policies are held against.

It promises nothing. On a real reader's records the threshold itself breaks a bound of two points on every
second other sample, and the lower end of its interval on up to one in ten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surerag.errors import ConfigurationError, InputError


@dataclass(frozen=True, slots=True)
class BootstrapThreshold:
    """A threshold, and what was found on its sample.

    Attributes:
        threshold: Act iff the signal exceeds this.
        lower: Lower end of the 95 % bootstrap interval of ``threshold`` over the sample's questions.
        upper: Upper end.
        rate: Share of the sample that acts at ``threshold``.
        accuracy: Accuracy on the sample at ``threshold``.
        reference: Accuracy on the sample when always acting.
        n: Questions in the sample.
    """

    threshold: float
    lower: float
    upper: float
    rate: float
    accuracy: float
    reference: float
    n: int


def bootstrap_threshold(
    signals: ArrayLike,
    correct_without: ArrayLike,
    correct_with: ArrayLike,
    max_loss: float,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> BootstrapThreshold:
    """Find the largest threshold up to which none loses more than a bound on this sample.

    Where none is, all act: it is 0 where all signals are above zero, and else lies below all of them.

    Args:
        signals: Uncertainty of each question's first answer, shape [n]; infinite for an empty one, which is
            above every threshold.
        correct_without: Whether the first answer was right, shape [n].
        correct_with: Whether the answer after acting was right, shape [n].
        max_loss: Largest loss of accuracy on the sample against always acting, in [0, 1].
        resamples: Bootstrap resamples for the interval.
        seed: Of the bootstrap.

    Raises:
        ConfigurationError: If ``max_loss`` is out of range.
        InputError: If the sample is empty, holds what is no number, or the arrays differ in length.

    Example:
        >>> bootstrap_threshold([0.1, 0.2, 0.9, 1.5], [1, 1, 1, 0], [1, 1, 1, 1], 0.0).threshold
        0.9
    """
    if not 0 <= max_loss <= 1:
        raise ConfigurationError(f"a loss lies in [0, 1], got {max_loss!r}")
    given, without, with_ = map(_sample, (signals, correct_without, correct_with))
    if not len(given) == len(without) == len(with_):
        raise InputError(
            f"signals and correctness differ in length: {[len(given), len(without), len(with_)]}"
        )
    finite = given[np.isfinite(given)]
    above = math.nextafter(finite.max(), math.inf) if len(finite) else 1.0
    # The rule goes by order alone: by place among the values seen, from 1 on, so that a threshold comes out
    # as the very number that was measured, to which others are equal or not. Place 0 is below all of them.
    seen, places = np.unique(np.where(np.isfinite(given), given, above), return_inverse=True)
    levels = np.append(0.0 if seen[0] > 0 else seen[0] - 1.0, seen)
    sample = np.stack([places + 1.0, without, with_], axis=1)
    place = _within_loss(sample, max_loss)
    rng = np.random.default_rng(seed)
    drawn = (rng.integers(len(sample), size=len(sample)) for _ in range(resamples))
    found = [_within_loss(sample[rows], max_loss) for rows in drawn] or [place]
    lower, upper = np.quantile(found, [0.025, 0.975], method="closest_observation")
    acts = sample[:, 0] > place
    return BootstrapThreshold(
        threshold=float(levels[int(place)]),
        lower=float(levels[int(lower)]),
        upper=float(levels[int(upper)]),
        rate=float(acts.mean()),
        accuracy=float(np.where(acts, with_, without).mean()),
        reference=float(with_.mean()),
        n=len(given),
    )


def _within_loss(rows: NDArray[np.float64], max_loss: float) -> float:
    """Largest observed threshold up to which no threshold loses more than ``max_loss``; 0 if none."""
    signals, without, with_ = rows[np.argsort(rows[:, 0], kind="stable")].T
    loss = np.cumsum(with_ - without) / len(signals)
    last_of_value = np.append(signals[1:] != signals[:-1], True)
    too_much = np.flatnonzero(last_of_value & (loss > max_loss + 1e-12))
    end = too_much[0] if len(too_much) else len(signals)
    usable = np.flatnonzero(last_of_value[:end])
    return float(signals[usable[-1]]) if len(usable) else 0.0


def _sample(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or np.isnan(array).any() or np.isneginf(array).any():
        raise InputError(f"a sample must be numbers, one a question, got shape {array.shape}")
    return array
