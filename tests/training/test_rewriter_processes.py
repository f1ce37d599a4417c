"""Killed anywhere, exports included, it ends with the same model; two processes find the weights of one."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from surerag.training.rewriter import AlignOptions, DistilOptions, FineTuning, Query, align, distil
from tests.kills import KILLS
from tests.training.rewriter_models import Talker, teaching, tiny_base

TOWNSFOLK = [Query(f"Where was Ada{number} raised?") for number in range(24)]
TUNE = FineTuning(learning_rate=2e-3, batch=6, micro_batch=3, epochs=2, validation=0.25, device="cpu")
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")


def trained(base: Path, folder: Path, tune: FineTuning = TUNE) -> None:
    """Distil and align."""
    done = distil(TOWNSFOLK, Talker(teaching), base, folder / "distil", DistilOptions(tune))
    triplets = [(q.text, q.text.replace("raised", "born"), "no idea") for q in TOWNSFOLK]
    align(triplets, done.model, folder / "align", AlignOptions(fine_tuning=tune))


def killed_at(base: Path, folder: Path, change: int, total: Path) -> None:
    """Train, and be killed at some change of the folder; note how many there were."""
    changes = 0

    def watch(event: str, given: tuple[Any, ...]) -> None:
        nonlocal changes
        writes = event == "open" and (given[1] is None or any(mode in str(given[1]) for mode in "wax+"))
        if (writes or event in CHANGES) and str(folder) in str(given[0]):
            changes += 1
            if changes == change:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    trained(base, folder)
    total.write_text(str(changes))


def shared(base: Path, folder: Path, tune: FineTuning, rank: int, port: int) -> None:
    """Be one of two processes."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true",
    }  # fmt: skip
    trained(base, folder, tune)


@pytest.fixture(scope="module")
def processes() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.training.test_rewriter_processes", "trl.trainer.sft_trainer", "trl.trainer.dpo_trainer"]
    )
    return context


def weights(folder: Path) -> list[bytes]:
    names = ("distil/model", "align/model")
    return [(folder / name / "model.safetensors").read_bytes() for name in names]


@pytest.mark.timeout(1800)
def test_killed_at_random_points_it_ends_with_the_same_models(tmp_path: Path, processes: Any) -> None:
    base, total = tiny_base(tmp_path / "base"), tmp_path / "total"
    calm = processes.Process(target=killed_at, args=(base, tmp_path / "calm", 0, total))
    calm.start()
    calm.join()
    assert calm.exitcode == 0
    expected, changes = weights(tmp_path / "calm"), int(total.read_text())
    rng, kills, rounds = random.Random(7), 0, 0
    while kills < KILLS:
        rounds += 1
        folder, left = tmp_path / f"{rounds}", changes
        while True:
            # Later and later, so that the ends of both stages come under it, too.
            change = rng.randrange(1, max(left, 2)) if kills < KILLS else 0
            process = processes.Process(target=killed_at, args=(base, folder, change, total))
            process.start()
            process.join()
            if process.exitcode == 0:
                break
            assert process.exitcode == -signal.SIGKILL
            kills += 1
        assert weights(folder) == expected
        assert not list(folder.glob("*/checkpoints")) and not list(folder.glob("*/*.part"))
    assert kills == KILLS


@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform == "win32", reason="gloo")
def test_two_processes_find_the_weights_of_one(tmp_path: Path, processes: Any) -> None:
    base = tiny_base(tmp_path / "base")
    tune = FineTuning(learning_rate=1e-3, batch=6, micro_batch=3, epochs=2, validation=0, device="cpu")
    trained(base, tmp_path / "one", tune)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pair = [
        processes.Process(target=shared, args=(base, tmp_path / "two", tune, rank, port)) for rank in range(2)
    ]
    for process in pair:
        process.start()
    for process in pair:
        process.join()
    assert [process.exitcode for process in pair] == [0, 0]
    for stage in ("distil", "align"):
        one, two = (
            load_file(tmp_path / folder / stage / "model" / "model.safetensors") for folder in ("one", "two")
        )
        start = load_file(base / "model.safetensors")
        assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-4
        assert max(float((one[name] - start[name]).abs().max()) for name in one) > 1e-3
