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


def test_columns_say_what_the_cases_say() -> None:
    columns = Columns(case(at, spent=Spending(100, 7, 2, 0.5)) for at in range(4))
    assert columns.signal.tolist() == [0.0, 0.1, 0.2, 0.3]
    assert columns.outcomes("gold answers").benefit.tolist() == [1.0] * 4
    assert columns.outcomes("agreement").benefit.tolist() == [0.75] * 4
    assert columns.tokens("opened").tolist() == [107.0] * 4
    assert columns.times() == Times(500, 500, 500, None)


def test_costs_come_back_from_their_file_however_many_there_are() -> None:
    n = 40_000
    spent = [(Spending(at, 1, 1, 0.5), Spending(2 * at, 1, 2, 1.0)) for at in range(n)]
    columns = Columns(
        Case(str(at), float(at), 0.0, 1.0, None, 1.0, 1.0, shut, opened, shut)
        for at, (shut, opened) in enumerate(spent)
    )
    acts = columns.signal >= n / 2
    expected = sum(2 * at if at >= n / 2 else at for at in range(n)) / n
    assert columns.mean(acts).tolist() == pytest.approx([expected, 1.0, 1.5, 0.75, 0.0])
    assert columns.tokens("opened")[-1] == 2 * (n - 1) + 1


def test_unjudged_questions_are_left_out_where_others_are_judged() -> None:
    columns = Columns([case(0), case(1, None, Spending(9, 9, 9, 9)), case(2)])
    judged = columns.judged()
    assert judged is not None
    assert judged.signal.tolist() == [0.0, 0.2]
    assert judged.plain("gold answers").tolist() == [1.0, 1.0]
    assert judged.outcomes("gold answers").with_.tolist() == [1.0, 1.0]
    assert judged.mean("shut")[:3].tolist() == [0.0, 0.0, 0.0]
    assert Columns([case(0, None)]).judged() is None
    assert columns.times() is None


def test_graded_scores_keep_their_precision() -> None:
    many = [Case(str(at), at, at / 999, 1.0, None, 1.0, 1.0, FREE, FREE, FREE) for at in range(700)]
    assert Columns(many).outcomes("gold answers").without.tolist() == [at / 999 for at in range(700)]


def test_what_nobody_recorded_of_costs_is_not_called_nothing() -> None:
    found = trade_off(
        (case(at) for at in range(300)), CHOICES["l-rag"], Identity("m", "margin"), Bound(target="best")
    )
    assert found.words == "No times are known of these questions. Nor is it known what they cost."
    costs = trade_off_grids(found)[1]
    assert "not known" in costs.note
    assert costs.head == ("Decides by", "Fetches")
    assert found.points[-1].score == pytest.approx(1.0)
    assert math.isfinite(found.points[-1].against_always.value)
