"""Rows in files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from surerag.decisions.files import read_rows, write_rows
from surerag.decisions.rows import DecisionRow
from surerag.errors import InputError


def test_rows_come_back(tmp_path: Path) -> None:
    rows = [
        DecisionRow({"p": 1.5, "q": math.inf}, 1.0, 0.25, 3.0, "Wo?"),
        DecisionRow({"p": 1.0}),
    ]
    write_rows(rows, tmp_path / "rows.jsonl")
    assert read_rows(tmp_path / "rows.jsonl") == rows
    (tmp_path / "rows.jsonl").write_text('\n{"signals": {"p": null}, "correct_with": true}\n')
    assert read_rows(tmp_path / "rows.jsonl") == [DecisionRow({"p": math.inf}, None, True)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"signals": {"p": 1}}\n{"p": 1}', "line 2: expected signals and scores, found the keys p"),
        ("[1]", "line 1: .* found list"),
        ("{", "line 1 is no JSON"),
        ('{"signals": {"p": "high"}}', "line 1: the signal 'p' must be a number"),
        ('{"signals": {"p": 1}, "correct_with": 7}', "line 1: correct_with must be"),
        ("\n", "holds no rows"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_row_is_named_with_its_line(tmp_path: Path, text: str | None, told: str) -> None:
    if text is not None:
        (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(InputError, match=told):
        read_rows(tmp_path / "rows.jsonl")
