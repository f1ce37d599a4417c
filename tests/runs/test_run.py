"""A run's folder: what is committed stays, whatever is cut off, changed or full."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from surerag.errors import ConfigurationError, InputError, StorageError
from surerag.runs import Run
from surerag.runs.manifest import MANIFEST, Kind, read_manifest
from tests.failing_disk import FailingDisk

pa = pytest.importorskip("pyarrow")

SCHEMA = pa.schema([("id", pa.string()), ("delta", pa.float64())])
ABOUT = {"reader": "r", "samples": 10}
KIND = Kind("trial")


def opened(folder: Path, **other: object) -> Run:
    return Run.open(folder, {**ABOUT, **other}, SCHEMA, kind=KIND)


def rows(unit: int) -> list[dict[str, object]]:
    return [{"id": f"{unit} {at}", "delta": float(at)} for at in range(3)]


def filled(folder: Path, units: int = 3) -> None:
    with opened(folder) as run:
        for unit in range(units):
            with run.answers(unit) as journal:
                journal.put({f"key {unit}": ["said", unit]})
            run.commit(unit, rows(unit), source=f"s{unit}", note={"failed": unit})


def ids(run: Run) -> list[str]:
    return [name for batch in run.batches(["id"]) for name in batch.column("id").to_pylist()]


def test_units_are_known_without_reading_rows_and_come_in_order(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        for unit in (2, 0):
            run.commit(unit, rows(unit))
    for file in tmp_path.glob("rows-*"):
        file.chmod(0)
        file.rename(file.with_suffix(".hidden"))  # whoever reads a row now fails
    with opened(tmp_path) as run:
        assert run.units == [0, 2] and run.manifest.rows == 6
        for file in tmp_path.glob("*.hidden"):
            file.chmod(0o644)
            file.rename(file.with_suffix(".parquet"))
        run.commit(1, rows(1))
        assert ids(run) == [f"{unit} {at}" for unit in range(3) for at in range(3)]
        assert not run.complete
        run.finish()
    assert read_manifest(tmp_path, KIND).complete


def test_wherever_the_manifest_is_cut_whole_lines_stay_and_it_goes_on(tmp_path: Path) -> None:
    filled(tmp_path)
    manifest = tmp_path / MANIFEST
    whole = manifest.read_bytes()
    for length in range(len(whole)):
        manifest.write_bytes(whole[:length])
        lines = whole[: length + 1].count(b"\n")  # a line that lacks nothing but its end is whole
        with opened(tmp_path) as run:
            assert len(run.units) == max(0, lines - 1)
        with opened(tmp_path) as run:
            assert len(run.units) == max(0, lines - 1)


def test_committing_costs_the_same_however_much_is_there(tmp_path: Path) -> None:
    filled(tmp_path, 40)
    lengths = [len(line) for line in (tmp_path / MANIFEST).read_bytes().splitlines()[1:]]
    assert max(lengths) - min(lengths) <= 8


def test_a_journal_serves_its_unit_and_is_folded_away(tmp_path: Path) -> None:
    filled(tmp_path)
    assert not list(tmp_path.glob("open-*"))
    with opened(tmp_path) as run:
        with run.answers(1) as journal:  # to measure the unit again
            assert journal.get("key 1") == ["said", 1] and journal.get("key 0") is None
            journal.put({"more": 1})
        with run.answers(1) as journal:  # as after a kill
            assert journal.get("more") == 1
        run.commit(1, rows(1))
        assert run.manifest.parts[1].files["answers"].rows == 2
        with run.answers(1) as journal:
            journal.put({"dropped": 1})
        run.commit(1, rows(1), keep_answers=False)
        with run.answers(1) as journal:
            assert journal.found == 0


def test_a_run_of_something_else_is_refused_reused_or_thrown_away(tmp_path: Path) -> None:
    filled(tmp_path)
    with pytest.raises(ConfigurationError, match="samples was 10 and is 20") as caught:
        opened(tmp_path, samples=20)
    assert "reader" not in str(caught.value) and "--reuse" in str(caught.value)
    with Run.open(tmp_path, {**ABOUT, "versions": 2}, SCHEMA, kind=KIND) as run:
        assert len(run.units) == 3
    with Run.open(tmp_path, {**ABOUT, "samples": 20}, SCHEMA, kind=KIND, on_change="reuse") as run:
        assert run.units == []
        with run.answers(2) as journal:
            assert journal.get("key 2") == ["said", 2]
    with opened(tmp_path, samples=20) as run:  # it is that run from now on
        assert run.units == []
    with Run.open(tmp_path, ABOUT, SCHEMA, kind=KIND, on_change="restart") as run:
        assert run.units == [] and sorted(file.name for file in tmp_path.iterdir()) == [MANIFEST]


def test_what_another_command_wrote_is_never_thrown_away(tmp_path: Path) -> None:
    filled(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ConfigurationError, match="another kind"):
        Run.open(tmp_path, ABOUT, SCHEMA, kind=Kind("other"), on_change="restart")
    with pytest.raises(InputError, match="holds trial, not other"):
        Run.open(tmp_path, ABOUT, SCHEMA, kind=Kind("other"))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / MANIFEST).write_text("mine")
    with pytest.raises(InputError, match="is not a manifest of a run"):
        opened(tmp_path / "else")
    assert (tmp_path / "else" / MANIFEST).read_text() == "mine"


def test_one_process_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with opened(tmp_path), pytest.raises(ConfigurationError, match="another process"):
        opened(tmp_path)


@pytest.mark.parametrize("where", ["surerag.runs.tables.os", "surerag.lines.os", "surerag.runs.folder.os"])
def test_a_full_disk_keeps_what_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    filled(tmp_path, 2)
    with opened(tmp_path) as run:
        with run.answers(2) as journal:
            journal.put({"key 2": 2})
        with monkeypatch.context() as patched:
            patched.setattr(where, FailingDisk("fsync", errno.ENOSPC))
            with pytest.raises(StorageError, match="what was committed before is kept"):
                run.commit(2, rows(2))
    with opened(tmp_path) as run:
        assert run.units == [0, 1]
        with run.answers(2) as journal:
            assert journal.get("key 2") == 2
        run.commit(2, rows(2))
        run.finish()
        assert len(ids(run)) == 9
    assert not list(tmp_path.glob("*.part"))


def test_finishing_removes_what_no_unit_names(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    with Run.open(tmp_path, {**ABOUT, "samples": 20}, SCHEMA, kind=KIND, on_change="reuse") as run:
        run.commit(0, rows(0))
        run.finish()
    assert sorted(file.name for file in tmp_path.iterdir()) == [MANIFEST, "rows-00000.parquet"]
    assert json.loads((tmp_path / MANIFEST).read_text().splitlines()[-1]) == {"complete": True}


def test_whatever_else_is_in_the_folder_stays(tmp_path: Path) -> None:
    mine = (
        "train-00000-of-00001.parquet",
        "part-00000.parquet",
        "rows.parquet",
        "answers-all.jsonl",
        "open-1.jsonl",
    )
    for name in mine:
        (tmp_path / name).write_text("mine")
    filled(tmp_path, 2)
    for on_change in ("error", "restart"):
        with Run.open(tmp_path, ABOUT, SCHEMA, kind=KIND, on_change=on_change) as run:
            run.commit(0, rows(0))
            run.finish()
    assert [(tmp_path / name).read_text() for name in mine] == ["mine"] * len(mine)


@pytest.mark.parametrize("name", ["rows-00000.parquet", "answers-00002.jsonl.zst", "open-00000.jsonl"])
def test_files_that_would_be_taken_for_ours_are_refused_and_kept(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    for on_change in ("error", "restart"):
        with pytest.raises(ConfigurationError, match=rf"holds {name}, and no manifest.jsonl"):
            Run.open(tmp_path, ABOUT, SCHEMA, kind=KIND, on_change=on_change)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(name, "mine")]
