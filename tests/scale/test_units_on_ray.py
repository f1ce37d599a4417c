"""Units made by actors on two nodes are those of one process, whatever ends meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from surerag.records.schema import TRACE
from tests.evaluation.noting import notes_of
from tests.scale.digests import digests
from tests.scale.unit_makers import PART, QUESTIONS
from tests.snippets import ROOT
from tests.waiting import eventually

pytest.importorskip("ray", reason="of the extra `ray`")
pytestmark = pytest.mark.timeout(900)

UNITS = QUESTIONS // PART
PATHS = [str(ROOT), *(str(ROOT / name) for name in ("src", "integrations", "studies"))]
# One thread everywhere: with another number of them, the last digits of a model's numbers differ.
TOLD = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(PATHS), "HF_HUB_OFFLINE": "1"}


def begun(*arguments: str) -> subprocess.Popen[str]:
    """Begin a process of its own: Ray leaves threads and hooks behind."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, **TOLD},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("ray")
    process = begun("-m", "tests.scale.on_units", str(folder))
    _, said = process.communicate()
    assert process.returncode == 0, said[-4000:]
    told: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return told


def test_two_actors_make_what_one_process_makes(found: dict[str, Any]) -> None:
    plain, actors = found["plain"], found["actors"]
    assert actors["pids"] == 2 and len(plain["units"]) == 6
    assert actors["units"] == plain["units"]
    assert actors["asked"] == plain["asked"]


def test_the_embedded_reader_says_the_same_to_the_last_bit(found: dict[str, Any]) -> None:
    plain, actors = found["rows"]
    assert len(plain) == 3 and actors == plain


def test_committed_units_are_not_asked_for_again(found: dict[str, Any]) -> None:
    assert found["again"]["asked"] == found["actors"]["asked"]
    assert found["again"]["lines"] == 6


@pytest.mark.parametrize("what", ["before", "during", "made", "node"])
def test_an_actor_or_its_node_may_end(found: dict[str, Any], what: str) -> None:
    plain, ended = found["plain"], found[what]
    assert ended["said"] == ""
    assert ended["units"] == plain["units"] and ended["lines"] == 6
    # What was under way is asked for again: a unit of each actor at most.
    assert 0 <= ended["asked"] - plain["asked"] <= 2 * plain["asked"] / 6 * 1.5
    if what in ("during", "made"):
        assert ended["asked"] > plain["asked"]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("always", "unit 2 ended its worker 3 times"),
        ("refused", "ConfigurationError: there is no model of this name (on a worker at "),
        ("secrets", "the environment variable NOT_SET is not set on the worker"),
        (
            "crowded",
            "at least 3 must fit, and there is room for 2: the cluster has 2 CPUs and 0 GPUs on 2 nodes",
        ),
        ("gpus", "1 actors of 1 CPUs and 1 GPUs: at least 1 must fit, and there is room for 0"),
    ],
)
def test_what_cannot_work_is_told(found: dict[str, Any], what: str, words: str) -> None:
    assert words in found[what]["said"]


def test_who_interrupts_a_driver_ends_its_actors_too(tmp_path: Path) -> None:
    manifest = tmp_path / "out" / "manifest.jsonl"
    driver = begun("-m", "tests.scale.on_driver", str(tmp_path), "0.3")
    try:
        assert eventually(lambda: _units(manifest) or driver.poll() is not None, patience=300)
    finally:
        ended = driver.poll()
        os.killpg(driver.pid, signal.SIGINT)  # as a terminal does, to all that the command began
        _, said = driver.communicate()
    assert ended is None, said[-4000:]
    # Ray ends a driver whose node has ended first, before it can say that it was interrupted.
    assert driver.returncode != 0
    assert len(_units(manifest)) < UNITS
    _check_ended(tmp_path)


def test_a_driver_may_be_killed_at_any_step_of_a_commit(found: dict[str, Any], tmp_path: Path) -> None:
    manifest, notes = tmp_path / "out" / "manifest.jsonl", tmp_path / "notes"
    # In the second commit of each process: when one of its files is written, when all are, when it is named.
    for moment, expected in (("file", 1), ("files", 2), ("named", 4)):
        committed, asked = _units(manifest), len(notes_of(notes))
        driver = begun("-m", "tests.scale.on_driver", str(tmp_path), "0", moment)
        _, said = driver.communicate()
        assert driver.returncode == -signal.SIGKILL, said[-4000:]
        assert len(_units(manifest)) == expected
        assert not _asked_of(notes_of(notes)[asked:]) & set(committed)
        # What was under way was the same unit again, and another one of each actor at most.
        assert len(_asked_of(notes_of(notes)[asked:])) <= 2 + 2
        _check_ended(tmp_path)
    committed, asked = _units(manifest), len(notes_of(notes))
    again = begun("-m", "tests.scale.on_driver", str(tmp_path), "0")
    _, said = again.communicate()
    assert again.returncode == 0, said[-4000:]
    assert sorted(_units(manifest)) == list(range(UNITS))
    assert _asked_of(notes_of(notes)[asked:]) == set(range(UNITS)) - set(committed)
    assert digests(tmp_path / "out", TRACE) == found["plain"]["units"]


def _units(manifest: Path) -> list[int]:
    lines = manifest.read_text().rpartition("\n")[0].splitlines() if manifest.exists() else []
    return [line["unit"] for line in map(json.loads, lines) if "unit" in line]


def _asked_of(notes: Sequence[str]) -> set[int]:
    return {at // PART for at in range(QUESTIONS) for one in notes if f"Where was Person {at} born" in one}


def _check_ended(folder: Path) -> None:
    pids = [int(pid) for pid in (folder / "notes.pids").read_text().split()]
    assert eventually(lambda: not any(map(_alive, pids)))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False
