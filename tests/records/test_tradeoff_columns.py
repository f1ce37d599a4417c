"""A trace's questions as columns say what its cases say."""

from __future__ import annotations

import math

import pytest

from surerag.decisions.policy import Identity
from surerag.records.tradeoff.choices import CHOICES, Case, Spending
from surerag.records.tradeoff.columns import Columns, Times
from surerag.records.tradeoff.curve import Bound, trade_off
from surerag.records.tradeoff.tables import trade_off_grids

FREE = Spending(0, 0, 0, None)


def case(at: int, without: float | None = 0.0, spent: Spending = FREE) -> Case:
    return Case(f"q{at}", at / 10, without, 1.0, None, 0.25, 0.5, spent, spent, spent)


def test_rows_are_made_when_they_are_looked_at_and_say_what_the_cases_say() -> None:
    columns = Columns(case(at, spent=Spending(100, 7, 2, 0.5)) for at in range(4))
    rows = columns.rows("margin", "gold answers")
    assert [(row.signals["margin"], row.benefit, row.cost) for row in rows] == [
        (at / 10, 1.0, 107.0) for at in range(4)
    ]
    assert rows[1:][0] == rows[1]
    assert [row.benefit for row in columns.rows("margin", "agreement")] == [0.75] * 4
    assert columns.times() == Times(500, 500, 500, None)


def test_unjudged_questions_are_left_out_where_others_are_judged() -> None:
    columns = Columns([case(0), case(1, None), case(2)])
    judged = columns.judged()
    assert judged is not None
    assert judged.signal.tolist() == [0.0, 0.2]
    _, with_, plain = judged.scores("gold answers")
    assert plain.tolist() == with_.tolist() == [1.0, 1.0]
    assert Columns([case(0, None)]).judged() is None
    assert columns.times() is None


def test_what_nobody_recorded_of_costs_is_not_called_nothing() -> None:
    found = trade_off(
        (case(at) for at in range(300)), CHOICES["l-rag"], Identity("m", "margin"), Bound(target="best")
    )
    assert found.words == "No times are known of these questions. Nor is it known what they cost."
    costs = trade_off_grids(found)[1]
    assert "not known" in costs.note
    assert costs.head == ("Decides by", "Retrievals")
    assert found.points[-1].score == pytest.approx(1.0)
    assert math.isfinite(found.points[-1].against_always.value)
