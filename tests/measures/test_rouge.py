"""ROUGE-L by hand, and against a plain recursion."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag.measures.rouge import rouge_l


@pytest.mark.parametrize(
    ("answer", "golds", "expected"),
    [
        ("police killed the gunman", ["police kill the gunman"], 2 / 3),  # articles do not count
        ("gunman kill police", ["police kill gunman"], 1 / 3),  # order does
        ("Velm.", ["the city of Velm"], 2 / 4),
        ("Velm", ["Orun", "velm"], 1.0),
        ("", ["Velm"], 0.0),
        ("the", ["a"], 1.0),
        ("Velm", [], 0.0),
    ],
)
def test_by_hand(answer: str, golds: list[str], expected: float) -> None:
    assert rouge_l(answer, golds) == pytest.approx(expected)


def longest(first: str, second: str) -> int:
    if not first or not second:
        return 0
    if first[-1] == second[-1]:
        return 1 + longest(first[:-1], second[:-1])
    return max(longest(first[:-1], second), longest(first, second[:-1]))


@given(st.text("xyz", max_size=7), st.text("xyz", max_size=7))
def test_the_subsequence_is_a_longest_one(first: str, second: str) -> None:
    if first and second:
        expected = 2 * longest(first, second) / (len(first) + len(second))
        assert rouge_l(" ".join(first), [" ".join(second)]) == pytest.approx(expected)
