"""The papers' tables and figures on a user's own data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from surerag.cli.app import app
from surerag.cli.figures import utilities
from surerag.entailment import ExactEntailer
from surerag.errors import InputError
from surerag.evaluation.agreement import rejudged
from surerag.readers.scripted import ScriptedReader
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


ROWS = [
    ("Where was Ada born?", "Velm", "Ada was born in Velm."),
    ("Where was Bo born?", "Orun", "Tin melts in an oven."),
    ("Where was Cy born?", "Tarn", "Cy was born in Tarn."),
    ("Where was Di born?", "Sund", "Sund is a town."),
]


@pytest.fixture
def evaluated(tmp_path: Path, surerag: Any) -> Path:
    """A run of ``surerag evaluate``: the reader answers from what it is shown, or else that it is Nowhere."""
    data = [
        {"question": question, "answers": [gold], "contexts": [text], "utility": float(gold in text)}
        for question, gold, text in ROWS
    ]

    def answer(prompt: str) -> str:
        return next((gold for _, gold, _ in ROWS if gold in prompt), "Nowhere")

    file, out = lines(tmp_path / "data.jsonl", data), tmp_path / "run"
    done = surerag("evaluate", file, "--output", out, "--entailment", "exact", reader=ScriptedReader(answer))
    assert done.code == 0, done.err
    return out


def test_what_retrieval_gives_and_takes_is_told_by_system(evaluated: Path, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert "contexts" in ran("utility", str(evaluated), "--json", str(file))
    [found] = json.loads(file.read_text())
    assert (found["n"], found["before"], found["after"]) == (4, 0.0, 0.75)
    rows = [
        {"system": "bm25", "before": 0.2, "after": 0.9, "error": None},
        {"system": "bm25", "before": 0.5, "after": 0.4, "error": None},
        {"system": "none", "before": 0.0, "after": 0.0, "error": None},
        {"system": "bm25", "before": None, "after": None, "error": "x"},
    ]
    [bm25, none] = utilities(rows)
    assert (bm25.n, none.n) == (2, 1)
    assert (bm25.positive, bm25.negative) == pytest.approx((0.35, -0.05))
    assert bm25.delta == pytest.approx(bm25.positive + bm25.negative)
    assert bm25.worse == 0.5


def sampled(seper: float, *texts: str) -> dict[str, Any]:
    answers = [{"text": text, "log_likelihood": -0.1} for text in texts]
    return {"seper": seper, "answers": answers}


def row(before: float, after: float) -> dict[str, Any]:
    step = {"before": sampled(before, "Orun", "Bo"), "after": sampled(after, "Velm", "Velm", "Orun")}
    return {"question": "Where?", "answers": ["Velm"], "steps": [step], "error": None}


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


def test_judges_of_a_run_are_compared(evaluated: Path) -> None:
    output = ran("judges", str(evaluated), "--entailment", "exact", "--entailment", "judge")
    assert "1.000" in output and "judge" in output and "n = 4" in output
    with pytest.raises(SystemExit):
        app(["figures", "judges", str(evaluated), "--entailment", "exact"])


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["figures", "utility", str(tmp_path)])
    assert isinstance(result.exception, InputError) and "surerag evaluate" in str(result.exception.hint)


def test_rivals_are_correlated_with_known_utility(evaluated: Path, surerag: Any) -> None:
    def answer(prompt: str) -> str:
        return "9" if "born in" in prompt.split("Context:")[-1].split("Answer:")[0] else "2"

    judge = ScriptedReader(answer)
    data = evaluated.parent / "data.jsonl"
    done = surerag("figures", "rivals", evaluated, "--data", data, "--judge", reader=judge)
    assert done.code == 0, done.err
    number = r"(-?[0-9.]+) \[-?[0-9.]+, -?[0-9.]+\]"
    found = {name: float(r) for name, r in re.findall(rf"([A-Zδ][\w ,Δ-]+?) 4 {number}", done.out)}
    # The last context holds the gold word and tells nothing: only the answers could show it.
    assert found["BLEU"] == found["ROUGE-L"] == 1.0
    assert "BERTScore, MiniLM" in found
    assert found["Judge, direct"] == found["Judge, reduction"] == pytest.approx(0.58, abs=0.01)
    # All answers are equally likely here.
    assert "Perplexity 4 n/a" in done.out
    without = ran("rivals", str(evaluated))
    assert "Correlation with ΔSePer" in without and "Judge" not in without


def test_a_judge_is_asked_by_the_prompts_of_a_file(evaluated: Path, surerag: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompts.toml"
    file.write_text('[judge]\nrate_answer = "How good is {answer}? {question}"\n', encoding="utf-8")
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return "5"

    judge, data = ScriptedReader(answer), evaluated.parent / "data.jsonl"
    done = surerag("figures", "rivals", evaluated, "--data", data, "--judge", "--prompts", file, reader=judge)
    assert done.code == 0, done.err
    # Once a row; the other two prompts are ours, and show the context.
    assert (sum("How good is" in prompt for prompt in asked), len(asked)) == (4, 12)
    alone = surerag("figures", "rivals", evaluated, "--data", data, "--prompts", file, reader=judge)
    assert alone.code != 0 and "add --judge" in alone.err


def test_a_line_that_lacks_a_field_is_named(tmp_path: Path) -> None:
    file = lines(tmp_path / "rows.jsonl", [{"question": "Where?"}])
    result = CliRunner().invoke(app, ["figures", "clusters", str(file)])
    assert result.exit_code != 0
