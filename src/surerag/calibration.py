"""Thresholds from a sample: the one that meets a budget of actions, or a bound on the loss of accuracy.

L-RAG, section VI-F, leaves this to future work. A threshold belongs to the reader and the signal that
it was calibrated for, so it is kept with their names.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surerag.errors import ConfigurationError, InputError

Rule = Literal["budget", "loss"]


class CalibrationWarning(UserWarning):
    """A threshold is used with another reader or signal than it was calibrated for."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """A threshold, how it was found, and what it belongs to.

    Attributes:
        threshold: Act (retrieve, rewrite) iff the signal exceeds this.
        lower: Lower end of the 95 % bootstrap interval of ``threshold`` over the sample's questions.
        upper: Upper end.
        rule: ``"budget"`` or ``"loss"``.
        limit: The budget (share of questions that act) or the loss of accuracy that was allowed.
        rate: Share of the sample that acts at ``threshold``.
        accuracy: Accuracy on the sample at ``threshold``; None where only a budget was given.
        reference: Accuracy on the sample when always acting; None likewise.
        n: Questions in the sample.
        model: Identity of the reader.
        signal: What was thresholded, such as ``"mean entropy of 8 tokens"``.
        next_rate: Share of the sample that would act at the next smaller threshold. A signal of few distinct
            values (the disagreement of five samples has seven) has few rates to choose from: a budget between
            ``rate`` and this one cannot be met exactly, and the smaller is taken.
    """

    threshold: float
    lower: float
    upper: float
    rule: Rule
    limit: float
    rate: float
    accuracy: float | None
    reference: float | None
    n: int
    model: str = ""
    signal: str = ""
    next_rate: float | None = None

    def save(self, path: str | Path) -> None:
        """Write this as JSON."""
        Path(path).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: If the file holds something else.
        """
        try:
            return cls(**json.loads(Path(path).read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{path} holds no calibration: {error}", hint="load what Calibration.save() wrote"
            ) from error

    def check(self, model: str, signal: str) -> None:
        """Warn if this threshold belongs to another reader or signal."""
        for what, mine, yours in (("reader", self.model, model), ("signal", self.signal, signal)):
            if mine and mine != yours:
                found = f"the threshold was calibrated for {what} {mine!r} and is used with {yours!r}"
                warnings.warn(f"{found}; calibrate again", CalibrationWarning, stacklevel=4)


def calibrate_threshold(
    signals: ArrayLike,
    *,
    budget: float | None = None,
    max_loss: float | None = None,
    correct_without: ArrayLike | None = None,
    correct_with: ArrayLike | None = None,
    model: str = "",
    signal: str = "",
    resamples: int = 1000,
    seed: int = 0,
) -> Calibration:
    """Find the threshold that meets a budget, or the largest that bounds the loss of accuracy.

    With ``budget``: the smallest threshold at which no more than this share of the sample acts. With
    ``max_loss``: the largest threshold such that there, and at every smaller one, accuracy on the sample is
    lower by no more than this than that of always acting. Where none is, all act: it is 0 where all signals
    are above zero, and else lies below all of them.

    Args:
        signals: Uncertainty of each question's first answer, shape [n]; infinite for an empty one, which
            is above every threshold.
        budget: Largest share of questions that may act, in [0, 1].
        max_loss: Largest loss of accuracy, in [0, 1]; needs both arrays of correctness.
        correct_without: Whether the first answer was right, shape [n].
        correct_with: Whether the answer after acting was right, shape [n].
        model: Identity of the reader.
        signal: What the signals are.
        resamples: Bootstrap resamples for the interval.
        seed: Of the bootstrap.

    Raises:
        ConfigurationError: Unless exactly one of ``budget`` and ``max_loss`` is given, and in range.
        InputError: If the sample is empty, holds what is no number, or the arrays differ in length.

    Example:
        >>> entropies = [0.1, 0.2, 0.9, 1.5]
        >>> calibrate_threshold(entropies, budget=0.5).threshold
        0.2
        >>> first, second = [1, 1, 1, 0], [1, 1, 1, 1]
        >>> calibrate_threshold(entropies, max_loss=0.0, correct_without=first, correct_with=second).threshold
        0.9
        >>> calibrate_threshold([-9.0, -8.0, math.inf, -7.0], budget=0.5).threshold
        -8.0
        >>> few_values = calibrate_threshold([0.0, 0.0, 0.5, 0.5, 0.5, 0.67], budget=0.5)
        >>> round(few_values.threshold, 2), round(few_values.rate, 2), round(few_values.next_rate, 2)
        (0.5, 0.17, 0.67)
    """
    limit = _limit(budget, max_loss)
    given = _sample("signals", signals)
    finite = given[np.isfinite(given)]
    above = math.nextafter(finite.max(), math.inf) if len(finite) else 1.0
    # The rules go by order alone: by place among the values seen, from 1 on, so that a threshold comes out as
    # the very number that was measured, to which others are equal or not. Place 0 is below all of them.
    seen, places = np.unique(np.where(np.isfinite(given), given, above), return_inverse=True)
    levels = np.append(0.0 if seen[0] > 0 else seen[0] - 1.0, seen)
    values = places + 1.0
    gains: list[NDArray[np.float64]] = []
    find: Callable[[NDArray[np.float64], float], float] = _within_budget
    if max_loss is not None:
        if correct_without is None or correct_with is None:
            raise ConfigurationError("max_loss needs correct_without and correct_with")
        gains = [_sample("correct_without", correct_without), _sample("correct_with", correct_with)]
        if any(len(gain) != len(values) for gain in gains):
            raise InputError(f"signals and correctness differ in length: {[len(values), *map(len, gains)]}")
        find = _within_loss
    sample = np.stack([values, *gains], axis=1)
    place = find(sample, limit)
    rng = np.random.default_rng(seed)
    found = [find(sample[rng.integers(len(sample), size=len(sample))], limit) for _ in range(resamples)]
    found = found or [place]
    lower, upper = np.quantile(found, [0.025, 0.975], method="closest_observation")
    acts = values > place
    return Calibration(
        threshold=float(levels[int(place)]),
        lower=float(levels[int(lower)]),
        upper=float(levels[int(upper)]),
        rule="budget" if budget is not None else "loss",
        limit=limit,
        rate=float(acts.mean()),
        next_rate=float((values >= place).mean()),
        accuracy=float(np.where(acts, gains[1], gains[0]).mean()) if gains else None,
        reference=float(gains[1].mean()) if gains else None,
        n=len(values),
        model=model,
        signal=signal,
    )


def check_sample(
    questions: Sequence[str],
    golds: Sequence[Sequence[str]] | None,
    *,
    budget: float | None,
    max_loss: float | None,
) -> None:
    """Find out whether a sample can be calibrated on, before its questions are paid for.

    Raises:
        ConfigurationError: Unless exactly one of ``budget`` and ``max_loss`` is given, and in range; if
            ``max_loss`` comes without gold answers.
        InputError: If there are no questions, or gold answers of another number.
    """
    _limit(budget, max_loss)
    if not questions:
        raise InputError("the sample holds no questions", hint="the papers take 100 or more")
    if max_loss is None:
        return
    if golds is None:
        raise ConfigurationError("max_loss needs gold answers", hint="pass golds=…, one list a question")
    if len(golds) != len(questions):
        raise InputError(
            f"expected gold answers for each of {len(questions)} questions, got {len(golds)}",
            hint="pass golds=…, one list a question, in the order of the questions",
        )


def _limit(budget: float | None, max_loss: float | None) -> float:
    """Return the one limit that is given."""
    if (budget is None) == (max_loss is None):
        raise ConfigurationError("give exactly one of budget and max_loss")
    limit = float(budget if budget is not None else max_loss or 0.0)
    if not 0 <= limit <= 1:
        raise ConfigurationError(f"a budget or loss lies in [0, 1], got {limit!r}")
    return limit


def _within_budget(rows: NDArray[np.float64], budget: float) -> float:
    """Smallest observed threshold with at most ``budget`` of the signals above it; 0 if all may act."""
    signals = rows[:, 0]
    allowed = math.floor(budget * len(signals) + 1e-9)
    if allowed >= len(signals):
        return 0.0
    return float(np.sort(signals)[len(signals) - 1 - allowed])


def _within_loss(rows: NDArray[np.float64], max_loss: float) -> float:
    """Largest observed threshold up to which no threshold loses more than ``max_loss``; 0 if none."""
    signals, without, with_ = rows[np.argsort(rows[:, 0], kind="stable")].T
    loss = np.cumsum(with_ - without) / len(signals)
    last_of_value = np.append(signals[1:] != signals[:-1], True)
    too_much = np.flatnonzero(last_of_value & (loss > max_loss + 1e-12))
    end = too_much[0] if len(too_much) else len(signals)
    usable = np.flatnonzero(last_of_value[:end])
    return float(signals[usable[-1]]) if len(usable) else 0.0


def _sample(name: str, values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or np.isnan(array).any() or np.isneginf(array).any():
        raise InputError(f"{name} must be numbers, one a question, got shape {array.shape}")
    return array
