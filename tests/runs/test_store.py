"""A run whose folder is elsewhere: what was committed is enough to go on from, on any machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("fsspec")

from surerag.errors import ConfigurationError, InputError, StorageError  # noqa: E402
from surerag.remote import Remote  # noqa: E402
from surerag.runs import Run, read_manifest  # noqa: E402
from surerag.runs.manifest import Kind  # noqa: E402
from surerag.runs.store import fetched, working_folder  # noqa: E402
from tests.stores import flaky, memory  # noqa: E402

SCHEMA = pa.schema([("id", pa.string()), ("delta", pa.float64())])
ABOUT = {"reader": "r", "samples": 10}
KIND = Kind("trial")


def opened(place: Remote, on_change: Any = "error", **other: object) -> Run:
    return Run.open(place, {**ABOUT, **other}, SCHEMA, kind=KIND, on_change=on_change)


def rows(unit: int, times: int = 1) -> list[dict[str, object]]:
    return [{"id": f"{unit} {at} {times}", "delta": float(at)} for at in range(3)]


def commit(run: Run, unit: int, times: int = 1) -> None:
    with run.answers(unit) as journal:
        journal.put({f"key {unit} {times}": ["said", unit]})
    run.commit(unit, rows(unit, times), source=f"s{unit}", note={"failed": 0})


def ids(run: Run) -> list[str]:
    return [name for batch in run.batches(["id"]) for name in batch.column("id").to_pylist()]


def names(place: Remote) -> list[str]:
    return [file.relative_to(place) for file in place.below()]


def test_another_machine_goes_on_from_the_store_alone(work: Path) -> None:
    place = memory()
    with opened(place) as run:
        commit(run, 0)
        commit(run, 2)
    shutil.rmtree(work)
    with opened(place) as run:
        assert run.units == [0, 2] and not run.complete
        with run.answers(0) as journal:  # what a committed unit cost is there as well
            assert journal.get("key 0 1") == ["said", 0]
        commit(run, 1)
        run.finish()
        assert ids(run) == [f"{unit} {at} 1" for unit in range(3) for at in range(3)]
    shutil.rmtree(work)
    there = names(place)
    assert "manifest.jsonl" in there and not [name for name in there if name.startswith("commits/")]
    assert len([name for name in there if name.startswith("rows-")]) == 3
    with opened(place) as run:
        assert run.complete and run.units == [0, 1, 2]
    copy = fetched(place, KIND)
    assert read_manifest(copy, KIND).complete and len(list(copy.glob("rows-*.parquet"))) == 3


def test_a_unit_of_failures_is_replaced_and_its_first_files_go_at_the_end(work: Path) -> None:
    place = memory()
    with opened(place) as run:
        commit(run, 0)
        run.finish()
    with opened(place) as run:
        commit(run, 0, times=2)
        assert len([name for name in names(place) if name.startswith("rows-00000")]) == 2
    shutil.rmtree(work)
    with opened(place) as run:
        assert not run.complete
        run.finish()
        assert ids(run) == ["0 0 2", "0 1 2", "0 2 2"]
    assert len([name for name in names(place) if name.startswith("rows-00000")]) == 1


def test_a_kill_at_any_write_loses_no_commit_and_makes_none_up(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """The process ends here."""

    for at in range(1, 12):
        with flaky(monkeypatch) as (place, store), monkeypatch.context() as patched:
            left = at

            def dying(self: Any, what: str, path: str) -> None:
                nonlocal left
                left -= what == "write"
                if left == 0:
                    raise Killed

            whole = []
            with patched.context() as deadly:
                deadly.setattr(store, "_ask", dying)
                try:
                    with opened(place) as run:
                        for unit in range(3):
                            commit(run, unit)
                            whole.append(unit)
                        run.finish()
                except Killed:
                    pass
            shutil.rmtree(work)
            with opened(place) as run:
                # A commit that was under way is there whole, or not at all.
                assert run.units in (whole, [*whole, len(whole)])
                assert ids(run) == [f"{unit} {at} 1" for unit in run.units for at in range(3)]
                for unit in range(3):
                    if unit not in run.manifest.parts:
                        commit(run, unit)
                run.finish()
                assert ids(run) == [f"{unit} {at} 1" for unit in range(3) for at in range(3)]


def test_what_passes_is_tried_again_and_what_stays_says_what_is_kept(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flaky(monkeypatch) as (place, store):
        with opened(place) as run:
            store.failing += [ConnectionError("reset"), OSError("slow down")]
            commit(run, 0)
            assert not store.failing
            store.failing += [OSError("down https://host/x?X-Amz-Signature=abcdef")] * 9
            with pytest.raises(StorageError, match="down") as told:
                commit(run, 1)
            assert "Signature" not in str(told.value) and "what was committed is kept in flaky://" in str(
                told.value
            )
            store.failing.clear()
        with opened(place) as run:  # what was answered since is on the disk
            assert run.units == [0]
            with run.answers(1) as journal:
                assert journal.get("key 1 1") == ["said", 1]
            commit(run, 1)


def test_committing_the_last_unit_costs_what_the_first_did(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flaky(monkeypatch) as (place, store), opened(place) as run:
        costs = []
        for unit in range(40):
            store.asked.clear()
            commit(run, unit)
            costs.append(len(store.asked))
        written = sum(len(data) for data in place.read_all(["commits/00000/00000.json"]).values())
        last = sum(len(data) for data in place.read_all(["commits/00000/00039.json"]).values())
        assert set(costs) == {costs[0]} and costs[0] <= 4 and abs(last - written) < 10


def test_two_machines_at_once_are_noticed_by_the_first(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = memory()
    with opened(place) as first:
        commit(first, 0)
        with pytest.raises(ConfigurationError, match="another process is writing"):
            opened(place)  # on one machine the second is refused
        monkeypatch.setenv("SURERAG_WORK", str(work / "other machine"))
        with opened(place) as second:
            commit(second, 1)
            with pytest.raises(
                ConfigurationError, match=r"another process has begun to write to memory://.*kept"
            ):
                commit(first, 1, times=2)
            with pytest.raises(ConfigurationError, match="another process"):
                first.finish()
            assert second.units == [0, 1]
            second.finish()
            assert ids(second)[3:] == ["1 0 1", "1 1 1", "1 2 1"]


def test_another_setting_is_refused_reused_or_begun_anew(work: Path) -> None:
    place = memory()
    (place / "mine.txt").write_bytes(b"mine")
    with opened(place) as run:
        commit(run, 0)
        commit(run, 1)
    with pytest.raises(ConfigurationError, match=r"memory://.* of something else: samples was 10 and is 20"):
        opened(place, samples=20)
    with opened(place, "reuse", samples=20) as run:
        commit(run, 0)
    shutil.rmtree(work)
    with opened(place, samples=20) as run:
        assert run.units == [0]
        with run.answers(1) as journal:  # the answers before the change
            assert journal.get("key 1 1") == ["said", 1]
        commit(run, 1)
        run.finish()
    with opened(place, samples=20) as run:
        assert run.complete
    with opened(place, "restart", samples=30) as run:
        assert run.units == []
    assert sorted(names(place)) == ["commits/00000/about.json", "mine.txt"]
    with pytest.raises(ConfigurationError, match="run of another kind"):
        Run.open(place, ABOUT, SCHEMA, kind=Kind("other"), on_change="restart")
    with pytest.raises(InputError, match=r"^memory://.*: it holds trial, not other"):
        fetched(place, Kind("other"))
    with pytest.raises(InputError, match="holds no trial"):
        fetched(memory(), KIND)


def test_what_is_not_ours_is_not_touched_and_what_was_changed_is_refused(work: Path) -> None:
    place = memory()
    (place / "rows-00000.parquet").write_bytes(b"somebody's")
    with pytest.raises(ConfigurationError, match=r"rows-00000\.parquet, and no manifest"):
        opened(place)
    place = memory()
    with opened(place) as run:
        commit(run, 0)
        run.finish()
    shutil.rmtree(work)
    [data] = [file for file in place.below() if file.name.startswith("rows-")]
    data.write_bytes(b"other")
    with opened(place) as run, pytest.raises(InputError, match="its digest differs"):
        ids(run)
    data.unlink()
    with pytest.raises(InputError, match="is missing"):
        fetched(place, KIND)


def test_a_folder_that_was_copied_into_a_store_goes_on_there(work: Path, tmp_path: Path) -> None:
    with Run.open(tmp_path, ABOUT, SCHEMA, kind=KIND) as run:
        commit(run, 0)
    place = memory()
    for file in tmp_path.iterdir():
        (place / file.name).put(file)
    with opened(place) as run:
        assert run.units == [0] and ids(run) == ["0 0 1", "0 1 1", "0 2 1"]
        commit(run, 1)
        run.finish()
    shutil.rmtree(work)
    with opened(place) as run:
        assert run.complete and len(ids(run)) == 6


def test_no_unit_is_lost_that_was_committed_after_the_manifest_was_written(work: Path) -> None:
    place = memory()
    with opened(place) as run:
        commit(run, 0)
        run.finish()
        commits = (place / "manifest.jsonl").read_bytes()
        commit(run, 1)
    assert (place / "manifest.jsonl").read_bytes() == commits
    (place / "commits/00000/00007.json").write_bytes(
        b'{"unit": 7, "fil'
    )  # of a store that does not write whole
    shutil.rmtree(work)
    with opened(place) as run:
        assert run.units == [0, 1] and not run.complete
    assert json.loads(commits.splitlines()[0])["about"] == ABOUT
    assert working_folder(place).is_relative_to(work)
