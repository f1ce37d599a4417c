"""Writing files: whole or not at all, and with an error that says how to mend it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from surerag.errors import StorageError
from surerag.storage import check_file, check_folder, storing, whole_lines, write_whole
from tests.failing_disk import FailingDisk


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EDQUOT, "Free some space"),
        (errno.EROFS, "Make it writable"),
        (errno.EACCES, "Make it writable"),
        (errno.ENOTDIR, "A file stands where a folder is needed"),
        (errno.EIO, "Check the disk"),
        (errno.ENAMETOOLONG, "Check the disk"),
    ],
)
def test_each_failure_says_how_to_mend_it(code: int, hint: str) -> None:
    said = f"^out cannot be written: {os.strerror(code)}; all else is. {hint}"
    with pytest.raises(StorageError, match=said), storing(Path("out"), kept="all else is"):
        raise OSError(code, os.strerror(code))


def test_what_stood_there_stays_where_the_new_text_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "deep" / "a.json"
    write_whole(file, "old")
    monkeypatch.setattr("surerag.storage.os", FailingDisk("fsync", errno.ENOSPC))
    with pytest.raises(StorageError):
        write_whole(file, "new")
    assert [path.name for path in file.parent.iterdir()] == ["a.json"]
    assert file.read_text() == "old"


def test_lone_surrogates_are_written_as_something_else(tmp_path: Path) -> None:
    write_whole(tmp_path / "page", "a\ud800b")
    with whole_lines(tmp_path / "rows") as write:
        write('"a\ud800b"')
    assert (tmp_path / "page").read_text() == "a?b"
    assert (tmp_path / "rows").read_text() == '"a\\ud800b"\n'


def test_lines_that_were_not_finished_are_not_there(tmp_path: Path) -> None:
    def stopped(write: Callable[[str], None]) -> None:
        write("one")
        raise KeyError

    with pytest.raises(KeyError), whole_lines(tmp_path / "rows") as write:
        stopped(write)
    assert not (tmp_path / "rows").exists()


def test_places_are_checked_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/deep"):
        with pytest.raises(StorageError, match="name another path"):
            check_folder(tmp_path / place)
        with pytest.raises(StorageError, match="name another path"):
            check_file(tmp_path / place / "a.json")
    with pytest.raises(StorageError, match="name another path"):
        check_file(tmp_path)
    check_file(tmp_path / "file")
    check_file(tmp_path / "new" / "a.json")
    assert list((tmp_path / "new").iterdir()) == []
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder where nothing can be made")
def test_a_folder_where_nothing_can_be_made() -> None:
    with pytest.raises(StorageError, match="/proc/nothing cannot be written"):
        check_folder(Path("/proc/nothing"))
