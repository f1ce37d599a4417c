"""Gates where all retrieve equally often."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag_studies.lazy_rag.gates import Passed, gate_rows, retrieving

signals = st.lists(st.integers(0, 4).map(float) | st.just(float("inf")), min_size=1, max_size=30)


@given(signals, st.floats(0, 1))
def test_the_largest_signals_retrieve_and_ties_share_what_is_left(values: list[float], rate: float) -> None:
    opens = retrieving(values, rate)
    assert opens.sum() == pytest.approx(rate * len(values))
    assert ((opens >= -1e-12) & (opens <= 1 + 1e-12)).all()
    for value, chance in zip(values, opens, strict=True):
        assert all(
            other_chance == pytest.approx(1)
            for other, other_chance in zip(values, opens, strict=True)
            if other > value and chance > 1e-9
        )


def passed(name: str, found: list[float], correct: list[bool], calls: int = 1) -> Passed:
    n = len(found)
    return Passed(name, name, 0, np.array(found), np.array(correct), np.full(n, calls), np.full(n, 2 * calls))


def test_a_gate_that_knows_gains_over_chance_and_one_that_does_not_gains_nothing() -> None:
    right = [True, True, False, False] * 25
    knows = passed("knows", [0.0, 0.1, 2.0, 3.0] * 25, right)
    ignorant = passed("ignorant", [1.0] * 100, right, calls=5)
    first, second = gate_rows([knows, ignorant], np.ones(100, dtype=bool))
    half = first.rates[1]
    assert (half.rate, half.accuracy) == (0.5, 1.0)
    assert half.against_random.value == pytest.approx(0.25)
    assert half.against_entropy.value == 0.0
    assert (first.separation.value if first.separation else None) == 1.0
    assert second.rates[1].accuracy == pytest.approx(0.75)
    assert second.rates[1].against_entropy.value == pytest.approx(-0.25)
    assert second.rates[1].against_random.value == pytest.approx(0.0)
    assert (second.separation.value if second.separation else None) == 0.5
    assert (second.levels, second.calls, second.tokens) == (1, 5.0, 10.0)


def test_a_reader_that_is_always_right_leaves_nothing_to_separate() -> None:
    [row] = gate_rows([passed("any", [0.0, float("inf")], [True, True])], np.array([True, True]))
    assert row.separation is None
