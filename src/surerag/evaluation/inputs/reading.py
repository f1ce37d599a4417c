"""Rows, questions and bare records from whatever people have, one at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from surerag.errors import InputError
from surerag.evaluation.inputs.columns import Columns, Field, columns_of, missing_value, value_of, wanted
from surerag.evaluation.inputs.entries import Entry, Place, Start
from surerag.evaluation.inputs.fields import (
    contexts_field,
    from_cell,
    from_deepeval,
    golds_field,
    name_field,
    text_field,
    unfit,
)
from surerag.evaluation.inputs.opening import source_of
from surerag.evaluation.inputs.seen import Seen
from surerag.evaluation.inputs.source import Source
from surerag.evaluation.rows import ONE_SYSTEM, Question, Row
from surerag.places import Anywhere
from surerag.types import Passage

ROW: Final[tuple[Field, ...]] = ("question", "answers", "contexts")
QUESTION: Final[tuple[Field, ...]] = ("question",)
_KEPT = 64


class Parsed(NamedTuple):
    """A row whose fields are right, before it has a name.

    Attributes:
        entry: Where it stands.
        columns: Which column was what.
        id: As given; None if it was not.
        system: As given; None if it was not.
        question: As asked.
        golds: Gold answers.
        contexts: What was retrieved, a tuple a step; none where only questions are read.
    """

    entry: Entry
    columns: Columns
    id: str | None
    system: str | None
    question: str
    golds: tuple[str, ...]
    contexts: tuple[tuple[Passage, ...], ...]


def read_records(path: str | Anywhere) -> Iterator[tuple[Place, Any]]:
    """Yield what stands in a file, every field of it, each with its place, for messages.

    Args:
        path: A file, folder, URL or pattern that :func:`source_of` knows.

    Raises:
        InputError: If the file cannot be read.
    """
    for entry in source_of(path).entries(Start(), None):
        yield entry.place, entry.record


def read_questions(path: str | Anywhere, columns: Mapping[Field, str] | None = None) -> Iterator[Question]:
    r"""Yield questions with their gold answers and ids, where there are some; contexts are not needed.

    Args:
        path: A file, folder, URL or pattern that :func:`source_of` knows.
        columns: Which column is what, where it is not found by its name.

    Raises:
        InputError: If a row cannot be used, naming file, row, field and what was found.
        MissingExtraError: If it is a table in Parquet or Arrow and pyarrow is not installed.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder) / "ragas.csv"
        ...     _ = file.write_text("user_input,reference\nWhere was Ada born?,Velm\n")
        ...     list(read_questions(file))
        [Question(text='Where was Ada born?', golds=('Velm',), id='')]
    """
    for one in parsed(source_of(path), Start(), columns or {}, QUESTION):
        yield Question(one.question, one.golds, one.id or "")


def question_of(record: Mapping[str, Any], number: int) -> Question:
    """Return a record that stands in no file as a question, by the names of fields that files may have.

    Args:
        record: With a question and perhaps gold answers and an id.
        number: Which of the questions it is, for messages.

    Raises:
        InputError: If it cannot be used, naming field and what was found.

    Example:
        >>> question_of({"user_input": "Where was Ada born?", "reference": "Velm"}, 1)
        Question(text='Where was Ada born?', golds=('Velm',), id='')
    """
    place = Place(Path("the questions"), "number", number)
    columns = columns_of(record, {}, QUESTION, place)
    one = _parsed(Entry(Start(), place, record), record, columns, QUESTION, cells=False)
    return Question(one.question, one.golds, one.id or "")


def read_rows(path: str | Anywhere, columns: Mapping[Field, str] | None = None) -> Iterator[Row]:
    """Yield rows in the order of the file; see :class:`surerag.evaluation.inputs.DataSet` for large ones.

    Args:
        path: A file, folder, URL or pattern that :func:`source_of` knows.
        columns: Which column is what, where it is not found by its name.

    Raises:
        InputError: If a row cannot be used, or two are about the same question of the same system.
    """
    source = source_of(path)
    names = Names(source, columns or {})
    for one in parsed(source, Start(), columns or {}, ROW):
        yield row_of(one, names.name(one))


def parsed(
    source: Source, start: Start, given: Mapping[Field, str], needed: Sequence[Field]
) -> Iterator[Parsed]:
    """Yield the rows of a source whose fields are right; questions that have no answer are left out.

    Raises:
        InputError: If a row's are not.
    """
    found: dict[tuple[str, ...], Columns] = {}
    for entry in source.entries(start, partial(wanted, given=given)):
        record, place = entry.record, entry.place
        if not isinstance(record, Mapping):
            raise unfit(place, "the row", "an object with the fields " + ", ".join(map(repr, needed)), record)
        if record.get("is_impossible") is True:
            continue
        shape = tuple(name for name, value in record.items() if value is not None)
        columns = found.get(shape)
        if columns is None:
            if len(found) == _KEPT:
                found.clear()
            columns = found[shape] = columns_of(record, given, needed, place)
        yield _parsed(entry, record, columns, needed, cells=source.cells)


def _parsed(
    entry: Entry, record: Mapping[str, Any], columns: Columns, needed: Sequence[Field], *, cells: bool
) -> Parsed:
    place = entry.place
    given = {field: value_of(record, getattr(columns, field)) for field in Columns._fields}
    for field in needed:
        if given[field] is None:
            raise missing_value(field, record, needed, place)
    golds: tuple[str, ...] = ()
    if given["answers"] is not None and ("answers" in needed or from_cell(given["answers"]) != []):
        golds = golds_field(given["answers"], place, cells=cells)
    contexts: tuple[tuple[Passage, ...], ...] = ()
    if "contexts" in needed:
        value, column = given["contexts"], str(columns.contexts)
        if column == "retrieval_context":
            value = from_deepeval(value)
        contexts = contexts_field(value, place, cells=cells, single=column.endswith("context"))
    return Parsed(
        entry=entry,
        columns=columns,
        id=None if given["id"] is None else name_field(given["id"], "id", place),
        system=None if given["system"] is None else text_field(given["system"], "system", place),
        question=text_field(given["question"], "question", place),
        golds=golds,
        contexts=contexts,
    )


def row_of(one: Parsed, name: str) -> Row:
    """Return a row under its name."""
    system = ONE_SYSTEM if one.system is None else one.system
    return Row(name, system, one.question, one.golds, one.contexts)


class Names:
    """Names rows, and keeps them apart: one row for each question of each system.

    A row without an id is named by its question. The same question again is another one; the second of one
    system belongs to another's second.
    """

    def __init__(self, source: Source, given: Mapping[Field, str]) -> None:
        self._source, self._given = source, given
        self._keys, self._texts, self._kinds, self._questions = Seen(), Seen(), Seen(), Seen()
        self._named: bool | None = None
        self._with_ids: set[bool] = set()
        self._times: dict[tuple[str, str], int] = {}

    def name(self, one: Parsed) -> str:
        """Return a row's name.

        Raises:
            InputError: If another row has it, or only some rows name their system.
        """
        place, named = one.entry.place, one.system is not None
        if self._named is None:
            self._named = named
        if named != self._named:
            raise InputError(
                f"{place}: {'a' if named else 'no'} field 'system', other than in the rows before",
                hint="give every row the name of its system, or none",
            )
        system, given = one.system or ONE_SYSTEM, one.id is not None
        if given not in self._with_ids:
            self._with_ids.add(given)
            if self._mixed:  # only now does it matter what came before
                self._look_back(one.entry.start)
        name = one.question if one.id is None else one.id
        again = self._keys.add(system, name)
        if not given and (self._texts.add(system, name) if self._mixed else again):
            times = self._times[system, name] = self._times.get((system, name), 1) + 1
            name = called(one, times)
            again = self._keys.add(system, name)
        if self._mixed:
            self._check_kind(one, name)
        if again and (before := self._first(one, lambda row, own: (row.system, own) == (one.system, name))):
            of_system = "" if one.system is None else f" of the system {system!r}"
            raise InputError(
                f"{place}: the id {name!r}{of_system} stands in {before.unit} {before.number} already",
                hint="give each question an id of its own; leave all ids out if there are none",
            )
        return name

    @property
    def _mixed(self) -> bool:
        """Whether some rows have ids, and some do not."""
        return len(self._with_ids) == 2

    def _check_kind(self, one: Parsed, name: str) -> None:
        """Refuse the id of one question that is the text of another."""
        given = one.id is not None
        other = (name, not given) in self._kinds and (name, one.question) not in self._questions
        self._note(one, name)
        if other and (before := self._first(one, lambda _, own: own == name)):
            raise InputError(
                f"{one.entry.place}: {name!r} is the id of one question and the text of another, "
                f"which stands in {before.unit} {before.number}",
                hint="give each question an id of its own; leave all ids out if there are none",
            )

    def _note(self, one: Parsed, name: str) -> None:
        self._kinds.add(name, one.id is not None)
        self._questions.add(name, one.question)

    def _look_back(self, end: Start) -> None:
        again = Names(self._source, self._given)
        for row in parsed(self._source, Start(), self._given, ROW):
            if row.entry.start == end:
                break
            self._note(row, again.name(row))
            if row.id is None:
                self._texts.add(row.system or ONE_SYSTEM, row.question)

    def _first(self, one: Parsed, is_it: Callable[[Parsed, str], bool]) -> Place | None:
        """Look for the first such row again: digests were kept, not rows."""
        times: Counter[tuple[str | None, str]] = Counter()
        for row in parsed(self._source, Start(), self._given, ROW):
            if row.entry.start == one.entry.start:
                return None
            times[row.system, row.question] += row.id is None
            if is_it(row, called(row, times[row.system, row.question])):
                return row.entry.place
        return None


def called(row: Parsed, times: int) -> str:
    """Return a row's name: its id, or its question, numbered from the second time on."""
    if row.id is not None:
        return row.id
    return row.question if times < 2 else f"{row.question} ({times})"
