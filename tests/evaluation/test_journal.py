"""The journal: nothing answered is lost, whatever is cut off; nothing is asked twice."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.journal import Journal, Memory
from surerag.evaluation.recording import RecordedEntailer, RecordedReader
from surerag.types import Generation, Pair, Sampling
from tests.evaluation.noting import NotingReader

RUN = {"samples": 10, "reader": "r"}


def filled(file: Path) -> bytes:
    with Journal(file, RUN) as journal:
        for number in range(2):
            journal.put({f"key {number} {part}": [number, part, "ä"] for part in range(2)})
    return file.read_bytes()


def test_wherever_it_is_cut_whole_lines_stay_and_it_goes_on(tmp_path: Path) -> None:
    whole = filled(tmp_path / "whole")
    for length in range(len(whole) + 1):
        file = tmp_path / "cut"
        file.write_bytes(whole[:length])
        # A line that lacks nothing but its end is whole.
        kept = max(0, whole[:length].count(b"\n") - 1)
        lacks_end = whole[length : length + 1] == b"\n" and length > whole.index(b"\n")
        with Journal(file, RUN) as journal:
            assert journal.found == kept + lacks_end
            journal.put({"more": length})
        with Journal(file, RUN) as journal:
            assert journal.found == kept + lacks_end + 1
            assert journal.get("more") == length
            assert journal.get("key 0 0") == ([0, 0, "ä"] if kept + lacks_end else None)


def test_another_run_is_refused_and_says_what_differs(tmp_path: Path) -> None:
    file = tmp_path / "j"
    filled(file)
    now = {"samples": 20, "reader": "r"}
    with pytest.raises(ConfigurationError, match="samples was 10 and is 20") as caught:
        Journal(file, now)
    assert "reader" not in str(caught.value)
    assert "--reuse" in str(caught.value)
    with Journal(file, now, on_change="reuse") as journal:
        assert journal.found == 4
    with Journal(file, now) as journal:  # it belongs to that run from now on
        assert journal.found == 4
    with Journal(file, RUN, on_change="restart") as journal:
        assert journal.found == 0


def test_damage_in_the_middle_is_told_not_skipped(tmp_path: Path) -> None:
    file = tmp_path / "j"
    lines = filled(file).split(b"\n")
    lines[3] = lines[3][:-4]
    file.write_bytes(b"\n".join(lines))
    with pytest.raises(InputError, match="damaged in line 4"):
        Journal(file, RUN)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with Journal(tmp_path / "j", RUN), pytest.raises(ConfigurationError, match="another process"):
        Journal(tmp_path / "j", RUN)


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
