"""``surerag reproduce dynqr``: what it prints, what it leaves behind, and what it trains from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surerag.cli.display import console
from surerag.cli.readers import ReaderChoice
from surerag.cli.reproduce_dynqr import run_dynqr
from surerag.encoders import HashingEncoder
from surerag.world import World, embedded_reader_path
from tests.evaluation.dynqr.searching import searching

CHOICE = ReaderChoice(None, None, "OPENAI_API_KEY")


def test_the_study_is_printed_and_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    worlds = {seed: World(seed=seed, size=60) for seed in (5, 6)}
    monkeypatch.setattr("surerag.evaluation.dynqr.study.World", lambda seed: worlds[seed])
    monkeypatch.setattr("surerag.cli.reproduce_dynqr.packaged_minilm", HashingEncoder)
    monkeypatch.setattr(ReaderChoice, "build", lambda _: searching(*worlds.values(), n=30))
    monkeypatch.setattr(console, "_width", 80)
    file = tmp_path / "new" / "dynqr.json"
    run_dynqr(CHOICE, seed=5, n=30, file=file, training=False)
    printed = capfd.readouterr().out
    assert "DynQR on the closed world, seed 5, n = 30" in printed
    assert "What it was to show" in printed
    stored = json.loads(file.read_text())
    assert (stored["seed"], stored["n"], stored["calibration_seed"], stored["training"]) == (5, 30, 6, None)
    assert len(stored["records"]) == 30


@pytest.mark.parametrize(
    ("base", "training", "expected"),
    [
        ("my/base", True, "my/base"),
        (None, True, str(embedded_reader_path("small"))),
        ("my/base", False, None),
    ],
)
def test_the_base_is_what_was_named_or_the_small_reader(
    base: str | None, training: bool, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Exception):
        """Ends the study before it begins."""

    def study(*_: Any, base: str | None, **__: Any) -> None:
        raise Asked(base)

    monkeypatch.setattr("surerag.cli.reproduce_dynqr.dynqr_study", study)
    monkeypatch.setattr("surerag.cli.reproduce_dynqr.packaged_minilm", HashingEncoder)
    monkeypatch.setattr(ReaderChoice, "build", lambda _: None)
    with pytest.raises(Asked) as asked:
        run_dynqr(CHOICE, seed=5, n=30, file=None, base=base, training=training)
    assert asked.value.args == (expected,)
    assert expected is None or expected == "my/base" or (Path(expected) / "config.json").is_file()
