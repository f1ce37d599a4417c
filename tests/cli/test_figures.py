"""The papers' tables and figures on a user's own data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from surerag.cli.app import app
from surerag.cli.figures import utilities
from surerag.entailment import ExactEntailer
from surerag.evaluation.agreement import rejudged
from surerag.types import Pair


def ran(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["figures", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def lines(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def test_clusters_of_a_users_corpus_are_told_from_random_ones(tmp_path: Path) -> None:
    useful = [f"Ada the painter was born in Velm, says book {n}." for n in range(3)]
    noise = [f"Tin melts at {n} hundred degrees in an oven." for n in range(6)]
    rows = [
        {
            "question": "Where was Ada born?",
            "contexts": [*useful, *noise],
            "labels": ["useful"] * 3 + ["x"] * 6,
        }
    ]
    output = ran("clusters", str(lines(tmp_path / "rows.jsonl", rows * 4)), "--label", "useful")
    assert "useful" in output and "100.0 [100.0" in output and "Table 7" in output


def sampled(seper: float, *texts: str) -> dict[str, Any]:
    answers = [{"text": text, "log_likelihood": -0.1} for text in texts]
    return {"seper": seper, "answers": answers}


def row(before: float, after: float, system: str = "bm25") -> dict[str, Any]:
    step = {"before": sampled(before, "Orun", "Bo"), "after": sampled(after, "Velm", "Velm", "Orun")}
    return {"system": system, "question": "Where?", "answers": ["Velm"], "steps": [step], "error": None}


def test_what_retrieval_gives_and_takes_is_told_by_system(tmp_path: Path) -> None:
    rows = [row(0.2, 0.9), row(0.5, 0.4), row(0.0, 0.0, "none"), {**row(0, 1), "error": "x"}]
    [bm25, none] = utilities(rows)
    assert (bm25.n, none.n) == (2, 1)
    assert (bm25.positive, bm25.negative) == pytest.approx((0.35, -0.05))
    assert bm25.delta == pytest.approx(bm25.positive + bm25.negative)
    assert bm25.worse == 0.5
    file = tmp_path / "figures.json"
    assert "bm25" in ran("utility", str(lines(tmp_path / "results.jsonl", rows)), "--json", str(file))
    assert [one["system"] for one in json.loads(file.read_text())] == ["bm25", "none"]


class Generous:
    """Takes every answer for the gold one."""

    local = True
    name = "generous"

    def entail(self, pairs: list[Pair]) -> np.ndarray:
        return np.tile([0.0, 0.0, 1.0], (len(pairs), 1))


def test_samples_are_judged_anew_without_the_reader() -> None:
    rows = [row(0, 0), {**row(0, 0), "error": "x"}]
    strict, generous = rejudged(rows, ExactEntailer()), rejudged(rows, Generous())
    # Two distinct answers of equal likelihood, one of which is gold; before, none was.
    assert strict[0] == pytest.approx(0.5) and generous[0] == pytest.approx(0.0)
    assert np.isnan(strict[1])


def test_judges_of_a_run_are_compared(tmp_path: Path) -> None:
    rows = [row(0, 0), row(0, 0)]
    rows[1]["answers"] = ["Bo"]
    file = lines(tmp_path / "results.jsonl", [*rows, *rows])
    output = ran("judges", str(file), "--entailment", "exact", "--entailment", "judge")
    assert "1.000" in output and "judge" in output
    with pytest.raises(SystemExit):
        app(["figures", "judges", str(file), "--entailment", "exact"])


def test_a_line_that_lacks_a_field_is_named(tmp_path: Path) -> None:
    file = lines(tmp_path / "rows.jsonl", [{"question": "Where?"}])
    result = CliRunner().invoke(app, ["figures", "clusters", str(file)])
    assert result.exit_code != 0
