"""Correlations against scipy's, against the normal law, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from surerag.errors import InputError
from surerag.evaluation.statistics import correlation, correlation_gap, rank_correlation


def test_the_value_is_scipys_and_the_interval_fishers() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=800)
    y = 0.5 * x + rng.normal(size=800) * 0.75**0.5
    found = correlation(x, y)
    r = float(stats.pearsonr(x, y).statistic)
    assert found.value == pytest.approx(r, abs=1e-12)
    low, high = np.tanh(np.arctanh(r) + np.array([-1.96, 1.96]) / math.sqrt(797))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.015)


def test_items_of_one_group_are_not_independent() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=60), rng.normal(size=60)
    alone = correlation(x, y)
    copied = correlation(np.repeat(x, 10), np.repeat(y, 10))
    grouped = correlation(np.repeat(x, 10), np.repeat(y, 10), np.repeat(np.arange(60), 10))
    assert copied.high - copied.low < (alone.high - alone.low) / 2
    assert grouped.high - grouped.low == pytest.approx(alone.high - alone.low, rel=0.01)


def test_a_gap_is_that_of_the_values_and_narrower_than_both_where_they_share_noise() -> None:
    rng = np.random.default_rng(3)
    truth = rng.normal(size=300)
    noise = rng.normal(size=300)
    good, worse = truth + noise, truth + 1.1 * noise
    gap = correlation_gap(good, worse, truth)
    assert gap.value == pytest.approx(correlation(good, truth).value - correlation(worse, truth).value)
    assert gap.low > 0
    assert gap.high - gap.low < (correlation(good, truth).high - correlation(good, truth).low) / 3


def test_what_does_not_vary_has_no_correlation() -> None:
    found = correlation([0.1] * 5, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert math.isnan(found.value)
    assert math.isnan(rank_correlation([[1, 1], [1, 1]], [[1, 2], [3, 4]]).value)


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=20))
def test_correlations_lie_in_their_range(pairs: list[tuple[int, int]]) -> None:
    x, y = np.array(pairs, float).T
    found = correlation(x, y, resamples=50)
    if math.isfinite(found.value):
        assert found.value == pytest.approx(float(np.corrcoef(x, y)[0, 1]), abs=1e-9)
        assert -1 <= found.low <= found.high <= 1


def test_ranks_are_spearmans_of_the_means() -> None:
    rng = np.random.default_rng(4)
    first = rng.random((6, 50)) + np.arange(6)[:, None] / 10
    second = rng.random((6, 50)) + np.array([0, 2, 1, 3, 5, 4])[:, None] / 10
    found = rank_correlation(first, second)
    expected = stats.spearmanr(first.mean(axis=1), second.mean(axis=1)).statistic
    assert found.value == pytest.approx(float(expected))
    assert found.low <= found.value <= found.high
    assert found.low < found.high


def test_lists_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="one length"):
        correlation([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(InputError, match="one length"):
        correlation([1.0, 2.0], [1.0, 2.0], [1])
    with pytest.raises(InputError, match="at least two systems"):
        rank_correlation([[1.0]], [[1.0]])
