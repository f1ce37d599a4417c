"""Figures of records: on records made by hand, and on those of a real reader."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from surerag.decisions.rows import DecisionRow
from surerag.measures import normalize_answer
from surerag_studies.regimes.measuring import Figures, figures_of, measured
from surerag_studies.regimes.real import NQ, TRIVIA_QA
from surerag_studies.regimes.study import like_real

TRACES = Path(__file__).parents[4] / "shared" / "data" / "traces" / "single_hop.parquet"


def rows(*cases: tuple[float, bool, bool]) -> list[DecisionRow]:
    return [DecisionRow({"doubt": d}, correct_without=a, correct_with=b) for d, a, b in cases]


def test_figures_are_counted_as_they_are_named() -> None:
    found = figures_of(
        "by hand",
        rows((0.1, True, True), (0.2, False, True), (0.3, True, False), (math.inf, False, True)),
        "doubt",
    )
    counts = (found.without, found.with_, found.helps, found.hurts, found.surely_wrong)
    assert [one.count for one in counts] == [2, 3, 2, 1, 1]
    assert found.surely_wrong.n == 2
    assert found.wrong is not None
    assert found.wrong.value == pytest.approx(0.75)
    assert found.benefit is not None
    assert found.benefit.value == pytest.approx(0.75)
    # The two most doubtful retrieve: right, right of the first two as they are, wrong, right.
    assert found.gain.value == pytest.approx((1 + 0 + 0 + 1) / 4 - (2 + 3) / 8)


def test_doubt_that_knows_the_benefit_gains_and_doubt_that_does_not_gains_nothing() -> None:
    without, with_ = np.array([True, False] * 50), np.ones(100, dtype=bool)
    assert measured("knows", "x", ~without, without, with_).gain.value == pytest.approx(0.25)
    assert measured("ignorant", "x", np.zeros(100), without, with_).gain.value == pytest.approx(0.0)


def test_records_that_never_differ_have_nothing_to_tell_apart() -> None:
    found = measured("right", "x", np.arange(9), np.ones(9), np.ones(9))
    assert found.wrong is found.benefit is None
    assert like_real(found).holds is False


def test_a_real_readers_figures_lie_where_regimes_are_wanted() -> None:
    assert like_real(NQ).holds
    assert NQ.hurts.value == pytest.approx(0.114)
    # TriviaQA: hurts 12.2 %, a little more than the twelve that were asked for.
    assert "0.726, 12.2 %, 0.614" in like_real(TRIVIA_QA).finding


@pytest.mark.skipif(not TRACES.is_file(), reason="no shared data beside this checkout")
@pytest.mark.parametrize(("name", "known"), [("nq", NQ), ("triviaqa", TRIVIA_QA)])
def test_a_real_readers_figures_are_those_of_its_records(name: str, known: Figures) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = [row for row in parquet.read_table(TRACES).to_pylist() if row["dataset"] == name]

    def right(answer: str, golds: list[str]) -> bool:
        return any(normalize_answer(gold) in normalize_answer(answer) for gold in golds)

    found = measured(
        known.name,
        "perplexity",
        [row["perplexity"] for row in table],
        [right(row["answer_no_retrieval"], row["golds"]) for row in table],
        [right(row["answer_one_retrieval"], row["golds"]) for row in table],
    )
    for field in ("without", "with_", "helps", "hurts", "surely_wrong"):
        assert getattr(found, field) == getattr(known, field)
    for field in ("wrong", "benefit", "gain"):
        ours, theirs = getattr(found, field), getattr(known, field)
        for end in ("value", "low", "high"):
            # Ends of intervals come of resampling, which was drawn otherwise for the figures that are kept.
            near = pytest.approx(getattr(theirs, end), abs=6e-4 if end == "value" else 2e-3)
            assert getattr(ours, end) == near
