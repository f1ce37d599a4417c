"""Figures 2 to 4 as statistics: hand-worked values, and what holds for any scores."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag.errors import InputError
from surerag.evaluation.gaps import EDGES, by_interval, by_threshold, difference, gap_at, trend
from surerag.evaluation.statistics import share

SCORES = st.lists(st.tuples(st.floats(0, math.log(6)), st.booleans()), min_size=2, max_size=40)


def test_intervals_are_open_below_and_closed_above_and_hold_zero() -> None:
    rows = by_interval([0.0, 0.2, 0.2001, 0.4, 1.7], [True, False, True, True, False])
    assert [(row.low, row.high, row.accuracy.count, row.accuracy.n) for row in rows] == [
        (0.0, 0.2, 1, 2),
        (0.2, 0.4, 2, 2),
        (1.6, math.inf, 0, 1),
    ]


def test_a_gap_compares_up_to_a_threshold_with_above_it() -> None:
    row = gap_at([0.0, 0.2, 0.5, 0.5], [True, True, False, True], 0.2)
    assert row is not None
    assert (row.certain.value, row.uncertain.value, row.gap.value) == (1.0, 0.5, 0.5)
    assert row.gap.low < row.gap.value < row.gap.high <= 1
    assert gap_at([0.0, 0.1], [True, True], 0.2) is None
    assert gap_at([0.5], [True], 0.2) is None


@given(SCORES)
def test_every_value_that_parts_the_questions_is_a_threshold(found: list[tuple[float, bool]]) -> None:
    scores, right = zip(*found, strict=True)
    rows = by_threshold(scores, right)
    assert [row.threshold for row in rows] == sorted({round(score, 9) for score in scores})[:-1]
    assert all(row.certain.n + row.uncertain.n == len(scores) for row in rows)
    assert all(row.certain.count + row.uncertain.count == sum(right) for row in rows)
    assert sum(row.accuracy.n for row in by_interval(scores, right)) == len(scores)
    assert all(row.low in EDGES for row in by_interval(scores, right))


@given(st.integers(0, 20), st.integers(1, 20), st.integers(0, 20), st.integers(1, 20))
def test_the_interval_of_a_difference_holds_it_and_turns_with_it(a: int, b: int, c: int, d: int) -> None:
    first, second = share([True] * a + [False] * b), share([True] * c + [False] * d)
    found, back = difference(first, second), difference(second, first)
    assert -1 <= found.low <= found.value <= found.high <= 1
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low))


def test_a_trend_falls_rises_or_is_none() -> None:
    scores = [0.1 * at for at in range(20)]
    falling = trend(scores, [at < 10 for at in range(20)])
    rising = trend(scores, [at >= 10 for at in range(20)])
    assert falling.z == -rising.z < -3
    assert falling.p < 0.001 < 0.999 < rising.p
    assert falling.correlation.high < 0 < rising.correlation.low
    with pytest.raises(InputError, match="at least two"):
        trend([1.0], [True])


def test_a_constant_has_no_trend() -> None:
    found = trend([0.0, 0.0, 0.0], [True, False, True])
    assert math.isnan(found.z)
    assert found.p == 1.0
