"""Preference pairs against the paper's rule, written down literally."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow.parquet import ParquetFile

from surerag.errors import ConfigurationError, InputError
from surerag.training.rewriter import AlignOptions, preference_pairs, preferences
from surerag.training.rewriter.tables import queries_of, written

# A coarse grid makes ties common; a fine one makes them rare; an answer without a word is at infinity.
uncertainties = st.lists(
    st.one_of(st.integers(4, 12).map(lambda n: n / 4), st.floats(1, 9), st.just(math.inf)), max_size=9
)


def literally(uncertainty: list[float], most: int) -> list[tuple[int, int]]:
    """All combinations ⟨r_i, r_j⟩ where r_i is less uncertain; the ones with the largest differences."""
    combinations = []
    for i in range(len(uncertainty)):
        for j in range(len(uncertainty)):
            if uncertainty[i] < uncertainty[j]:
                combinations.append((i, j))
    chosen = []
    while combinations and len(chosen) < most:
        best = combinations[0]
        for i, j in combinations:
            if uncertainty[j] - uncertainty[i] > uncertainty[best[1]] - uncertainty[best[0]]:
                best = (i, j)
        chosen.append(best)
        combinations.remove(best)
    return chosen


@given(uncertainties, st.integers(1, 5))
@example([], 3)
@example([1.5], 3)
@example([1.5, 1.5, 1.5], 3)
@example([1.0, 2.0], 3)
@example([1.0, 2.0, 1.0, 2.0], 3)
@example([1.0, math.inf, math.inf], 3)
def test_pairs_are_the_papers(uncertainty: list[float], most: int) -> None:
    pairs = preference_pairs([-value for value in uncertainty], most)
    assert [(pair.better, pair.worse) for pair in pairs] == literally(uncertainty, most)


@given(uncertainties)
def test_every_pair_prefers_the_less_uncertain_and_no_larger_difference_is_left_out(
    uncertainty: list[float],
) -> None:
    pairs = preference_pairs([-value for value in uncertainty])
    possible = sum(a < b for a in uncertainty for b in uncertainty)
    assert len(pairs) == min(3, possible)
    assert all(uncertainty[pair.better] < uncertainty[pair.worse] for pair in pairs)
    assert len({(pair.better, pair.worse) for pair in pairs}) == len(pairs)
    if pairs:
        largest = max(b - a for a in uncertainty for b in uncertainty if a < b)
        assert pairs[0].difference == largest
        assert [pair.difference for pair in pairs] == sorted((p.difference for p in pairs), reverse=True)


def test_right_and_wrong_answers_pair_across_only() -> None:
    assert [pair[:2] for pair in preference_pairs([1, 0, 1, 0])] == [(0, 1), (0, 3), (2, 1)]


def test_a_least_difference_leaves_small_ones_out() -> None:
    assert [p[:2] for p in preference_pairs([0.0, 0.5, 2.0], least_difference=0.5)] == [(2, 0), (2, 1)]


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match="no number"):
        preference_pairs([1.0, math.nan])


def sampled(file: Path) -> Path:
    """Two queries: hand-worked uncertainties, one rewrite that could not be tried, and no relevance."""
    rows = [
        {"query": "a", "rewrite": "a1", "uncertainty": 1.5, "correct": True, "found": False},
        {"query": "a", "rewrite": "a2", "uncertainty": 1.25, "correct": False, "found": False},
        {"query": "a", "rewrite": "", "trouble": "empty"},
        {"query": "a", "rewrite": "a4", "uncertainty": math.inf, "correct": False, "found": True},
        {"query": "b", "rewrite": "b1", "uncertainty": 1.0, "correct": True, "found": True},
        {"query": "b", "rewrite": "b2", "uncertainty": 1.0, "correct": True, "found": True},
    ]
    with written(file, "samples", {}) as write:
        write({**row, "query_id": row["query"], "golds": ["x"], "passages": []} for row in rows)
    return file


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ("uncertainty", [("a2", "a1")]),  # an answer without a word rules no pair
        ("answer", [("a1", "a2"), ("a1", "a4")]),
        ("retrieval", [("a4", "a1"), ("a4", "a2")]),
    ],
)
def test_each_reward_makes_its_own_pairs(tmp_path: Path, reward, expected: list[tuple[str, str]]) -> None:
    [rows] = preferences(
        sampled(tmp_path / "samples.parquet"), AlignOptions(reward=reward, least_difference=0.0)
    )
    assert [(row["better"], row["worse"]) for row in rows] == expected


def test_a_reward_that_was_not_measured_is_named(tmp_path: Path) -> None:
    file = sampled(tmp_path / "samples.parquet")
    with pytest.raises(ConfigurationError, match=r"'relevance'.*with an encoder"):
        list(preferences(file, AlignOptions(reward="relevance")))
    with pytest.raises(InputError, match="no file"):
        list(preferences(tmp_path / "none.parquet", AlignOptions()))


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    with written(tmp_path / "p.parquet", "pairs", {}) as write:
        write([{"query": "a"}])
    with pytest.raises(InputError, match="no file of samples: it lacks golds"):
        list(preferences(tmp_path / "p.parquet", AlignOptions()))


def test_many_small_writes_make_few_groups_and_the_same_bytes_as_one(tmp_path: Path) -> None:
    rows = [{"query_id": str(n // 3), "query": str(n // 3), "better": "a", "worse": "b"} for n in range(5000)]
    with written(tmp_path / "one.parquet", "pairs", {}) as write:
        write(rows)
    with written(tmp_path / "many.parquet", "pairs", {}) as write:
        for row in rows:
            write([row])
    assert (tmp_path / "many.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()
    assert ParquetFile(tmp_path / "one.parquet").num_row_groups == 2
    groups = list(queries_of(tmp_path / "one.parquet", "pairs"))
    assert [len(group) for group in groups] == [3] * 1666 + [2], "a query may lie on both sides of a border"
