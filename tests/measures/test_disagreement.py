"""Disagreement of samples, sameness by words, and the margin of a step."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag.measures import discrete_semantic_entropy, margin_bounds, same_answer, semantic_entropy


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30))
def test_discrete_semantic_entropy_is_that_of_equally_likely_answers(clusters: list[int]) -> None:
    entropy = discrete_semantic_entropy(clusters)
    equal = np.full(len(clusters), 1 / len(clusters))
    assert entropy == pytest.approx(semantic_entropy(equal, clusters), abs=1e-12)
    assert (entropy == 0) == (len(set(clusters)) == 1)


@given(st.integers(1, 50))
def test_answers_that_all_differ_are_as_uncertain_as_can_be(n: int) -> None:
    assert discrete_semantic_entropy(range(n)) == pytest.approx(math.log(n))
    assert discrete_semantic_entropy([0] * n) == 0.0


@given(st.lists(st.floats(0.001, 1), min_size=2, max_size=6))
def test_the_want_of_margin_of_any_distribution_lies_within_its_bounds(masses: list[float]) -> None:
    p = np.sort(np.array(masses) / sum(masses))[::-1]
    low, high = margin_bounds(math.log(p[0]))
    assert low - 1e-9 <= 1 - (p[0] - p[1]) <= high + 1e-9


def test_what_is_no_answer_and_no_log_probability_is_refused() -> None:
    with pytest.raises(ValueError, match="non-empty list"):
        discrete_semantic_entropy([])
    for value in (0.5, math.nan):
        with pytest.raises(ValueError, match="log probability"):
            margin_bounds(value)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("Velm", "the town of Velm.", True),
        ("New Velm", "Velm, New", False),
        ("Velm", "Velmouth", False),
        ("", " . ", True),
        ("", "Velm", False),
        ("1984", "in 1984", True),
    ],
)
def test_answers_are_the_same_by_words_in_a_row(first: str, second: str, same: bool) -> None:
    assert same_answer(first, second) is same
    assert same_answer(second, first) is same
