"""``surerag reproduce dense``: what it prints, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from surerag.cli.display import console
from surerag.cli.readers import ReaderChoice
from surerag.cli.reproduce_dense import run_dense
from surerag.encoders import HashingEncoder
from surerag.world import World
from tests.evaluation.dense.truthful import truthful


def test_the_study_is_printed_and_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    world = World(seed=5, size=60)
    monkeypatch.setattr("surerag.evaluation.dense.study.World", lambda seed: world)
    monkeypatch.setattr("surerag.cli.reproduce_dense.packaged_minilm", HashingEncoder)
    monkeypatch.setattr(ReaderChoice, "build", lambda _: truthful(world, 20))
    monkeypatch.setattr(console, "_width", 80)
    file = tmp_path / "new" / "dense.json"
    run_dense(ReaderChoice(None, None, "OPENAI_API_KEY"), seed=5, n=20, file=file)
    printed = capfd.readouterr().out
    assert "DENSE-RAG on the closed world, seed 5, n = 20 questions" in printed
    assert "Where answers are lost" in printed
    stored = json.loads(file.read_text())
    assert (stored["seed"], stored["n"], stored["entailment"]) == (5, 20, "judge")
    assert [one["k"] for one in stored["measured"]] == [5, 10]
