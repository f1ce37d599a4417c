"""Statistics against values worked out by hand or printed in the literature."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag.errors import InputError
from surerag.evaluation.statistics import (
    Direction,
    auroc,
    cohens_d,
    compare,
    is_monotone,
    share,
    wilson_interval,
)


def test_wilson_interval_of_nothing_found_is_not_a_point() -> None:
    # With no successes the upper end is z² / (n + z²) = 3.8415 / 103.8415.
    interval = wilson_interval(0, 100)
    assert interval.low == pytest.approx(0, abs=1e-12)
    assert interval.high == pytest.approx(0.036994, abs=1e-5)


def test_wilson_interval_of_newcombes_example() -> None:
    # Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662.
    interval = wilson_interval(81, 263)
    assert (round(interval.low, 4), round(interval.high, 4)) == (0.2553, 0.3662)


@pytest.mark.parametrize(("count", "n"), [(0, 0), (3, 2), (-1, 5)])
def test_impossible_proportions_are_refused(count: int, n: int) -> None:
    with pytest.raises(InputError, match="proportion"):
        wilson_interval(count, n)


def test_share_counts_true_values() -> None:
    counted = share(np.array([True, False, True]))
    assert (counted.count, counted.n) == (2, 3)


def test_cohens_d_uses_the_pooled_deviation() -> None:
    # Variances 4 (n=3) and 1 (n=3) pool to 2.5; means 4 and 2.
    assert cohens_d([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == pytest.approx(2 / 2.5**0.5)


def test_cohens_d_of_constants_is_undefined() -> None:
    assert np.isnan(cohens_d([1.0, 1.0], [0.0, 0.0]))


def test_auroc_counts_ties_half() -> None:
    assert auroc([1.0, 1.0], [1.0, 1.0]).value == 0.5


def test_auroc_interval_stays_open_when_samples_separate() -> None:
    area = auroc(np.arange(10, 20), np.arange(10))
    assert area.value == 1.0
    assert 0.7 < area.low < 1.0
    assert area.high == 1.0


def test_auroc_interval_narrows_with_more_values() -> None:
    rng = np.random.default_rng(1)
    few = auroc(rng.normal(1, 1, 30), rng.normal(0, 1, 30))
    many = auroc(rng.normal(1, 1, 3000), rng.normal(0, 1, 3000))
    assert many.high - many.low < (few.high - few.low) / 5
    # The area between unit normals one apart is Φ(1/√2) = 0.7602.
    assert many.low < 0.7602 < many.high


@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=20), st.lists(st.integers(0, 5), min_size=2, max_size=20)
)
def test_auroc_interval_holds_its_value_and_mirrors(high: list[int], low: list[int]) -> None:
    area, mirrored = auroc(high, low), auroc(low, high)
    assert 0 <= area.low <= area.value <= area.high <= 1
    assert mirrored.value == pytest.approx(1 - area.value)
    assert mirrored.low == pytest.approx(1 - area.high, abs=1e-6)


def test_compare_finds_a_difference_and_none() -> None:
    rng = np.random.default_rng(2)
    shifted = compare(rng.normal(0.5, 1, 500), rng.normal(0, 1, 500))
    assert shifted.p_welch < 1e-6
    assert shifted.p_rank < 1e-6
    assert shifted.gap.low < 0.5 < shifted.gap.high
    same = compare(rng.normal(0, 1, 500), rng.normal(0, 1, 500))
    assert same.gap.low < 0 < same.gap.high


def test_compare_needs_two_values_on_each_side() -> None:
    with pytest.raises(InputError, match="sample of 1"):
        compare([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("values", "direction", "expected"),
    [
        ([1, 1, 0.5], "decreasing", True),
        ([1, 0.5, 0.6], "decreasing", False),
        ([0, 0.5, 0.5], "increasing", True),
    ],
)
def test_is_monotone(values: list[float], direction: Direction, expected: bool) -> None:
    assert is_monotone(values, direction) is expected
