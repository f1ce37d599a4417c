"""Table III of L-RAG."""

from __future__ import annotations

import math

import pytest

from surerag.measures import break_even_latency, latency_saving

TABLE_III = {0.92: (625, (-34, -10, 30)), 0.74: (192, (2, 80, 210)), 0.54: (109, (42, 180, 410))}


@pytest.mark.parametrize(("rate", "row"), TABLE_III.items())
def test_the_papers_nine_savings_and_three_break_even_points(
    rate: float, row: tuple[int, tuple[int, ...]]
) -> None:
    break_even, savings = row
    assert round(break_even_latency(rate, 50)) == break_even
    assert tuple(round(latency_saving(rate, ms, 50)) for ms in (200, 500, 1000)) == savings


def test_at_the_break_even_point_nothing_is_saved() -> None:
    assert latency_saving(0.74, break_even_latency(0.74, 50), 50) == pytest.approx(0)


def test_a_gate_that_always_opens_never_pays() -> None:
    assert break_even_latency(1.0, 50) == math.inf
    assert latency_saving(1.0, 1e9, 50) == -50


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_a_rate_outside_its_range_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        latency_saving(rate, 1, 1)
