"""``surerag calibrate`` and ``surerag reproduce decisions``."""

from __future__ import annotations

import json
from pathlib import Path

from surerag.decisions.files import write_rows
from surerag.decisions.policy import Policy
from surerag.decisions.rows import DecisionRow


def rows_file(folder: Path, n: int, **more: float) -> Path:
    rows = [DecisionRow({"doubt": float(i), **more}, i < 0.75 * n, True) for i in range(n)]
    write_rows(rows, folder / "rows.jsonl")
    return folder / "rows.jsonl"


def test_the_command_writes_a_policy_and_says_what_it_promises(surerag, tmp_path: Path) -> None:
    ran = surerag(
        "calibrate", rows_file(tmp_path, 400), "--model", "one", "--output", tmp_path / "policy.json"
    )
    assert ran.code == 0, ran.err
    assert "holds" in ran.out
    assert "at most 2 points" in ran.out
    found = Policy.load(tmp_path / "policy.json")
    assert (found.identity.model, found.identity.signal, found.verdict) == ("one", "doubt", "holds")


def test_the_command_says_how_many_would_be_needed(surerag, tmp_path: Path) -> None:
    ran = surerag("calibrate", rows_file(tmp_path, 100))
    assert ran.code == 1
    assert "about 149 would be needed" in " ".join(ran.out.split())
    several = surerag("calibrate", rows_file(tmp_path, 400, other=1.0))
    assert several.code == 1
    assert "choose one with --signal" in several.err.lower()
    assert surerag("calibrate", tmp_path / "rows.jsonl", "--signal", "doubt").code == 0


def test_the_study_of_decisions_prints_and_stores_every_figure(surerag, tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    ran = surerag("reproduce", "decisions", "--splits", 10, "--streams", 5, "--json", file)
    assert ran.code == 0, ran.err
    assert "Promises broken" in ran.out
    stored = json.loads(file.read_text())
    assert {row["rule"] for row in stored["promises"]} >= {"certified", "normal approx.", "its lower end"}
    assert stored["gates"] == []
    assert [row["shift"] for row in stored["monitors"]] == [0.0, 0.25, 0.5, 1.0]
