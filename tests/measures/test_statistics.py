"""Intervals and tests of samples; no interval has a width of zero."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag.measures.statistics import (
    constant_interval,
    difference_interval,
    exact_paired_test,
    holm,
    mean_interval,
    paired_difference,
    wilson,
)


def two_in_ten(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.choice([1.0, 0.0, -1.0], p=[0.05, 0.85, 0.1], size=n)


def mostly_equal(rng: np.random.Generator, n: int) -> np.ndarray:
    return (rng.random(n) < 0.15) * rng.uniform(-0.5, 1, n)


@pytest.mark.parametrize(
    ("draw", "mean", "bounds"),
    [
        (two_in_ten, -0.05, (-1.0, 1.0)),
        (mostly_equal, 0.0375, (-1.0, 1.0)),
        (lambda rng, n: rng.normal(0.1, 0.2, n), 0.1, None),
        (lambda rng, n: rng.exponential(1.0, n), 1.0, None),
    ],
    ids=["right or wrong", "graded, mostly equal", "graded", "costs"],
)
@pytest.mark.parametrize("n", [20, 60])
def test_intervals_of_differences_cover(
    draw: Callable[[np.random.Generator, int], np.ndarray], mean: float, bounds: tuple[float, float], n: int
) -> None:
    rng, covered = np.random.default_rng(0), 0
    for _ in range(400):
        interval = paired_difference(draw(rng, n), np.zeros(n), bounds=bounds).interval
        assert interval is not None
        covered += interval.lower <= mean <= interval.upper
    assert covered / 400 >= 0.95 - 2.33 * math.sqrt(0.05 * 0.95 / 400) - (0.025 if bounds is None else 0)


@pytest.mark.parametrize("size", [5, 10])
@pytest.mark.parametrize("right", [0.5, 0.9, 0.99])
def test_intervals_of_questions_about_few_documents_cover(right: float, size: int) -> None:
    """200 questions, correlated by .2 in a document; taken as independent, 73 to 89 in 100 intervals do."""
    rng, covered = np.random.default_rng(0), np.zeros(2)
    groups = np.arange(200) // size
    for _ in range(300):
        common = rng.random((2, 200))[:, groups * size] < right
        first, second = np.where(rng.random((2, 200)) < math.sqrt(0.2), common, rng.random((2, 200)) < right)
        share, difference = mean_interval(first, groups), paired_difference(first, second, groups)
        assert share.interval is not None and difference.interval is not None
        covered += [
            share.interval.lower <= right <= share.interval.upper,
            difference.interval.lower <= 0 <= difference.interval.upper,
        ]
    assert covered.min() / 300 >= 0.95 - 2.33 * math.sqrt(0.05 * 0.95 / 300)


def test_groups_change_nothing_where_none_has_two_values_or_one_has_all() -> None:
    values = [1, 1, 0, 1, 0, 1, 1, 1]
    alone = mean_interval(values)
    for groups in (None, [""] * 8, list(range(8)), ["atlas"] * 8):
        assert mean_interval(values, groups) == alone
    all_right = mean_interval([1] * 40, [number // 4 for number in range(40)]).interval
    assert all_right is not None and all_right.lower < mean_interval([1] * 10).interval.lower  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="expected a group for each of 8 values, got 1"):
        mean_interval(values, ["a"])


@given(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=30))
def test_no_interval_of_a_bounded_sample_has_no_width(values: list[float]) -> None:
    value, interval, n = mean_interval(values)
    assert n == len(values)
    assert interval is not None and interval.upper > interval.lower
    assert interval.lower - 1e-9 <= value <= interval.upper + 1e-9


@pytest.mark.parametrize(("value", "expected"), [(1.0, (0.6915, 1.0)), (0.0, (0.0, 0.3085))])
def test_equal_values_have_the_exact_interval_of_their_number(
    value: float, expected: tuple[float, float]
) -> None:
    assert mean_interval([value] * 10).interval == pytest.approx(expected, abs=1e-4)
    assert mean_interval([9.0] * 10).interval is None
    assert constant_interval(0.5, 5, None) is None


def test_few_values_that_are_nearly_equal_are_no_certainty_and_many_are() -> None:
    few = mean_interval([0.999, 0.9995, 0.9999, 1.0, 0.9992]).interval
    assert few is not None and few.lower == pytest.approx(0.478, abs=1e-3)
    many = mean_interval(np.random.default_rng(0).uniform(0.999, 1.0, 5000)).interval
    assert many is not None and 0.998 < many.lower < 0.9996


def test_paired_differences() -> None:
    value, interval, _ = paired_difference([1, 1, 1, 0] * 20, [0, 1, 1, 0] * 20)
    assert value == 0.25
    assert interval is not None and 0.1 < interval.lower < 0.25 < interval.upper < 0.4
    # Bonett & Price (2012) by hand: (4 - 3) / 42 ± 1.96 √((7 / 42 - (1 / 42)²) / 42).
    few = paired_difference([1] * 6 + [0] * 34, [0] * 3 + [1] * 5 + [0] * 32).interval
    assert few == pytest.approx((-0.0994, 0.1470), abs=1e-4)
    same = paired_difference([1] * 20, [1] * 20)
    assert same.interval == pytest.approx((-0.168, 0.168), abs=1e-3)
    with pytest.raises(ValueError, match="equal lengths"):
        paired_difference([1], [1, 2])


def test_intervals_of_shares_against_published_values() -> None:
    # Newcombe (1998), tables I and II: 81 of 263, 15 of 148, 0 of 20; 56/70 against 48/80 by method 10.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert constant_interval(0.0, 20) == pytest.approx((0, 0.1684), abs=1e-4)
    found = difference_interval(56 / 70, wilson(56, 70), 48 / 80, wilson(48, 80))
    assert found == pytest.approx((0.0524, 0.3339), abs=1e-4)
    with pytest.raises(ValueError, match="at most n"):
        wilson(3, 2)


def test_paired_tests_and_holm() -> None:
    assert exact_paired_test(5, 0) == pytest.approx(2 / 32)
    assert exact_paired_test(3, 3) == 1.0
    assert exact_paired_test(480, 520) == pytest.approx(0.21745, abs=1e-5)
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])


def test_a_score_that_is_missing_is_named_with_what_to_do() -> None:
    message = (
        r"expected finite values, but 1 of 3 .* at index 1: leave these cases out; of a pair, leave out both"
    )
    for first, second in (([1, None, 0], [1, 1, 0]), ([1, 1, 0], [1, None, 0])):
        with pytest.raises(ValueError, match=message):
            paired_difference(first, second)


def test_what_is_no_sample_is_refused() -> None:
    for values in ([], [math.nan], [[1.0]]):
        with pytest.raises(ValueError, match=r"expected (finite values|a list of at least one number)"):
            mean_interval(values)
