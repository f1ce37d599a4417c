"""A run whose folder is elsewhere: what is committed stands there, and is all that another machine needs.

Object stores can neither append nor lock. So a run works in a folder on this machine's disk, and each unit is
put into the store when it is committed: first its files, under names that hold a part of their digest and are
never written twice, then one small object that names them. That object is the commit: before it is there
nothing happened, and after it nothing can be lost. Committing the last of many thousand units costs what the
first did. At the end the manifest is written whole, as in any folder of a run, and the small objects go.

::

    manifest.jsonl               at the end: as in a folder on a disk
    rows-00012-5f3a9c1e.parquet  files of units
    commits/00000/about.json     until then: what is run; another number when that changes (on_change="reuse")
    commits/00000/00012.json     a unit
    commits/writer.json          who writes, as long as somebody does

Of two machines that write at once, the one that came first is stopped when it commits next: the other has put
its name into ``writer.json``. What nobody can notice is a commit between that look and the other's arrival:
it is whole, and of two commits of one unit the later holds. On one machine, the second is refused at once.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from surerag.errors import ConfigurationError, InputError, SureragError
from surerag.lines import LineFile
from surerag.places import Anywhere, key_of, place_of
from surerag.remote import Remote
from surerag.runs.manifest import MANIFEST, File, Kind, Manifest, Part, head_line, manifest_of, part_line
from surerag.runs.tables import digest_of
from surerag.storage import check_folder, storing, write_whole

WORK: Final = "SURERAG_WORK"
_COMMITS, _ABOUT, _WRITER = "commits", "about.json", "writer.json"
_RESULTS = "results"
_AT_A_TIME = 32
_AGAIN = "make the run again, in another folder"
_COMMIT = re.compile(r"commits/(\d{5})/(about|\d{5,})\.json")
_OURS = re.compile(r"[a-z_]+-\d{5}(-[0-9a-f]{8})?\.(parquet|jsonl\.zst)")


def working_folder(place: Anywhere) -> Path:
    """Return where a run works: its own folder, or one for it on this disk if that is elsewhere.

    That is below ``SURERAG_WORK``, or else in the user's cache. It may be thrown away whenever no run is at
    work; then the answers of units that were not committed are asked for again.
    """
    if isinstance(place, Path):
        return place
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(os.environ.get(WORK) or Path(cache) / "surerag" / "runs")
    return root / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', place.name)[:40]}-{key_of(place)}"


def check_output(place: Anywhere) -> None:
    """Make sure that a run can be written to a place: before hours of work, not after.

    Raises:
        StorageError: If it cannot.
        ConfigurationError: If it is elsewhere, and there are no credentials.
    """
    check_folder(working_folder(place))
    if isinstance(place, Remote):
        place.check_writable()


@contextmanager
def results_of(place: Anywhere) -> Iterator[Path]:
    """Yield a folder on the disk for pages, figures and tables; at the end they stand in the place.

    Raises:
        StorageError: If they cannot be written there; they are kept in the folder.
    """
    if isinstance(place, Path):
        yield place
        return
    folder = working_folder(place) / _RESULTS
    check_folder(folder)
    yield folder
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            target = place
            for part in file.relative_to(folder).parts:
                target = target / part
            target.put(file, kept=f"it is kept in {folder}")


def fetched(place: str | Anywhere, *kinds: Kind) -> Path:
    """Return a folder on the disk that holds a run: the place itself, or a copy of what is committed there.

    Args:
        place: Of the run.
        kinds: What it may hold.

    Raises:
        InputError: If there is none of this kind, or its files are not what they were.
        StorageError: If the place cannot be read.
    """
    place = place_of(place)
    if isinstance(place, Path):
        return place
    work = working_folder(place)
    copy = work.with_name(f"{work.name}-copy")
    store = Store(place, copy, kinds[0], beside=work)
    lines = store.lines()
    kind = next((one for one in kinds if lines and lines[0].get("format") == one.format), kinds[0])
    manifest = manifest_of(lines, place / MANIFEST, kind)
    if not manifest.about:
        raise InputError(
            f"{place} holds no {kind.name}: there is no {MANIFEST}, and nothing is committed",
            hint=f"give the folder that {kind.made_by} wrote",
        )
    check_folder(copy)
    for _ in store.local(manifest.files):
        pass
    named = {file.name for file in manifest.files}
    for file in copy.iterdir():
        if _OURS.fullmatch(file.name) and file.name not in named:
            file.unlink()
    write_whole(copy / MANIFEST, "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return copy


class Store:
    """What a run keeps elsewhere.

    Args:
        place: Where.
        folder: Where the run works, on this disk.
        kind: What it holds.
        beside: A folder that may hold some of its files already.
    """

    def __init__(self, place: Remote, folder: Path, kind: Kind, *, beside: Path | None = None) -> None:
        self.place, self._folder, self._kind, self._beside = place, folder, kind, beside
        self._kept = f"what was committed is kept in {place}, and what was answered since in {folder}"
        self._me = {"writer": secrets.token_hex(8), "host": socket.gethostname(), "process": os.getpid()}
        self._epoch = -1
        self._there: set[str] = set()
        self._whole: set[str] = set()
        self._failed = False

    def lines(self) -> list[dict[str, Any]]:
        """Return what the store says of the run: the manifest, and what was committed since.

        Raises:
            InputError: If the manifest is damaged.
            StorageError: If it cannot be read.
        """
        names = self._names()
        told = self.place.read_all([MANIFEST] if MANIFEST in names else []).get(MANIFEST, b"")
        found = [self._parsed(line) for line in told.splitlines()]
        epochs = [one.get("epoch", 0) for one in found if "format" in one]
        self._epoch = epochs[-1] if epochs else -1
        others = sorted(name for name in names if _OURS.fullmatch(name))
        if not found and not any(name.startswith(f"{_COMMITS}/") for name in names) and others:
            raise ConfigurationError(
                f"{self.place} holds {others[0]}, and no {MANIFEST} that says whose it is",
                hint="write to another folder, or move that file away",
            )
        found += self._committed(names)
        # What no commit names may have been cut short, and is put there again.
        with suppress(AttributeError, KeyError, TypeError):  # who reads the lines says that they are damaged
            self._there = {file["name"] for one in found for file in one.get("files", {}).values()}
        return found

    def _names(self) -> set[str]:
        files = (*self.place.iterdir(), *(self.place / _COMMITS).below())
        return {file.relative_to(self.place) for file in files}

    def _committed(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Return what was committed since the manifest was written: what is run, its units, and so on."""
        places = {name: told.groups() for name in names if (told := _COMMIT.fullmatch(name))}
        since = [name for name, (epoch, _) in places.items() if int(epoch) >= self._epoch]
        read = self.place.read_all(since)
        found: list[dict[str, Any]] = []
        for name in sorted(since, key=lambda name: (places[name][0], places[name][1] != "about", name)):
            epoch, what = places[name]
            if what == "about" and int(epoch) == self._epoch:
                continue
            # A store that does not write whole may hold the beginning of a commit: that is none yet.
            with suppress(ValueError):
                record = json.loads(read.get(name, b""))
                if what == "about":
                    self._epoch = int(epoch)
                if int(epoch) == self._epoch:
                    found.append(record)
        return found

    def join(self, lines: LineFile) -> None:
        """Have the manifest on this disk say what the store does, which holds."""
        found = self.lines()
        lines.clear()
        if found:
            lines.append(found)

    def claim(self) -> None:
        """Write from now on; whoever did before is stopped when it commits next."""
        self._write(_WRITER, self._me)

    def begin(self, kind: Kind, about: Mapping[str, Any]) -> dict[str, Any]:
        """Note what is run from now on, and return the line that says so."""
        self._epoch += 1
        line = {**head_line(kind, about), "epoch": self._epoch}
        self._write(f"{self._epoch:05}/{_ABOUT}", line)
        return line

    def commit(self, part: Part) -> Part:
        """Put a unit's files into the store, and then the line that commits it; return it under their names.

        Raises:
            ConfigurationError: If another process has begun to write to the run.
            StorageError: If it cannot be written.
        """
        self._failed = True  # until it is there: who closes the run then waits for the store no more
        self._check_writer()
        part = replace(part, files={table: self._named(file) for table, file in part.files.items()})
        for file in part.files.values():
            if file.name not in self._there:
                (self.place / file.name).put(self._folder / file.name, kept=self._kept)
                self._there.add(file.name)
            self._whole.add(file.name)
        self._write(f"{self._epoch:05}/{part.unit:05}.json", part_line(part))
        self._failed = False
        return part

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest whole, and take away what it does not name.

        Raises:
            ConfigurationError: If another process has begun to write to the run.
            StorageError: If it cannot be written.
        """
        self._check_writer()
        head = {**head_line(self._kind, manifest.about), "epoch": self._epoch}
        lines = [head, *map(part_line, manifest), {"complete": True}]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        (self.place / MANIFEST).write_bytes(text.encode("ascii"), kept=self._kept)
        self._remove(but={file.name for file in manifest.files})

    def clear(self) -> None:
        """Take away all that belongs to a run; what else is there stays."""
        if MANIFEST in self._names():
            (self.place / MANIFEST).unlink(kept=self._kept)
        self._remove()
        self._epoch, self._there = -1, set()

    def close(self) -> None:
        """Say that nobody writes any more, if that can be said."""
        if self._failed:
            return
        with suppress(SureragError):
            other = self._writer()
            if other is not None and other.get("writer") == self._me["writer"]:
                (self.place / _COMMITS / _WRITER).unlink()

    def local(self, files: Iterable[File]) -> Iterator[Path]:
        """Yield files as they are on this disk, having fetched those that were not there, some at a time.

        Raises:
            InputError: If one is not what was committed.
            StorageError: If the store cannot be read.
        """
        remaining = iter(files)
        while group := list(islice(remaining, _AT_A_TIME)):
            missing = [file for file in group if file.name not in self._whole and not self._is_here(file)]
            found = self.place.read_all([file.name for file in missing], kept=self._kept)
            for file in missing:
                self._keep(file, found.get(file.name))
            self._whole |= {file.name for file in group}
            yield from (self._folder / file.name for file in group)

    def _is_here(self, file: File) -> bool:
        path = self._folder / file.name
        if self._beside is not None and not path.exists() and (self._beside / file.name).is_file():
            with suppress(OSError):
                path.hardlink_to(self._beside / file.name)
        return path.is_file() and digest_of(path) == file.sha256

    def _keep(self, file: File, data: bytes | None) -> None:
        path = self._folder / file.name
        if data is None or Path(file.name).name != file.name:
            raise InputError(
                f"{self.place / file.name} is missing", hint="make the run again, in another folder"
            )
        unfinished = path.with_name(f"{file.name}.part")
        with storing(path):
            unfinished.write_bytes(data)
            if digest_of(unfinished) != file.sha256:
                raise InputError(
                    f"{self.place / file.name} is not the file that was committed: its digest differs",
                    hint=_AGAIN,
                )
            unfinished.replace(path)

    def _named(self, file: File) -> File:
        """Give a file a name of its own among all that were ever written for its unit."""
        stem, dot, suffix = file.name.partition(".")
        if _OURS.fullmatch(file.name) and not stem.endswith(f"-{file.sha256[:8]}"):
            named = replace(file, name=f"{stem[: stem.index('-') + 6]}-{file.sha256[:8]}{dot}{suffix}")
            with storing(self._folder):
                (self._folder / file.name).replace(self._folder / named.name)
            return named
        return file

    def _remove(self, but: Iterable[str] = ()) -> None:
        names = self._names()
        ours = [name for name in names if _OURS.fullmatch(name) and name not in set(but)]
        ours += [name for name in names if name.startswith(f"{_COMMITS}/") and not name.endswith(_WRITER)]
        if ours:
            self.place.unlink(ours, kept=self._kept)
        self._there -= set(ours)

    def _check_writer(self) -> None:
        other = self._writer()
        if other is None or other.get("writer") != self._me["writer"]:
            who = f"{other.get('host')}, process {other.get('process')}" if other else "nobody says who"
            raise ConfigurationError(
                f"another process has begun to write to {self.place} ({who}); {self._kept}",
                hint="let one of them go on, and start no second one",
            )

    def _writer(self) -> dict[str, Any] | None:
        found = (self.place / _COMMITS).read_all([_WRITER], kept=self._kept).get(_WRITER)
        with suppress(ValueError):
            return None if found is None else dict(json.loads(found))
        return None

    def _write(self, name: str, record: Mapping[str, Any]) -> None:
        data = json.dumps(record, separators=(",", ":")).encode("ascii")
        target = self.place / _COMMITS
        for part in name.split("/"):
            target = target / part
        target.write_bytes(data, kept=self._kept)

    def _parsed(self, line: bytes) -> dict[str, Any]:
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                return found
        raise InputError(f"{self.place / MANIFEST} is damaged", hint=f"run {self._kind.made_by} again")
