"""``surerag reproduce``: what each study prints, what it leaves behind, and when studies are loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surerag.cli.display import console
from surerag.cli.readers import ReaderChoice
from surerag.cli.reproduce import run_dense, run_dynqr, run_seper
from surerag.encoders import HashingEncoder
from surerag.readers.scripted import ScriptedReader
from surerag.world import World, embedded_reader_path
from surerag.world.regimes import REGIMES, TODAY, regime
from surerag_studies.worlds import world_of
from tests.studies.dense_rag.truthful import truthful
from tests.studies.dynqr.searching import searching
from tests.studies.seper.knowing import KnowingReader
from tests.world.clairvoyant import clairvoyant

CHOICE = ReaderChoice(None, None, "OPENAI_API_KEY")


def test_reproduce_prints_the_study_and_stores_it(surerag, tmp_path: Path) -> None:
    reader = clairvoyant(World(seed=3), World(seed=4), n=60)
    ran = surerag(
        "reproduce", "l-rag", "--seed", 3, "-n", 60, "--json", tmp_path / "a" / "l.json", reader=reader
    )
    assert ran.code == 0, ran.err
    assert "seed 3, n = 60" in ran.out
    assert "625 ms" in ran.out
    assert json.loads((tmp_path / "a" / "l.json").read_text())["seed"] == 3


def test_card_prints_every_task_and_what_was_missed(surerag, tmp_path: Path) -> None:
    reader = ScriptedReader(lambda _: "yes", entropy=0.5)
    ran = surerag("reproduce", "card", "--seed", 5, "-n", 20, "--json", tmp_path / "card.json", reader=reader)
    assert ran.code == 0, ran.err
    assert "missed" in ran.out
    stored = json.loads((tmp_path / "card.json").read_text())
    rows = {row["task"]: row for row in stored["rows"]}
    assert stored["model"] == "scripted"
    # A reader that always says yes finds every context sufficient, also the 20 that are not.
    assert rows["sufficiency, answer there"]["value"] == 1.0
    assert rows["sufficiency, answer not there"]["value"] == 0.0
    assert all(row["task"] in ran.out for row in stored["rows"])


def test_missing_package_is_named_with_its_pip_line(surerag, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_scipy(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'scipy.stats'", name="scipy.stats")

    monkeypatch.setattr("surerag.cli.reproduce.run_card", without_scipy)
    ran = surerag("reproduce", "card")
    assert ran.code == 1
    assert "the package 'scipy' is not installed" in ran.err
    assert 'pip install "surerag[demo]"' in ran.err
    assert "Traceback" not in ran.err


def test_the_seper_study_is_printed_written_and_drawn(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    world = World(seed=5, size=60)
    monkeypatch.setattr("surerag_studies.seper.study.world_of", lambda *_: world)
    monkeypatch.setattr("surerag.cli.reproduce.packaged_minilm", HashingEncoder)
    monkeypatch.setattr(ReaderChoice, "build", lambda _: KnowingReader(world, n=20))
    monkeypatch.setattr(console, "_width", 80)
    file, plots = tmp_path / "new" / "seper.json", tmp_path / "plots"
    run_seper(CHOICE, seed=5, n=20, file=file, plots=plots, entailment="exact")
    printed = capfd.readouterr().out
    assert "SePer on the closed world, seed 5, n = 20 questions" in printed
    stored = json.loads(file.read_text())
    assert (stored["seed"], stored["n"], stored["entailment"]) == (5, 20, "exact")
    assert {cost["stage"] for cost in stored["costs"]} == {"known utility", "retrievers"}
    assert len(list(plots.glob("*.svg"))) == len(list(plots.glob("*.png"))) == 4


def test_the_dense_study_is_printed_and_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    world = World(seed=5, size=60)
    monkeypatch.setattr("surerag_studies.dense_rag.study.world_of", lambda regime, n, seed: world)
    monkeypatch.setattr("surerag.cli.reproduce.packaged_minilm", HashingEncoder)
    monkeypatch.setattr(ReaderChoice, "build", lambda _: truthful(world, 20))
    monkeypatch.setattr(console, "_width", 80)
    file = tmp_path / "new" / "dense.json"
    run_dense(CHOICE, seed=5, n=20, file=file)
    printed = capfd.readouterr().out
    assert "DENSE-RAG on the closed world, seed 5, n = 20 questions" in printed
    assert "Where answers are lost" in printed
    stored = json.loads(file.read_text())
    assert (stored["seed"], stored["n"], stored["entailment"]) == (5, 20, "judge")
    assert [one["k"] for one in stored["measured"]] == [5, 10]


def test_the_dynqr_study_is_printed_and_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    worlds = {seed: World(seed=seed, size=60) for seed in (5, 6)}
    monkeypatch.setattr("surerag_studies.dynqr.study.world_of", lambda _, n, seed: worlds[seed])
    monkeypatch.setattr("surerag.cli.reproduce.packaged_minilm", HashingEncoder)
    monkeypatch.setattr(ReaderChoice, "build", lambda _: searching(*worlds.values(), n=30))
    monkeypatch.setattr(console, "_width", 80)
    file = tmp_path / "new" / "dynqr.json"
    run_dynqr(CHOICE, seed=5, n=30, file=file, training=False)
    printed = capfd.readouterr().out
    assert "DynQR on the closed world, seed 5, n = 30" in printed
    assert "Claims tested" in printed
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

    monkeypatch.setattr("surerag_studies.dynqr.study.dynqr_study", study)
    monkeypatch.setattr("surerag.cli.reproduce.packaged_minilm", HashingEncoder)
    monkeypatch.setattr(ReaderChoice, "build", lambda _: None)
    with pytest.raises(Asked) as asked:
        run_dynqr(CHOICE, seed=5, n=30, file=None, base=base, training=training)
    assert asked.value.args == (expected,)
    assert expected is None or expected == "my/base" or (Path(expected) / "config.json").is_file()


def test_a_study_in_a_regime_says_so_and_an_unknown_regime_is_refused(surerag, tmp_path: Path) -> None:
    which = regime("namesakes")
    reader = clairvoyant(world_of(which, 60, 3), world_of(which, 60, 4), n=60)
    ran = surerag(
        "reproduce", "l-rag", "--seed", 3, "-n", 60, "--regime", "namesakes", "--json", tmp_path / "l.json",
        reader=reader,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert "L-RAG on the closed world, regime namesakes, seed 3, n = 60" in ran.out
    assert json.loads((tmp_path / "l.json").read_text())["regime"] == "namesakes"
    refused = surerag("reproduce", "l-rag", "--regime", "namesake")
    assert refused.code == 1
    assert "There are today, changed-facts" in refused.err


def test_regimes_are_printed_beside_the_real_reader_and_kept(surerag, tmp_path: Path) -> None:
    worlds = [world_of(regime(name), 60, 3) for name in (TODAY.name, *REGIMES)]
    reader = clairvoyant(*worlds, n=60)
    file, kept = tmp_path / "regimes.json", tmp_path / "kept"
    command = ("reproduce", "regimes", "--seed", 3, "-n", 60, "--json", file, "--cache", kept)
    ran = surerag(*command, reader=reader)
    assert ran.code == 0, ran.err
    assert "NQ and TriviaQA: records of Llama-3.1-8B-Instruct" in ran.out
    stored = json.loads(file.read_text())
    assert [world["name"] for world in stored["worlds"]] == [TODAY.name, *REGIMES]
    assert len(list(kept.iterdir())) == 7
