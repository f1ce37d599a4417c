"""Table 8 of EDC²-RAG from its own token counts and prices, and Table III of L-RAG."""

from __future__ import annotations

import math

import pytest

from surerag.measures import api_cost, break_even_latency, latency_saving

PRICES = (0.15, 0.60)
TABLE_8 = {
    ("RALM", 10): (1388.45, 34.97, 2.29),
    ("Chunk Compression", 10): (2233.03, 740.70, 7.79),
    ("Long Agent", 10): (1843.42, 223.73, 4.11),
    ("Ours", 10): (2155.10, 553.29, 6.55),
    ("RALM", 100): (13542.94, 38.89, 20.55),
    ("Chunk Compression", 100): (20317.25, 6026.16, 66.63),
    ("Long Agent", 100): (14406.18, 395.58, 23.98),
    ("Ours", 100): (14926.17, 1212.89, 30.12),
}
"""Method and top-k: tokens in, tokens out, and the printed cost times 10,000."""


def test_seven_of_the_eight_printed_costs_follow_and_the_eighth_is_ours_at_100() -> None:
    differing = {
        cell: round(api_cost(read, written, *PRICES) * 1e4, 2)
        for cell, (read, written, printed) in TABLE_8.items()
        if round(api_cost(read, written, *PRICES) * 1e4, 2) != printed
    }
    assert differing == {("Ours", 100): 29.67}


def test_a_negative_count_is_no_cost() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        api_cost(-1, 0, 1, 1)


TABLE_III = {0.92: (625, (-34, -10, 30)), 0.74: (192, (2, 80, 210)), 0.54: (109, (42, 180, 410))}


@pytest.mark.parametrize(("rate", "row"), TABLE_III.items())
def test_the_nine_savings_and_three_break_even_points(rate: float, row: tuple[int, tuple[int, ...]]) -> None:
    assert round(break_even_latency(rate, 50)) == row[0]
    assert tuple(round(latency_saving(rate, ms, 50)) for ms in (200, 500, 1000)) == row[1]


def test_a_gate_that_always_opens_never_pays() -> None:
    assert (break_even_latency(1.0, 50), latency_saving(1.0, 1e9, 50)) == (math.inf, -50)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        latency_saving(1.1, 1, 1)
