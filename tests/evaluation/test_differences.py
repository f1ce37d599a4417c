"""Paired differences: intervals that follow the pairs, and none of no width."""

from __future__ import annotations

import numpy as np
import pytest

from surerag.errors import InputError
from surerag.evaluation.differences import mean_difference, paired_difference


def test_paired_difference_agrees_with_the_normal_law() -> None:
    # 60 questions gained, 40 lost, 900 alike: mean 0.02, variance of one difference 0.0996.
    treatment = np.array([1] * 60 + [0] * 40 + [1] * 900)
    control = np.array([0] * 60 + [1] * 40 + [1] * 900)
    result = paired_difference(treatment, control)
    error = (0.0996 / 1000) ** 0.5
    assert result.value == pytest.approx(0.02)
    assert result.lower_bound == pytest.approx(0.02 - 1.645 * error, abs=1e-3)
    assert result.low == pytest.approx(0.02 - 1.96 * error, abs=1e-3)
    assert result.high == pytest.approx(0.02 + 1.96 * error, abs=1e-3)


def test_pairing_matters() -> None:
    # The same marginal accuracies; only the pairing tells how sure the difference is.
    right = np.arange(400) % 2 == 0
    together = paired_difference(right, right)
    apart = paired_difference(right, ~right)
    assert together.lower_bound > -0.01
    assert apart.lower_bound < -0.05


def test_paired_difference_refuses_lists_that_do_not_pair() -> None:
    with pytest.raises(InputError, match="equally long"):
        paired_difference([1, 0], [1, 0, 1])


def test_questions_that_all_went_alike_do_not_prove_equality() -> None:
    # Clopper and Pearson: of 20 questions, 1 - 0.025 ** (1 / 20) = 16.8 % may differ.
    alike = paired_difference([1, 0] * 10, [1, 0] * 10)
    assert (alike.value, round(alike.low, 3), round(alike.high, 3)) == (0.0, -0.168, 0.168)
    assert alike.lower_bound == pytest.approx(-(1 - 0.05 ** (1 / 20)))
    gained = paired_difference([1] * 20, [0] * 20)
    assert (gained.value, round(gained.low, 3), gained.high) == (1.0, 0.663, 1.0)
    lost = paired_difference([0] * 20, [1] * 20)
    assert (lost.low, lost.value, round(lost.high, 3)) == (-1.0, -1.0, -0.663)


def test_the_interval_of_what_never_differs_covers_a_rare_loss() -> None:
    rng = np.random.default_rng(0)
    n, loss = 50, 0.03
    missed = 0
    for _ in range(500):
        lost = rng.random(n) < loss
        found = paired_difference((~lost).astype(int), np.ones(n), resamples=500)
        missed += not lost.any() and found.low > -loss
    assert missed == 0  # a bootstrap's point misses each of them, one sample in five


def test_measures_without_a_bound_are_resampled_as_they_are() -> None:
    assert mean_difference(np.array([0.25, 0.25])).low == 0.25
    assert paired_difference([0.75, 1.0], [0.5, 0.75]).low == 0.25
