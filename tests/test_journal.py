"""The journal: nothing answered is lost, whatever is cut off."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Literal

import pytest

from surerag.errors import ConfigurationError, InputError, StorageError
from surerag.journal import Journal, OnChange
from tests.failing_disk import FailingDisk

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


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_a_write_that_fails_leaves_no_trace_and_nothing_more_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, failing: Literal["write", "fsync"]
) -> None:
    file = tmp_path / "j"
    whole = filled(file)
    with Journal(file, RUN) as journal:
        monkeypatch.setattr("surerag.lines.os", FailingDisk(failing, code))
        with pytest.raises(StorageError, match=f"{os.strerror(code)}.*what was answered before is kept"):
            journal.put({"lost": "x" * 100})
        monkeypatch.undo()
        assert file.read_bytes() == whole
        assert journal.get("lost") is None
        assert journal.get("key 1 1") == [1, 1, "ä"]
        with pytest.raises(StorageError):  # the disk may have recovered, but what was asked since is lost
            journal.check()
        with pytest.raises(StorageError):
            journal.put({"more": 1})
    with Journal(file, RUN) as journal:
        assert journal.found == 4
        journal.put({"more": 1})
    with Journal(file, RUN) as journal:
        assert journal.get("more") == 1


def test_a_file_that_may_not_grow_any_more(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    file = tmp_path / "j"
    whole = filled(file)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(file, RUN) as journal:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 50, before[1]))
        try:
            with pytest.raises(StorageError, match="Free some space"):
                journal.put({"long": "x" * 100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read_bytes() == whole


def test_where_not_even_the_cut_succeeds_the_next_run_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "j"
    whole = filled(file)
    with Journal(file, RUN) as journal:
        disk = FailingDisk("write", errno.EIO)
        monkeypatch.setattr(disk, "ftruncate", FailingDisk("ftruncate", errno.EIO).ftruncate, raising=False)
        monkeypatch.setattr("surerag.lines.os", disk)
        with pytest.raises(StorageError):
            journal.put({"lost": 1})
        monkeypatch.undo()
        assert len(file.read_bytes()) > len(whole)
        with pytest.raises(StorageError):
            journal.put({"more": 1})
    with Journal(file, RUN) as journal:
        assert (journal.found, journal.get("more")) == (4, None)
    assert file.read_bytes() == whole


def test_an_interrupted_write_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "j"
    whole = filled(file)

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with Journal(file, RUN) as journal:
        monkeypatch.setattr("surerag.lines.os.fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.put({"a long answer": "x" * 100})
        monkeypatch.undo()
        assert file.read_bytes() == whole
        journal.put({"short": 1})
    with Journal(file, RUN) as journal:
        assert (journal.found, journal.get("short")) == (5, 1)


@pytest.mark.parametrize("on_change", ["error", "reuse", "restart"])
@pytest.mark.parametrize(
    "foreign", [b'{"date": "2026-01-01", "mood": "fine"}\n', b"Dear diary,", b"[1]\n[2]\n", b"\x89PNG"]
)
def test_a_file_that_somebody_else_wrote_is_left_alone(
    tmp_path: Path, foreign: bytes, on_change: OnChange
) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_bytes(foreign)
    with pytest.raises(InputError, match=r"is not a journal of answers.*move that file away"):
        Journal(file, RUN, on_change=on_change)
    assert file.read_bytes() == foreign


@pytest.mark.parametrize(
    "line", [b'{"key": ["a"], "answer": 1}', b'{"mood": "fine"}', b"[1]", b'{"run": 3}', b'{"run": null}']
)
def test_a_last_line_that_no_kill_can_leave_is_told(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "j"
    damaged = filled(file) + line
    for end in (b"", b"\n"):
        file.write_bytes(damaged + end)
        with pytest.raises(InputError, match="damaged in line 6"):
            Journal(file, RUN)
        assert file.read_bytes() == damaged + end


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"key":"a","answer":' + b"9" * 5_000 + b"}"])
def test_a_line_too_deep_or_too_long_to_read_is_damage(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "j"
    file.write_bytes(filled(file) + line + b'\n{"key":"b","answer":1}\n')
    with pytest.raises(InputError, match="damaged in line 6"):
        Journal(file, RUN)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("mine")
    with pytest.raises(StorageError, match="file stands where a folder is needed"):
        Journal(tmp_path / "report" / "journal.jsonl", RUN)
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(StorageError, match="a folder where a file is"):
        Journal(tmp_path / "journal.jsonl", RUN)
