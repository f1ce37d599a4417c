"""Entropy bounds hold for every distribution, and close up as more of it is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag.measures import entropy_bounds, token_entropy


@st.composite
def distributions(draw: st.DrawFn) -> np.ndarray:
    """Probabilities of 2 to 40 tokens, likeliest first, from flat to peaked."""
    size = draw(st.integers(2, 40))
    sharpness = draw(st.floats(0.0, 20.0))
    seed = draw(st.integers(0, 10_000))
    logits = np.random.default_rng(seed).normal(size=size) * sharpness
    p = np.exp(logits - logits.max())
    return np.sort(p / p.sum())[::-1]


@given(distributions(), st.data())
def test_the_interval_holds_the_exact_entropy(p: np.ndarray, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(p)))
    with np.errstate(divide="ignore"):
        logp = np.log(p)
    exact = float(token_entropy(logp))
    lower, upper = entropy_bounds([float(max(v, -700)) for v in logp[:k]], len(p))
    assert lower - 1e-9 <= exact <= upper + 1e-9
    assert upper <= math.log(len(p)) + 1e-9


@given(distributions(), st.data())
def test_more_listed_tokens_never_widen_the_interval(p: np.ndarray, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(p) - 1))
    logs = [float(max(v, -700)) for v in np.log(np.maximum(p, 1e-300))]
    narrow, wide = entropy_bounds(logs[: k + 1], len(p)), entropy_bounds(logs[:k], len(p))
    assert wide.lower - 1e-9 <= narrow.lower
    assert narrow.upper <= wide.upper + 1e-9


def test_a_sampled_token_outside_the_list_counts_as_known() -> None:
    p = [0.6, 0.2, 0.1, 0.1]
    exact = float(token_entropy(np.log(p)))
    lower, upper = entropy_bounds([math.log(0.6), math.log(0.2)], 4, sampled_logprob=math.log(0.1))
    assert lower == pytest.approx(exact)
    assert upper == pytest.approx(exact)


@pytest.mark.parametrize(
    ("top", "size", "message"),
    [
        ([], 10, "at least one"),
        ([math.log(0.9), math.log(0.2)], 10, "more than one"),
        ([-1.0] * 3, 2, "at most 2 tokens"),
    ],
)
def test_impossible_input_is_refused(top: list[float], size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        entropy_bounds(top, size)


def test_logits_are_refused() -> None:
    with pytest.raises(ValueError, match="not logits"):
        token_entropy([1.0, 2.0, 3.0])


def test_impossible_tokens_add_nothing() -> None:
    assert token_entropy([0.0, -math.inf]) == 0.0
    assert token_entropy(np.log([[0.5, 0.5], [0.25, 0.75]])) == pytest.approx([math.log(2), 0.5623351446])
