"""Every stage gets queries drawn at random, however long the file is and whatever its order."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator

import pytest

from surerag.errors import ConfigurationError, InputError
from surerag.training.rewriter import Draw, Query, Shares, draw

VAGUE = [Query(f"Where was that one, {number}?", kind="vague") for number in range(100)]
CLEAR = [Query(f"Where was Ada the {number}. born?", kind="clear") for number in range(300)]


def vague(queries: tuple[Query, ...]) -> int:
    return sum(query.text.startswith("Where was that") for query in queries)


def test_a_file_sorted_by_kind_is_mixed() -> None:
    found = draw([Query(q.text) for q in (*VAGUE, *CLEAR)], Shares(held_out=0.2))
    assert [len(part) for part in found[:3]] == [160, 160, 80]
    # A quarter of each part is vague, as far as chance has it: four standard deviations.
    assert all(abs(vague(part) - len(part) / 4) < 4 * (len(part) * 0.19) ** 0.5 for part in found[:3])


def test_stratified_every_part_has_the_same_mix() -> None:
    found = draw([*VAGUE, *CLEAR], Shares(held_out=0.2))
    assert [vague(part) for part in found[:3]] == [40, 40, 20]


def test_neither_order_nor_a_further_row_changes_whose_a_query_is() -> None:
    queries = [Query(query.text) for query in CLEAR]
    shuffled = random.Random(1).sample(queries, len(queries))
    first, second = draw(queries, Shares()), draw(shuffled, Shares())
    assert first == second
    other = draw([Query("Who?"), *queries], Shares())
    moved = set(first.distil) ^ set(other.distil)
    assert len(moved) <= 4
    assert draw(queries, Shares(), seed=1).distil != first.distil


def test_duplicates_are_told_and_their_gold_answers_merged() -> None:
    rows = [Query("a", ("1",)), Query("b"), Query("c"), Query("a", ("2", "1"))]
    found = draw(rows, Shares(held_out=0))
    assert {query.text: query.golds for query in found.distil + found.sample}["a"] == ("1", "2")
    assert (found.rows, found.duplicates) == (4, 1) and "1 duplicate merged" in str(found)


def test_of_many_rows_memory_holds_those_that_are_drawn() -> None:
    def rows() -> Iterator[Query]:
        return (
            Query(f"What is written in row {number} of a long file of queries?") for number in range(60_000)
        )

    tracemalloc.start()
    found = draw(rows(), Shares(), most=500)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found.drawn, found.rows) == (500, 60_000)
    assert peak < 8e6, "60,000 queries take more than twice as much"
    # It is the same draw as of those that were drawn, in whatever order.
    again = draw(reversed([*found.distil, *found.sample, *found.held_out]), Shares())
    assert again[:3] == found[:3]


def test_what_cannot_be_shared() -> None:
    with pytest.raises(InputError, match="1 different queries cannot be shared"):
        draw([Query("a"), Query("a")], Shares(held_out=0))
    with pytest.raises(ConfigurationError, match="shares must be"):
        Shares(distil=1)
    assert isinstance(draw([Query("a"), Query("b")], Shares(held_out=0)), Draw)
