"""Rows: every number is checked where it comes in."""

from __future__ import annotations

import math
from typing import Any

import pytest

from surerag.decisions.rows import DecisionRow, outcomes_of, signal_of
from surerag.errors import InputError


def test_rows_become_arrays_in_their_order() -> None:
    rows = [DecisionRow({"p": 1.0}, True, False), DecisionRow({"p": math.inf, "q": 2.0}, 0.25, 1)]
    assert signal_of(rows, "p").tolist() == [1.0, math.inf]
    assert outcomes_of(rows).benefit.tolist() == [-1.0, 0.75]


def test_what_a_row_was_made_of_does_not_change_it() -> None:
    given = {"p": 1.0}
    row = DecisionRow(given)
    given["p"] = 2.0
    assert row.signals["p"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"signals": {"p": math.nan}}, "'p' must be a number"),
        ({"signals": {"p": True}}, "'p' must be a number"),
        ({"signals": {"p": "1"}}, "'p' must be a number"),
        ({"signals": {}, "correct_with": 1.5}, r"correct_with must be .* in row 'q7'"),
        ({"signals": {}, "correct_without": math.nan}, "correct_without must be"),
        ({"signals": {}, "cost": -1.0}, "cost must be"),
    ],
)
def test_what_is_no_number_is_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        DecisionRow(**arguments, id="q7")


def test_missing_signals_labels_and_rows_are_told_apart() -> None:
    rows = [DecisionRow({"p": 1.0}, True, True), DecisionRow({"q": 1.0}, id="second")]
    with pytest.raises(InputError, match="no signal 'p' in row 'second'; there is q"):
        signal_of(rows, "p")
    with pytest.raises(InputError, match="1 of 2 rows were not judged"):
        outcomes_of(rows)
    with pytest.raises(InputError, match="no rows"):
        outcomes_of([])
    with pytest.raises(InputError, match="not judged in row 'second'"):
        _ = rows[1].benefit
