"""Recorded readers and entailers: nothing is asked twice, and a failure is not kept."""

from __future__ import annotations

import errno
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from surerag.drivers import run, run_many
from surerag.effects import Program, generate
from surerag.entailment import ExactEntailer
from surerag.errors import StorageError
from surerag.journal import Journal, Memory
from surerag.readers.scripted import ScriptedReader
from surerag.recording import RecordedEntailer, RecordedReader, while_kept
from surerag.services import Services
from surerag.types import Generation, Pair, Sampling
from tests.evaluation.noting import NotingReader
from tests.failing_disk import FailingDisk

RUN = {"samples": 10, "reader": "r"}


@pytest.mark.parametrize("local", [True, False])
def test_reader_is_asked_once_and_answers_the_same_from_the_file(tmp_path: Path, local: bool) -> None:
    sampling = Sampling(n=3, temperature=1.0)
    first = NotingReader(local=local)
    with Journal(tmp_path / "j", RUN) as journal:
        fresh = RecordedReader(first, journal).generate(["a", "b", "a"], sampling)
    again = NotingReader(local=local)
    with Journal(tmp_path / "j", RUN) as journal:
        reader = RecordedReader(again, journal)
        assert reader.generate(["a", "b", "a"], sampling) == fresh
        assert again.asked == []
        reader.generate(["b", "c"], sampling)
        reader.generate(["b"], Sampling(n=3, temperature=1.0, seed=1))
    assert sorted(first.asked) == ["a", "b"]
    assert again.asked == ["c", "b"]
    assert all(sample.trace is not None and len(sample.trace) == 1 for row in fresh for sample in row)


def test_threads_that_want_the_same_ask_once() -> None:
    inner = NotingReader(seconds=0.05)
    reader = RecordedReader(inner, Memory())
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: reader.generate(["same", "too"], Sampling()), range(8)))
    assert sorted(inner.asked) == ["same", "too"]
    assert all(one == found[0] for one in found)


def test_a_failure_is_not_kept_and_reaches_all_who_wait() -> None:
    class Failing(NotingReader):
        fails = True

        def generate(self, prompts, sampling) -> list[list[Generation]]:
            time.sleep(0.05)
            if self.fails:
                raise RuntimeError("down")
            return super().generate(prompts, sampling)

    inner = Failing()
    reader = RecordedReader(inner, Memory())
    errors = []

    def ask() -> None:
        try:
            reader.generate(["same"], Sampling())
        except RuntimeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == ["down"] * 4
    inner.fails = False
    assert len(reader.generate(["same"], Sampling())) == 1


def test_entailer_is_asked_once() -> None:
    asked: list[Pair] = []

    class Counting(ExactEntailer):
        def entail(self, pairs):
            asked.extend(pairs)
            return super().entail(pairs)

    entailer = RecordedEntailer(Counting(), Memory())
    pairs = [Pair("Velm", "velm"), Pair("Orun", "Velm"), Pair("Velm", "velm", "Where?")]
    once = entailer.entail(pairs)
    assert np.array_equal(once, [[0, 0, 1], [1, 0, 0], [0, 0, 1]])
    assert np.array_equal(entailer.entail(pairs[::-1]), once[::-1])
    assert asked == pairs
    assert entailer.entail([]).shape == (0, 3)


@pytest.mark.parametrize("local", [True, False])
def test_nothing_is_asked_once_answers_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    inner = NotingReader(local=local)
    with Journal(tmp_path / "j", RUN) as journal:
        reader = RecordedReader(inner, journal)
        known = reader.generate(["known"], Sampling())
        with monkeypatch.context() as patched:
            patched.setattr("surerag.lines.os", FailingDisk("fsync", errno.EDQUOT))
            with pytest.raises(StorageError, match="is kept"):
                reader.generate(["lost"], Sampling())
        for prompts in (["more"], ["lost"], ["more", "known", "and more"]):
            with pytest.raises(StorageError):
                reader.generate(prompts, Sampling())
        assert inner.asked == ["known", "lost"]
        assert reader.generate(["known"], Sampling()) == known


@pytest.mark.parametrize("return_exceptions", [True, False])
def test_a_run_over_many_ends_where_a_row_of_it_would_fail_alone(return_exceptions: bool) -> None:
    class Full(Memory):
        def check(self) -> None:
            raise StorageError("full")

    reader = RecordedReader(NotingReader(), Full())
    programs = [generate([str(number)], Sampling()) for number in range(3)]
    with pytest.raises(StorageError, match="full"):
        run_many(programs, Services(reader=reader), return_exceptions=return_exceptions)


def test_a_program_asks_nothing_more_once_answers_cannot_be_kept() -> None:
    class Filling(Memory):
        full = False

        def check(self) -> None:
            if self.full:
                raise StorageError("full")

    def twice() -> Program[str]:
        try:
            yield from generate(["fails"], Sampling())
        except RuntimeError as error:
            [[reply]] = yield from generate([str(error)], Sampling())
        return reply.text

    answers = Filling()
    reader = ScriptedReader([RuntimeError("passed on"), "fine"])
    assert run(while_kept(twice(), answers), Services(reader=reader)) == "fine"
    assert reader.prompts[-1] == "passed on"
    program = while_kept(twice(), answers)
    next(program)
    answers.full = True
    with pytest.raises(StorageError):
        program.throw(RuntimeError("asks no more"))
