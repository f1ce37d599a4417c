"""Studies print their tables and claims; the closed world is the same for a seed in every process."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies import levels
from studies.lazy_rag import HELD_OUT
from studies.world import World, is_correct
from surerag import FakeReader
from surerag.encoders import HashingEncoder


def answer(prompt: str) -> str:
    """Answer with the last word of the prompt's longest line: now right, now wrong, never empty."""
    if "entail" in prompt:
        return "entailment" if len(prompt) % 2 else "neutral"
    if "yes or no" in prompt:
        return "yes"
    return max(prompt.splitlines(), key=len).split()[-1].strip("?.")


@pytest.mark.parametrize("name", ["lazy_rag", "seper", "edc2", "dense", "dynqr"])
def test_a_study_prints_tables_and_claims(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, common = import_module(f"studies.{name}"), import_module("studies.common")
    reader = FakeReader(answer, entropy=0.7)
    for module in (study, common):
        monkeypatch.setattr(module, "load_reader", lambda *_: reader)
        monkeypatch.setattr(module, "load_encoder", HashingEncoder)
    monkeypatch.setattr(common.console, "_file", sys.stdout)  # undone, it is None again
    monkeypatch.setattr(sys, "argv", [name, "-n", "12", "--seed", "5"])
    study.main()
    printed = capsys.readouterr().out
    assert "Claims" in printed
    assert "nan" not in printed


def test_a_study_writes_its_tables_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, common = import_module("studies.seper"), import_module("studies.common")
    monkeypatch.setattr(common.console, "_file", sys.stdout)
    monkeypatch.setattr(study, "LANGUAGES", 3)
    file = tmp_path / "weights.json"
    monkeypatch.setattr(sys, "argv", ["studies/seper.py", "--weights", "--seed", "2", "--json", str(file)])
    study.main()
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written["command"] == "python -m studies.seper --weights --seed 2"
    [(table, rows)] = [(name, rows) for name, rows in written.items() if isinstance(rows, list)]
    assert (table, len(rows)) == ("Error of the belief", len(study.RULES) + 1)
    assert list(rows[0])[:2] == ["system", "α = 0.02"]
    assert "-" not in rows[1]["α = 1"]  # a minus is a minus


@pytest.mark.parametrize("table", ["requirements", "shares", "skewed", "groups", "power", "abstention"])
def test_levels_power_and_coverage_are_counted(table: str) -> None:
    _, columns, rows = levels.TABLES[table]
    cells = list(rows(4, np.random.default_rng(0)))
    assert cells and {len(row) for row in cells} == {len(columns)} == {len(set(columns))}
    if table == "shares":  # exact: Wilson's interval at n = 10, with 0.5 and in the worst case
        assert (cells[0][1], cells[0][-1][:4]) == ("97.9", "84.2")


def test_lazy_rag_reads_squad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    context = "Velm lies by the sea. It has a harbour. Ada was born there in 1900. " * 12
    question = {"question": "When was Ada born?", "answers": [{"text": "1900"}], "is_impossible": False}
    asked = [{**question, "question": f"When was Ada born, {at}?"} for at in range(4)]
    data = {"data": [{"title": "Velm", "paragraphs": [{"context": context, "qas": asked}]}]}
    (tmp_path / "squad.json").write_text(json.dumps(data))
    study, common = import_module("studies.lazy_rag"), import_module("studies.common")
    monkeypatch.setattr(study, "load_reader", lambda *_: FakeReader(answer, entropy=0.7))
    monkeypatch.setattr(study, "load_encoder", HashingEncoder)
    monkeypatch.setattr(common.console, "_file", sys.stdout)  # undone, it is None again
    monkeypatch.setattr(sys, "argv", ["lazy_rag", "--squad", str(tmp_path / "squad.json")])
    study.main()
    printed = capsys.readouterr().out
    assert "SQuAD 2.0" in printed
    assert "78.2" in printed  # the paper's figures stand beside


def of_held_out_articles(context: str, asked: list[dict[str, Any]]) -> dict[str, Any]:
    """Return data in SQuAD's format; all questions are of one of the held-out articles."""
    others = [{"title": title, "paragraphs": []} for title in HELD_OUT if title != "Force"]
    return {"data": [{"title": "Force", "paragraphs": [{"context": context, "qas": asked}]}, *others]}


@pytest.mark.parametrize(
    ("name", "expected"), [("dense", ("τ = 0.6", "75% quantile")), ("edc2", ("One chunk of", "128"))]
)
def test_defaults_are_measured_on_squad(
    name: str,
    expected: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = [
        {"question": f"When was Ada born, {at}?", "answers": [{"text": "1900"}], "is_impossible": False}
        for at in range(4)
    ]
    context = "Velm lies by the sea. It has a harbour. Ada was born there in 1900. " * 20
    data = of_held_out_articles(context, asked)
    (tmp_path / "squad2_dev.json").write_text(json.dumps(data))
    study, common = import_module(f"studies.{name}"), import_module("studies.common")
    monkeypatch.setattr(study, "load_reader", lambda *_: FakeReader("Ada was born there in 1900."))
    monkeypatch.setattr(study, "load_encoder", HashingEncoder)
    monkeypatch.setattr(common.console, "_file", sys.stdout)  # undone, it is None again
    monkeypatch.setattr(sys, "argv", [name, "--data", str(tmp_path), "--articles", "held-out"])
    study.main()
    printed = capsys.readouterr().out
    assert all(one in printed for one in expected)
    assert "100.0 [" in printed  # the answer stands in what is left


@pytest.mark.parametrize(
    ("name", "first", "expected"),
    [("lazy_rag", "--squad", "abstention=False"), ("dynqr", "--data", "semantic_entropy")],
)
def test_options_are_compared_on_rows_that_a_later_run_goes_on_with(
    name: str,
    first: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    questions = [f"When was Ada born, {at}?" for at in range(12)]
    asked = [{"question": one, "answers": [{"text": "1900"}], "is_impossible": False} for one in questions]
    context = "Velm lies by the sea. It has a harbour. Ada was born there in 1900."
    data = of_held_out_articles(context, asked)
    (tmp_path / "squad2_dev.json").write_text(json.dumps(data))
    (tmp_path / "xquad.en.json").write_text(json.dumps({"data": []}))
    said = [{"question": one, "disfluent": f"no wait {one}", "source": "squad2"} for one in questions]
    (tmp_path / "disfl_qa.json").write_text(json.dumps(said))
    study, common = import_module(f"studies.{name}"), import_module("studies.common")
    reader = FakeReader(answer, entropy=0.7)
    monkeypatch.setattr(study, "load_reader", lambda *_: reader)
    monkeypatch.setattr(study, "load_encoder", HashingEncoder)
    monkeypatch.setattr(common.console, "_file", sys.stdout)  # undone, it is None again
    source = tmp_path / "squad2_dev.json" if first == "--squad" else tmp_path
    options = [first, str(source), "--articles", "held-out", "--rows", str(tmp_path / "rows.jsonl")]
    options += ["--samples"] if name == "dynqr" else []
    for n in ("10", "12", "12"):
        monkeypatch.setattr(sys, "argv", [name, *options, "-n", n])
        calls = len(reader.history)
        study.main()
        assert f"n = {n}" in capsys.readouterr().out
    assert len(reader.history) == calls  # the third time all rows are there
    study.main()
    assert expected in capsys.readouterr().out


def test_traces_compare_retrieving_when_uncertain_with_random(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    # Of 40 questions the reader is wrong, and helped by retrieving, where it is uncertain.
    wrong = [at % 4 == 0 for at in range(40)]
    rows = {
        "dataset": ["made"] * 40,
        "golds": [["Velm"]] * 40,
        **{name: ["Orun" if bad else "Velm" for bad in wrong] for name in ("answer", "answer_no_retrieval")},
        "answer_one_retrieval": ["Velm"] * 40,
        **{
            name: [2.0 if bad else 1.0 for bad in wrong]
            for name in ("perplexity", "ln_entropy", "eigen_score")
        },
    }
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    study, common = import_module("studies.traces"), import_module("studies.common")
    monkeypatch.setattr(common.console, "_file", sys.stdout)  # undone, it is None again
    monkeypatch.setattr(sys, "argv", ["traces", str(tmp_path / "rows.parquet")])
    study.main()
    printed = capsys.readouterr().out
    assert "1.00 [" in printed  # the AUROC of a perfect uncertainty
    assert "+18.8 [" in printed  # a quarter of the questions, all mended, against a quarter of them at random


def test_a_world_is_the_same_for_a_seed() -> None:
    world = World(seed=7, size=60)
    text = "".join(passage.text for passage in world.passages)
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == "b1d9577fe62f"
    assert world.passages == World(seed=7, size=60).passages
    assert world.passages != World(seed=8, size=60).passages


def test_gold_passages_hold_the_answer() -> None:
    world = World(seed=7, size=60)
    for question in world.questions(40):
        told = " ".join(world.passage[name].text for name in question.gold_passages)
        assert question.answers[0] in told
        assert is_correct(question, question.answers[0])
        assert not is_correct(question, "nobody knows")


def test_contexts_have_the_composition_asked_for() -> None:
    world = World(seed=7, size=60)
    question = world.questions(5)[0]
    context = world.context(question, 10, noise=0.5, redundancy=0.2)
    assert len(context) == 10
    assert set(question.gold_passages) <= {passage.id for passage in context}
    assert sum("~" in passage.id for passage in context) == 2
    assert not set(question.gold_passages) & {p.id for p in world.contexts.lacking(question)}


def test_the_separation_of_scores_by_hand_and_where_nothing_is_confused() -> None:
    separation = import_module("studies.common").separation
    assert separation([2, 4], [1, 3]).value == 0.75
    assert separation([1], [1]).value == 0.5 and separation([], [1]) is None
    value, interval, n = separation([0.8, 0.9, 0.7], [0.1, 0.2])
    assert (value, n) == (1.0, 5) and interval.lower == pytest.approx(math.sqrt(0.025))
