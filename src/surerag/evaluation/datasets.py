"""Data sets of questions with gold answers and what was retrieved for them: JSONL and Parquet, row by row.

A row has the fields ``question`` (text), ``answers`` (a text, or a list of them) and ``contexts`` (a list
of texts; or, of a system that retrieves in several steps, a list of such lists, each of them all that the
reader is shown after that step). ``system`` names who retrieved, if several systems are compared, and
``id`` the question, so that the same question of two systems is recognised. Further fields are ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from surerag.errors import InputError
from surerag.evaluation.rows import ONE_SYSTEM, Row
from surerag.extras import extra
from surerag.types import Passage

FIELDS = ("question", "answers", "contexts")
OPTIONAL = ("id", "system")
_SHOWN = 60
_PARQUET_BATCH = 256


@dataclass(frozen=True, slots=True)
class DataSet:
    """A file that was read once, to its end, and found to be right.

    Attributes:
        file: Where it is.
        rows: How many it has.
        systems: Names of the systems, in order of appearance.
        digest: Of the rows' content; the same for JSONL and Parquet, whatever further fields there are.
    """

    file: Path
    rows: int
    systems: tuple[str, ...]
    digest: str

    def __iter__(self) -> Iterator[Row]:
        """Read the rows again, one at a time."""
        return read_rows(self.file)


def check_file(file: Path) -> DataSet:
    """Read a file to its end, holding one row at a time.

    Raises:
        InputError: If a row cannot be used, naming file, line, field and what was found; if two rows are
            about the same question of the same system; or if there is no row.
        MissingExtraError: If it is a Parquet file and pyarrow is not installed.
    """
    digest = hashlib.sha256()
    systems: dict[str, None] = {}
    count = 0
    for row in read_rows(file):
        contexts = [[passage.text for passage in step] for step in row.contexts]
        content = [row.id, row.system, row.question, list(row.golds), contexts]
        digest.update(json.dumps(content).encode("ascii") + b"\n")
        systems[row.system] = None
        count += 1
    if count == 0:
        raise InputError(f"{file} holds no rows", hint=f"give each question a row with {_listed(FIELDS)}")
    return DataSet(file, count, tuple(systems), digest.hexdigest())


def read_rows(file: Path) -> Iterator[Row]:
    """Yield the rows of a file, in order.

    Raises:
        InputError: See :func:`check_file`.
    """
    names = _Names(file)
    for place, record in _format_of(file)(file):
        yield _row(record, place, names)


def read_records(file: Path) -> Iterator[tuple[Any, Any]]:
    """Yield what stands in a JSONL or Parquet file, every field of it, each with its place, for messages.

    Raises:
        InputError: If the file cannot be read.
    """
    reading = _format_of(file)
    yield from _parquet(file, every=True) if reading is _parquet else reading(file)


def text_field(value: Any, name: str, place: Any) -> str:
    """Return a field that must be a text.

    Raises:
        InputError: If it is none, or empty.
    """
    return _text(value, name, place)


def golds_field(value: Any, place: Any) -> tuple[str, ...]:
    """Return the field ``answers``: a text, or a list of at least one.

    Raises:
        InputError: If it is something else.
    """
    return _golds(value, place)


class _Place(NamedTuple):
    """Where a row stands, for messages."""

    file: Path
    unit: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"


_Records = Callable[[Path], Iterator[tuple[_Place, Any]]]


def _format_of(file: Path) -> _Records:
    if not file.is_file():
        raise InputError(f"{file} is no file", hint="give a JSONL or a Parquet file")
    reading = _FORMATS.get(file.suffix.lower())
    if reading is None:
        raise InputError(
            f"{file} has the unknown format {file.suffix or 'nothing'!r}",
            hint=f"give a file that ends in {', '.join(_FORMATS)}",
        )
    return reading


def _opened(file: Path) -> IO[bytes]:
    try:
        return file.open("rb")
    except OSError as error:
        raise InputError(
            f"{file} cannot be read: {error.strerror}", hint="give a file that this user may read"
        ) from error


def _json_lines(file: Path) -> Iterator[tuple[_Place, Any]]:
    with _opened(file) as lines:
        for number, line in enumerate(lines, start=1):
            place = _Place(file, "line", number)
            if not line.strip():
                continue
            try:
                # Editors on Windows put a byte-order mark before the first line.
                yield place, json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise InputError(f"{place}: the text is not UTF-8 ({error.reason})") from error
            except json.JSONDecodeError as error:
                raise _not_json(place, f"{error.msg} at column {error.colno}") from error
            except RecursionError as error:
                raise _not_json(place, "lists or objects within one another, too deep to read") from error
            except ValueError as error:  # of a number, Python reads 4,300 digits
                raise _not_json(place, str(error).partition(";")[0]) from error


def _not_json(place: _Place, why: str) -> InputError:
    return InputError(f"{place}: not a JSON object ({why})", hint="write one JSON object on each line")


def _parquet(file: Path, *, every: bool = False) -> Iterator[tuple[_Place, Any]]:
    with extra("parquet"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    try:
        with ParquetFile(file) as table:
            known = [name for name in table.schema_arrow.names if every or name in (*FIELDS, *OPTIONAL)]
            number = 0
            for batch in table.iter_batches(batch_size=_PARQUET_BATCH, columns=known):
                for record in batch.to_pylist():
                    number += 1
                    yield _Place(file, "row", number), record
    except (ArrowException, OSError) as error:
        raise InputError(f"{file} cannot be read as Parquet: {str(error).splitlines()[0]}") from error


_FORMATS: Mapping[str, _Records] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
    ".pq": _parquet,
}


class _Named(NamedTuple):
    """The first row that bears a name.

    Attributes:
        place: Where it stands.
        question: What it asks.
        given: Whether the name is the row's own id, rather than its question.
    """

    place: _Place
    question: str
    given: bool


class _Names:
    """Keeps rows apart: one row for each question of each system."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._named: bool | None = None
        self._at: dict[tuple[str, str], _Place] = {}
        self._first: dict[str, _Named] = {}
        self._asked: Counter[tuple[str, str]] = Counter()

    def system(self, record: Mapping[str, Any], place: _Place) -> str:
        given = record.get("system")
        named = given is not None
        if self._named is None:
            self._named = named
        if named != self._named:
            raise InputError(
                f"{place}: {'a' if named else 'no'} field 'system', other than in the rows before",
                hint="give every row the name of its system, or none",
            )
        return _text(given, "system", place) if named else ONE_SYSTEM

    def id(self, record: Mapping[str, Any], system: str, question: str, place: _Place) -> str:
        given = record.get("id")
        if isinstance(given, int) and not isinstance(given, bool):
            given = str(given)
        if given is None:
            # The same question again is another one; the second of one system belongs to another's second.
            self._asked[system, question] += 1
            times = self._asked[system, question]
            name = question if times == 1 else f"{question} ({times})"
        else:
            name = _text(given, "id", place)
        first = self._first.setdefault(name, _Named(place, question, given is not None))
        if first.given != (given is not None) and first.question != question:
            raise InputError(
                f"{place}: {name!r} is the id of one question and the text of another, "
                f"which stands in {first.place.unit} {first.place.number}",
                hint="give each question an id of its own; leave all ids out if there are none",
            )
        if (before := self._at.get((system, name))) is not None:
            of_system = "" if system == ONE_SYSTEM else f" of the system {system!r}"
            raise InputError(
                f"{place}: the id {name!r}{of_system} stands in {before.unit} {before.number} already",
                hint="give each question an id of its own; leave all ids out if there are none",
            )
        self._at[system, name] = place
        return name


