"""Table 8 of EDC²-RAG from its own token counts and prices."""

from __future__ import annotations

import pytest

from surerag.measures import api_cost

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
    with pytest.raises(ValueError, match="0 or more"):
        api_cost(-1, 0, 1, 1)
