"""Calibration of θ: signals of any sign, and answers without a word, made fit for the common rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from surerag.calibration import Calibration, calibrate_threshold


def calibrate_theta(
    uncertainties: Sequence[float],
    *,
    budget: float | None = None,
    max_loss: float | None = None,
    correct_without: Sequence[bool] | None = None,
    correct_with: Sequence[bool] | None = None,
    model: str = "",
    signal: str = "",
    seed: int = 0,
) -> Calibration:
    """Find θ by the rules of :func:`surerag.calibration.calibrate_threshold`.

    Args:
        uncertainties: Of each question's first answer; may be negative, as energies are, or infinite, as
            those of empty answers are.
        budget: Largest share of questions that may be rewritten.
        max_loss: Largest loss of accuracy against rewriting always; needs both lists of correctness.
        correct_without: Whether each first answer was right.
        correct_with: Whether the answer after rewriting was right.
        model: Identity of the reader.
        signal: What was thresholded.
        seed: Of the bootstrap.

    Raises:
        ConfigurationError: Unless exactly one rule is given, and in range.
        InputError: If the sample is empty, or lists differ in length.

    Example:
        >>> calibrate_theta([-9.0, -8.0, math.inf, -7.0], budget=0.5).tau
        -8.0
    """
    lift = _lift(uncertainties)
    # An empty first answer is above any threshold: it stands above all others.
    finite = [value + lift for value in uncertainties if math.isfinite(value)]
    above = math.nextafter(max(finite, default=0.0), math.inf)
    found = calibrate_threshold(
        [value + lift if math.isfinite(value) else above for value in uncertainties],
        budget=budget,
        max_loss=max_loss,
        correct_without=correct_without,
        correct_with=correct_with,
        model=model,
        signal=signal,
        seed=seed,
    )
    return replace(found, tau=found.tau - lift, lower=found.lower - lift, upper=found.upper - lift)


def _lift(uncertainties: Sequence[float]) -> float:
    """Return what to add so that all are positive, as the rules take them."""
    lowest = min((value for value in uncertainties if math.isfinite(value)), default=1.0)
    return 0.0 if lowest > 0 else 1.0 - lowest
