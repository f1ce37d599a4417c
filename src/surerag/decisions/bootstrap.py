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
    n = len(given)
    drawn = np.random.default_rng(seed).integers(n, size=(resamples, n))
    times = np.apply_along_axis(np.bincount, 1, drawn, minlength=n) if resamples else np.empty((0, n), int)
    place, *found = _within_loss(places, with_ - without, np.vstack([np.ones(n, int), times]), max_loss)
    lower, upper = np.quantile(found or [place], [0.025, 0.975], method="closest_observation")
    acts = places + 1 > place
    return BootstrapThreshold(
        threshold=float(levels[place]),
        lower=float(levels[int(lower)]),
        upper=float(levels[int(upper)]),
        rate=float(acts.mean()),
        accuracy=float(np.where(acts, with_, without).mean()),
        reference=float(with_.mean()),
        n=n,
    )


def _within_loss(
    places: NDArray[np.int_], benefit: NDArray[np.float64], times: NDArray[np.int_], max_loss: float
) -> list[int]:
    """Return, for each sample, the largest place up to which none loses more than ``max_loss``; 0 if none.

    Args:
        places: Of each question's signal among all values, from 0 on, shape [n].
        benefit: What acting changes on each question, shape [n].
        times: How often each sample holds each question, shape [samples, n].
        max_loss: On the sample.
    """
    order = np.argsort(places, kind="stable")
    starts = np.flatnonzero(np.diff(places[order], prepend=-1))
    held = np.add.reduceat(times[:, order], starts, axis=1) > 0
    loss = np.cumsum(np.add.reduceat((times * benefit)[:, order], starts, axis=1), axis=1) / len(places)
    broken = np.logical_or.accumulate(held & (loss > max_loss + 1e-12), axis=1)
    usable = held & ~broken
    last = usable.shape[1] - np.argmax(usable[:, ::-1], axis=1)
    return [int(place) for place in np.where(usable.any(axis=1), last, 0)]


def _sample(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or np.isnan(array).any() or np.isneginf(array).any():
        raise InputError(f"a sample must be numbers, one a question, got shape {array.shape}")
    return array
