"""A data set that was read once and found right, and is then read in units, from any one on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from surerag.errors import InputError
from surerag.evaluation.inputs.columns import Columns, Field
from surerag.evaluation.inputs.entries import Start
from surerag.evaluation.inputs.opening import source_of
from surerag.evaluation.inputs.reading import ROW, Names, Parsed, called, parsed, row_of
from surerag.evaluation.inputs.seen import Seen, digest_of
from surerag.evaluation.inputs.source import Source
from surerag.evaluation.rows import ONE_SYSTEM, Row
from surerag.places import Anywhere
from surerag.storage import storing, whole_lines, write_whole

UNIT: Final = 256
"""Questions in a unit of work; with all their systems."""
CHECKED: Final = "input.json"
ARRANGED: Final = "arranged.jsonl"
_VERSION = 1
_BUCKETS = 256


class UnitStart(NamedTuple):
    """Where a unit begins.

    Attributes:
        start: Its first row.
        rows: Rows before it.
    """

    start: Start
    rows: int


@dataclass(frozen=True, slots=True)
class DataSet:
    """A file that was read once, to its end, and found to be right.

    Attributes:
        path: What the user named.
        rows: How many it has.
        questions: How many different ones.
        systems: Names of the systems, in order of appearance.
        digest: Of the rows' content; the same in every format, whatever further fields there are.
        form: What the file was taken for.
        told: Which fields were found under other names, in words.
        given: Which column is what, as the user said.
        read: What units are read from: another file where systems stood one after the other.
        starts: Where each unit begins.
        repeated: Rows whose question came before, without an id, and the how-manieth time this is.
    """

    path: Anywhere
    rows: int
    questions: int
    systems: tuple[str, ...]
    digest: str
    form: str
    told: str
    given: Mapping[Field, str]
    read: Source = field(compare=False, repr=False)
    starts: tuple[UnitStart, ...]
    repeated: tuple[tuple[int, int], ...]

    def __iter__(self) -> Iterator[Row]:
        """Read the rows again, one at a time, all systems of a question together."""
        for unit in range(self.units):
            yield from self.unit(unit)

    @property
    def units(self) -> int:
        """How many units of work there are."""
        return len(self.starts)

    def rows_in(self, number: int) -> int:
        """Return how many rows a unit has; nothing is read."""
        end = self.starts[number + 1].rows if number + 1 < self.units else self.rows
        return end - self.starts[number].rows

    def unit(self, number: int) -> list[Row]:
        """Read one unit: ``UNIT`` questions with all their systems."""
        begin = self.starts[number]
        end = begin.rows + self.rows_in(number)
        given = self.given if self.read.path == self.path else {}
        rows = islice(parsed(self.read, begin.start, given, ROW), end - begin.rows)
        first = np.searchsorted([at for at, _ in self.repeated], begin.rows)
        times = dict(self.repeated[int(first) : int(first) + end - begin.rows])
        return [row_of(row, called(row, times.get(begin.rows + at, 1))) for at, row in enumerate(rows)]


def check_rows(
    path: str | Anywhere, columns: Mapping[Field, str] | None = None, *, folder: Path | None = None
) -> DataSet:
    """Read a data set to its end, holding one row at a time.

    Args:
        path: A file, folder, URL or pattern that :func:`source_of` knows.
        columns: Which column is what, where it is not found by its name.
        folder: Where to note what was found, so that the same unchanged file is not read again; and to
            write the rows in another order, if the systems of a question do not stand together.

    Raises:
        InputError: If a row cannot be used, naming file, line, field and what was found; if two rows are
            about the same question of the same system; or if there is no row.
        StorageError: If the folder cannot be written.
        MissingExtraError: If it is a table in Parquet or Arrow and pyarrow is not installed.
    """
    source, given = source_of(path), dict(columns or {})
    stamp = [_VERSION, UNIT, str(source.path), source.stamp(), given]
    if folder is not None and (known := _known(folder / CHECKED, stamp, source)) is not None:
        return known
    found = _checked(source, given)
    if found.scattered and folder is not None:
        read = _arranged(source, given, folder)
        arranged = _checked(read, {})
        found = arranged._replace(data=replace(found.data, read=read, **_units(arranged.data)))
    if folder is not None:
        write_whole(folder / CHECKED, json.dumps({"stamp": stamp, "data": _plain(found.data)}) + "\n")
    return found.data


class _Found(NamedTuple):
    data: DataSet
    scattered: bool


def _checked(source: Source, given: Mapping[Field, str]) -> _Found:
    digest = hashlib.sha256()
    names, questions = Names(source, given), Seen()
    systems: dict[str, None] = {}
    starts: list[UnitStart] = []
    repeated: list[tuple[int, int]] = []
    count = groups = 0
    last, scattered, first = None, False, None
    for one in parsed(source, Start(), given, ROW):
        first = first or one.columns
        name = names.name(one)
        if one.id is None and name != one.question:
            repeated.append((count, int(name[len(one.question) + 2 : -1])))
        if one.system is None or name != last:
            # With one system every row is another question, and need not be remembered twice.
            scattered |= one.system is not None and questions.add(name)
            if groups % UNIT == 0:
                starts.append(UnitStart(one.entry.start, count))
            groups, last = groups + 1, name
        digest.update(_content(one, name))
        systems[one.system or ONE_SYSTEM] = None
        count += 1
    if count == 0:
        needed = ", ".join(map(repr, ROW))
        raise InputError(f"{source.path} holds no rows", hint=f"give each question a row with {needed}")
    data = DataSet(
        path=source.path,
        rows=count,
        questions=len(questions) or groups,
        systems=tuple(systems),
        digest=digest.hexdigest(),
        form=source.form,
        told=(first or Columns()).told(),
        given=given,
        read=source,
        starts=tuple(starts),
        repeated=tuple(repeated),
    )
    return _Found(data, scattered)


def _content(one: Parsed, name: str) -> bytes:
    contexts = [[passage.text for passage in step] for step in one.contexts]
    content = [name, one.system or ONE_SYSTEM, one.question, list(one.golds), contexts]
    return json.dumps(content).encode("ascii") + b"\n"


def _arranged(source: Source, given: Mapping[Field, str], folder: Path) -> Source:
    """Write the rows again, all systems of a question together, questions in the order of first appearance.

    Rows go to one of some files by their question's number; each of these is then put in order by itself.
    """
    places = np.fromiter((digest_of(name) for _, name in _named(source, given)), np.uint64)
    _, first, which = np.unique(places, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    order = rank[which]
    each = -(-len(first) // _BUCKETS)
    buckets = [folder / f"{ARRANGED}.{number:03}" for number in range(-(-len(first) // each))]
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        files = [bucket.open("w", encoding="ascii") for bucket in buckets]
        try:
            for at, (one, name) in enumerate(_named(source, given)):
                number = int(order[at])
                row = [number, name, one.system, one.question, list(one.golds)]
                shown = [[passage.text for passage in step] for step in one.contexts]
                files[number // each].write(json.dumps([*row, shown]) + "\n")
        finally:
            for file in files:
                file.close()
    with whole_lines(folder / ARRANGED) as write:
        for bucket in buckets:
            with bucket.open(encoding="ascii") as lines:
                rows = [json.loads(line) for line in lines]
            for _, name, system, question, golds, shown in sorted(rows, key=lambda row: row[0]):
                record = {"id": name, "system": system, "question": question, "answers": golds}
                write(json.dumps({**record, "contexts": shown}))
            bucket.unlink()
    return source_of(folder / ARRANGED)


def _named(source: Source, given: Mapping[Field, str]) -> Iterator[tuple[Parsed, str]]:
    names = Names(source, given)
    for one in parsed(source, Start(), given, ROW):
        yield one, names.name(one)


def _units(data: DataSet) -> dict[str, Any]:
    return {"starts": data.starts, "repeated": data.repeated, "questions": data.questions}


def _plain(data: DataSet) -> dict[str, Any]:
    arranged = data.read.path != data.path
    noted = replace(data, read=None)  # type: ignore[arg-type]  # what is read is named, not written down
    return {**asdict(noted), "path": str(data.path), "read": ARRANGED if arranged else ""}


def _known(file: Path, stamp: Sequence[Any], source: Source) -> DataSet | None:
    """Return what was found before, if the files are as they were then."""
    try:
        noted = json.loads(file.read_text(encoding="utf-8"))
        if noted["stamp"] != json.loads(json.dumps(stamp)):
            return None
        data = noted["data"]
        starts = tuple(UnitStart(Start(*start), rows) for start, rows in data["starts"])
        found = DataSet(
            **{
                **data,
                "path": source.path,
                "read": source_of(file.parent / data["read"]) if data["read"] else source,
                "systems": tuple(data["systems"]),
                "starts": starts,
                "repeated": tuple((at, times) for at, times in data["repeated"]),
            }
        )
    except (OSError, ValueError, KeyError, TypeError):  # or what it was arranged into is gone
        return None
    return found
