"""``surerag reproduce seper``: what it prints, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from surerag.cli.display import console
from surerag.cli.readers import ReaderChoice
from surerag.cli.reproduce import run_seper
from surerag.encoders import HashingEncoder
from surerag.world import World
from tests.evaluation.seper.knowing import KnowingReader


def test_the_study_is_printed_written_and_drawn(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    world = World(seed=5, size=60)
    monkeypatch.setattr("surerag.evaluation.seper.study.World", lambda seed: world)
    monkeypatch.setattr("surerag.cli.reproduce.packaged_minilm", HashingEncoder)
    monkeypatch.setattr(ReaderChoice, "build", lambda _: KnowingReader(world, n=20))
    monkeypatch.setattr(console, "_width", 80)
    file, plots = tmp_path / "new" / "seper.json", tmp_path / "plots"
    choice = ReaderChoice(None, None, "OPENAI_API_KEY")
    run_seper(choice, seed=5, n=20, file=file, plots=plots, entailment="exact")
    printed = capfd.readouterr().out
    assert "SePer on the closed world, seed 5, n = 20 questions" in printed
    stored = json.loads(file.read_text())
    assert (stored["seed"], stored["n"], stored["entailment"]) == (5, 20, "exact")
    assert {cost["stage"] for cost in stored["costs"]} == {"known utility", "retrievers"}
    assert len(list(plots.glob("*.svg"))) == len(list(plots.glob("*.png"))) == 4