def _row(record: Any, place: _Place, names: _Names) -> Row:
    if not isinstance(record, dict):
        raise _unfit(place, "the row", "an object with the fields " + _listed(FIELDS), record)
    for name in FIELDS:
        if record.get(name) is None:
            raise InputError(
                f"{place}: the field {name!r} is missing; found {_listed(record) or 'no field'}",
                hint=f"every row needs {_listed(FIELDS)}",
            )
    question = _text(record["question"], "question", place)
    system = names.system(record, place)
    return Row(
        id=names.id(record, system, question, place),
        system=system,
        question=question,
        golds=_golds(record["answers"], place),
        contexts=_contexts(record["contexts"], place),
    )


def _golds(value: Any, place: _Place) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not given:
        raise _unfit(place, "the field 'answers'", "a text or a list of at least one text", value)
    return tuple(_text(gold, "answers", place) for gold in given)


def _contexts(value: Any, place: _Place) -> tuple[tuple[Passage, ...], ...]:
    if not isinstance(value, list):
        raise _unfit(place, "the field 'contexts'", "a list of texts, or of lists of texts", value)
    steps = value if value and all(isinstance(step, list) for step in value) else [value]
    return tuple(tuple(Passage(_text(text, "contexts", place)) for text in step) for step in steps)


def _text(value: Any, name: str, place: _Place) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _unfit(place, f"the field {name!r}", "texts that are not empty", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _unfit(place, f"the field {name!r}", "text without lone surrogates", value) from error
    return value


def _unfit(place: _Place, what: str, expected: str, found: Any) -> InputError:
    try:
        shown = ascii(found)
    except RecursionError:
        shown = f"{type(found).__name__} of many levels"
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return InputError(f"{place}: {what} must be {expected}; found {shown}")


def _listed(names: Any) -> str:
    return ", ".join(repr(str(name)) for name in names)
