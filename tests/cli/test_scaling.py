"""Commands whose units are made elsewhere, or in part: the same files, and refusals in words."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from surerag.cli import compare_runs
from surerag.cli.entailers import EntailmentChoice
from surerag.cli.readers import ReaderChoice
from surerag.encoders import HashingEncoder
from surerag.entailment import NLIEntailer
from surerag.runs import Maker, Part, Run, Task
from surerag.scale.engine_cluster import Actors
from surerag.scale.units import Job, made_alone
from tests.cli.towns import corpus
from tests.evaluation.noting import NotingReader, write_rows
from tests.scale.clusters import ray

RAY = ("--engine", "ray", "--actors", "1:2")


class Elsewhere:
    """An engine without Ray: a worker is built of what would be sent, and makes units in its own folders."""

    at_once = 2

    def __init__(self, job: Job, actors: Actors, address: str | None) -> None:
        self.maker = job.build(json.loads(json.dumps(job.settings)))

    def __call__(self, run: Run, tasks: Iterable[Task], maker: Maker) -> Iterator[Part]:
        for task in reversed(list(tasks)):
            made = made_alone(self.maker, task.unit, task.read(), task.source, run.begun(task.unit))
            yield made.adopted(run)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surerag.evaluation.inputs.dataset.UNIT", 4)
    for module in ("systems.units", "systems.comparing"):
        monkeypatch.setattr(f"surerag.evaluation.{module}.UNIT", 8)
    monkeypatch.setattr(compare_runs, "UNIT", 8)
    monkeypatch.setattr("surerag.cli.trace_runs.PART", 8)
    monkeypatch.setattr(compare_runs, "packaged_minilm", HashingEncoder)
    monkeypatch.setattr("surerag.cli.unit_makers.packaged_minilm", HashingEncoder)
    monkeypatch.setattr("surerag.cli.scaling.RayUnits", Elsewhere)
    monkeypatch.setattr("surerag.cli.scaling.cluster", _cluster)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    yield ray((2, 1))


class Command:
    """A command with all that it needs, its folder left out."""

    def __init__(self, name: str, folder: Path, surerag: Any) -> None:
        self.name, self._surerag = name, surerag
        questions, documents = corpus(folder)
        asked = (questions, "--documents", documents, "--model", "m")
        self._given: tuple[object, ...] = {
            "evaluate": (
                write_rows(folder / "rows.jsonl"),
                "--model",
                "m",
                "--entailment",
                "judge",
                "--extremes",
                0,
            ),
            "compare": (*asked, "--systems", "plain,none,compressed"),
            "record": (*asked, "--n-samples", 2),
            "calibrate": (*asked, "--method", "l-rag", "--timed", 0, "--target", "best"),
        }[name]

    def __call__(self, output: Path, *more: object, reader: Any = None) -> Any:
        reader = reader or NotingReader(local=True)
        return self._surerag(self.name, *self._given, "--output", output, *more, reader=reader)


@pytest.fixture(params=["evaluate", "compare", "record", "calibrate"])
def command(request: pytest.FixtureRequest, tmp_path: Path, surerag: Any) -> Command:
    return Command(request.param, tmp_path, surerag)


def made(folder: Path) -> dict[str, bytes]:
    """Return the files of a run, but for those of times, and what stands beside it."""
    found = [*folder.rglob("*.parquet"), *folder.rglob("answers-*")]
    return {file.name: file.read_bytes() for file in found if "times" not in file.name and "-" in file.name}


def about(folder: Path) -> dict[str, Any]:
    [manifest] = folder.rglob("manifest.jsonl")
    told: dict[str, Any] = json.loads(manifest.read_text().splitlines()[0])["about"]
    return told


def test_units_of_workers_are_those_of_one_process(command: Command, tmp_path: Path) -> None:
    here, away = command(tmp_path / "here"), command(tmp_path / "away", *RAY)
    assert here.code == away.code == 0, away.err
    assert len(made(tmp_path / "here")) >= 3
    assert made(tmp_path / "away") == made(tmp_path / "here")
    again = NotingReader(local=True)
    assert command(tmp_path / "away", reader=again).code == 0 and again.asked == []


def test_shards_together_are_the_whole(command: Command, tmp_path: Path) -> None:
    assert command(tmp_path / "whole").code == 0
    shards = [tmp_path / "first", tmp_path / "second"]
    for number, folder in enumerate(shards, start=1):
        ran = command(folder, "--shard", f"{number}/2")
        assert ran.code == 0, ran.err
    first, second = map(made, shards)
    assert first and second and not first.keys() & second.keys()
    assert first | second == made(tmp_path / "whole")
    assert about(shards[1]) == {**about(tmp_path / "whole"), "shard": "2/2"}
    ran = command(shards[1], "--shard", "1/2")
    assert ran.code == 1 and "shard was '2/2' and is '1/2'" in ran.err


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--actors", "2"), 2, "goes with --engine ray"),
        (("--address", "auto"), 2, "goes with --engine ray"),
        (("--engine", "ray", "--actors", "8:1"), 1, "actors must be at least 1, got 8 to 1"),
        (("--engine", "ray", "--actors", "many"), 1, "actors are a number, or the least and the most"),
        (("--engine", "ray", "--actors", "3"), 1, "room for 2: the cluster has 2 CPUs and 1 GPUs on 1 nodes"),
        (
            ("--engine", "ray", "--gpus-per-actor", "2"),
            1,
            "1 actors of 1 CPUs and 2 GPUs: at least 1 must fit",
        ),
        (("--engine", "spark"), 2, "'spark' is not one of"),
        (("--shard", "4/3"), 1, "a shard is a number from 1 and how many there are, got '4/3'"),
        (("--max-failed", "2"), 2, "less than or equal to 1"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_asked(
    surerag: Any, tmp_path: Path, options: tuple[str, ...], code: int, words: str
) -> None:
    reader = NotingReader(local=True)
    ran = Command("evaluate", tmp_path, surerag)(tmp_path / "out", *options, reader=reader)
    assert ran.code == code and words in ran.err.replace("│ ", ""), ran.err
    assert reader.asked == []


def test_what_goes_with_one_process_alone_says_so(surerag: Any, tmp_path: Path) -> None:
    record, evaluate = Command("record", tmp_path, surerag), Command("evaluate", tmp_path, surerag)
    for ran in (
        record(tmp_path / "out", "--hash-texts", *RAY),
        record(tmp_path / "out", "--hash-texts", "--shard", "1/2"),
        evaluate(tmp_path / "out", "--reuse", *RAY),
    ):
        assert ran.code == 2 and "goes without --engine ray" in ran.err.replace("│ ", "")
    for command in ("compare", "calibrate"):
        ran = surerag(command, "--trace", tmp_path, "--shard", "1/2")
        assert ran.code == 2 and "--engine, --shard" in ran.err


def test_workers_with_other_documents_are_refused(surerag: Any, tmp_path: Path, monkeypatch: Any) -> None:
    command = Command("record", tmp_path, surerag)
    monkeypatch.setattr("surerag.cli.trace_runs.corpus_digest", lambda _: "of other ones")
    ran = command(tmp_path / "out", *RAY)
    assert ran.code == 1 and "holds other documents on this worker" in ran.err


def test_judgements_are_not_carried_from_unit_to_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(NLIEntailer, "from_pretrained", lambda model, **more: told.update(more, model=model))
    EntailmentChoice.chosen("nli:mine", ReaderChoice("m", None, "NO_KEY")).loaded()
    assert told == {"model": "mine", "cached_pairs": 0}


def test_gpus_are_for_workers(surerag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    command = Command("evaluate", tmp_path, surerag)
    assert command(tmp_path / "out", *RAY).code == 0 and os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    assert command(tmp_path / "gpus", "--engine", "ray", "--gpus-per-actor", 1).code == 0
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_a_run_stops_when_too_many_rows_fail(
    surerag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Choosy(NotingReader):
        def generate(self, prompts: Any, sampling: Any) -> Any:
            if any("person 3" in str(prompt) for prompt in prompts):
                raise RuntimeError("no")
            return super().generate(prompts, sampling)

    monkeypatch.setattr("surerag.runs.units.JUDGED_FROM", 8)
    command = Command("evaluate", tmp_path, surerag)
    first = Choosy()
    ran = command(tmp_path / "out", "--max-failed", 0.2, reader=first)
    assert ran.code == 1 and "2 of the 8 rows that were made failed, more than 0.2 of them" in ran.err
    again = NotingReader()
    assert command(tmp_path / "out", reader=again).code == 0
    assert not set(first.asked) & set(again.asked)
