"""Degree-based semantic entropy of DENSE-RAG: hand-worked values, and the bounds of its Appendix D."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag.measures import degree_semantic_entropy


@pytest.mark.parametrize("size", [1, 2, 6, 11])
def test_the_extremes_exactly(size: int) -> None:
    assert degree_semantic_entropy(np.ones((size, size))) == 0.0
    assert degree_semantic_entropy(np.eye(size)) == pytest.approx(math.log(size), abs=1e-15)


def test_hand_worked() -> None:
    half = [[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1]]
    assert degree_semantic_entropy(half) == pytest.approx((2 * math.log(2) + math.log(3)) / 3)
    one_of_six_differs = np.ones((6, 6))
    one_of_six_differs[0, 1:] = one_of_six_differs[1:, 0] = 0
    assert degree_semantic_entropy(one_of_six_differs) == pytest.approx(
        (5 * math.log(6 / 5) + math.log(6)) / 6
    )


@given(st.integers(1, 12), st.integers(0, 100_000))
def test_it_lies_between_the_extremes(size: int, seed: int) -> None:
    upper = np.triu(np.random.default_rng(seed).choice([0, 0.5, 1], size=(size, size)), 1)
    value = degree_semantic_entropy(upper + upper.T + np.eye(size))
    assert 0 <= value <= math.log(size) + 1e-12


@given(st.integers(2, 10), st.integers(0, 100_000))
def test_a_further_link_never_raises_it(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.choice([0, 0.5, 1], size=(size, size)), 1)
    links = upper + upper.T + np.eye(size)
    more = links.copy()
    i, j = rng.choice(size, 2, replace=False)
    more[i, j] = more[j, i] = 1
    assert degree_semantic_entropy(more) <= degree_semantic_entropy(links) + 1e-12


@pytest.mark.parametrize(
    "links", [[], [[1, 0]], [[1, 1], [0, 1]], [[0.5, 0], [0, 0.5]], [[1, 2], [2, 1]], [[1, -1], [-1, 1]]]
)
def test_what_is_no_matrix_of_links_is_refused(links: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="links"):
        degree_semantic_entropy(links)
