"""Resamples that do not grow with the questions, against the exact ones, within Monte Carlo error."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from surerag.evaluation.comparison.significance import mean_with_interval, permutation_p
from surerag.evaluation.resampling import DIRECT, GROUPS, grouped, resampled_means, signed_sums

RESAMPLES = 2_000


def deltas(n: int, kind: str) -> NDArray[np.float64]:
    """ΔSePer as it comes: often nothing, sometimes all, else in between; or long-tailed; or of few values."""
    rng = np.random.default_rng(7)
    if kind == "few":
        return rng.choice([-1.0, -0.25, 0.0, 0.5, 1.0], size=n, p=[0.05, 0.2, 0.4, 0.2, 0.15])
    if kind == "tailed":
        return rng.lognormal(-3, 1.5, size=n)
    return np.where(rng.random(n) < 0.5, 0.0, np.clip(rng.normal(0.1, 0.5, size=n), -1, 1))


def exact_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    rng = np.random.default_rng(11)
    return np.array([values[rng.integers(len(values), size=len(values))].mean() for _ in range(RESAMPLES)])


def exact_sums(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    rng = np.random.default_rng(11)
    return np.array([(1 - 2 * rng.integers(2, size=len(sizes))) @ sizes for _ in range(RESAMPLES)])


@pytest.mark.parametrize("kind", ["mixed", "tailed", "few"])
@pytest.mark.parametrize("n", [DIRECT + 1, 4_000])
def test_means_and_signed_sums_have_the_law_of_the_exact_ones(n: int, kind: str) -> None:
    values = deltas(n, kind)
    # Two samples of one law differ more than this once in a thousand times; seeds are fixed.
    assert stats.ks_2samp(resampled_means(values, RESAMPLES, 3), exact_means(values)).pvalue > 0.001
    sizes = np.abs(values)
    assert stats.ks_2samp(signed_sums(sizes, RESAMPLES, 3), exact_sums(sizes)).pvalue > 0.001
    spread = np.std(resampled_means(values, 20_000, 5)) / (np.std(values) / np.sqrt(n))
    assert spread == pytest.approx(1, abs=0.02)  # Monte Carlo error of a deviation at 20,000: 0.5 %
    signed = np.std(signed_sums(sizes, 20_000, 5)) / np.sqrt((sizes**2).sum())
    assert signed == pytest.approx(1, abs=0.02)


def test_a_law_that_is_another_would_be_found_out() -> None:
    values = deltas(6_000, "tailed")
    means, counts, _ = grouped(values, 16)
    rng = np.random.default_rng(3)
    without_spread = rng.multinomial(len(values), counts / len(values), size=RESAMPLES) @ means / len(values)
    assert stats.ks_2samp(without_spread, exact_means(values)).pvalue < 0.001


@pytest.mark.parametrize("kind", ["mixed", "tailed", "few"])
def test_intervals_and_p_values_are_the_exact_ones_within_monte_carlo_error(kind: str) -> None:
    values = deltas(5_000, kind)
    found, exact = mean_with_interval(values), np.quantile(exact_means(values), [0.025, 0.975])
    error = 3 * 2 * values.std() / np.sqrt(5_000) / np.sqrt(RESAMPLES * 0.025 * 0.975) * 2.5
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx(tuple(exact), abs=error)
    centred = deltas(5_000, "mixed") - deltas(5_000, "mixed").mean() + 0.008
    sums = np.abs(exact_sums(np.abs(centred)))
    p = np.mean(sums >= abs(centred.sum()))
    assert permutation_p(centred) == pytest.approx(p, abs=4 * np.sqrt(p * (1 - p) / RESAMPLES))


def test_groups_keep_sums_and_squares() -> None:
    values = deltas(20_000, "mixed")
    means, counts, variances = grouped(values)
    assert len(means) <= GROUPS and counts.sum() == len(values)
    assert means @ counts == pytest.approx(values.sum())
    assert counts @ (variances + means**2) == pytest.approx((values**2).sum())
    few = grouped(deltas(20_000, "few"))
    assert few.means.tolist() == [-1.0, -0.25, 0.0, 0.5, 1.0] and not few.variances.any()


def test_equal_values_have_no_interval_and_opposites_no_difference() -> None:
    assert mean_with_interval(np.full(5_000, 0.1)).low == pytest.approx(0.1)
    assert permutation_p(np.tile([0.3, -0.3], 5_000)) == 1.0
    assert permutation_p(np.full(5_000, 0.2)) == pytest.approx(1 / 10_001)
