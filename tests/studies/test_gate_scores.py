"""Which measure of the first answer a gate should compare, on answers whose order is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.real.gate_scores import OF_THE_BEGINNING, PAPERS_SCORE, gate_score_rows
from surerag.errors import InputError
from surerag.evaluation import EvaluationAnswer, Question, evaluate
from surerag.evaluation.systems import as_system

QUESTIONS = [Question(f"Where was P{at} born?", ("Velm",), (f"Paragraph {at // 2}",)) for at in range(80)]


def first(question: str) -> EvaluationAnswer:
    """Return an answer whose tenth token alone tells whether it is right; its first eight tell nothing."""
    at = int("".join(c for c in question if c.isdigit()))
    is_right = at % 4 < 2
    entropies = [0.1 + at % 3 / 10] * 9 + [0.0 if is_right else 2.0]
    scores = {f"entropy {step}": value for step, value in enumerate(entropies, 1)}
    scores |= {f"logprob {step}": -value for step, value in enumerate(entropies, 1)}
    return EvaluationAnswer("Velm" if is_right else "Orun", scores=scores)


def test_a_measure_of_the_whole_answer_is_ahead_where_the_beginning_tells_nothing(tmp_path: Path) -> None:
    systems = {
        "summary": as_system("summary", first),
        "always": as_system("always", lambda question: EvaluationAnswer("Velm")),
    }
    with evaluate(systems, QUESTIONS, tmp_path / "a.db", metrics=("contains",)) as run:
        rows = {row["system"]: row for row in gate_score_rows(run)}
    assert (rows["summary"]["right"][0], rows["always"]["right"][0]) == (50.0, 100.0)
    assert rows["greatest_3_mean_entropy"]["auroc"][0] == 1.0
    assert rows["greatest_3_mean_entropy"]["right at 50%"] == [100.0, 100.0, 100.0]
    assert rows["greatest_3_mean_entropy"]["auroc_ahead"][1] > 0
    assert rows["greatest_3_mean_entropy"]["60% ahead"][0] > 10
    for name in (PAPERS_SCORE, OF_THE_BEGINNING):
        assert 0.3 < rows[name]["auroc"][0] < 0.7
    assert "60% ahead" not in rows[PAPERS_SCORE]


def test_a_run_without_the_two_systems_is_refused(tmp_path: Path) -> None:
    run = evaluate({"summary": as_system("summary", first)}, QUESTIONS[:4], tmp_path / "a.db")
    with run, pytest.raises(InputError, match="the run has no system always"):
        gate_score_rows(run)
