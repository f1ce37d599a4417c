"""Questions in groups that are read when they are needed: finished ones are known by a digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from surerag.errors import InputError
from surerag.evaluation.inputs.columns import Field
from surerag.evaluation.inputs.entries import Start
from surerag.evaluation.inputs.opening import source_of
from surerag.evaluation.inputs.reading import QUESTION, Parsed, parsed, question_of
from surerag.evaluation.inputs.seen import Seen
from surerag.evaluation.inputs.source import Source
from surerag.evaluation.rows import Question
from surerag.places import Anywhere
from surerag.remote import Remote
from surerag.storage import write_whole

CHECKED: Final = "questions.json"
_VERSION = 1

Asked = Question | str | tuple[str, Iterable[str]] | Mapping[str, Any]


class Group(NamedTuple):
    """Some questions in a row.

    Attributes:
        size: How many.
        digest: Of their texts, gold answers and ids.
        read: Gives them.
    """

    size: int
    digest: str
    read: Callable[[], Sequence[Question]]


@dataclass(frozen=True, slots=True)
class QuestionFile:
    """A file of questions that was read once, to its end; its groups are then read from any one on.

    Attributes:
        path: What the user named.
        form: What the file was taken for.
        told: Which fields were found under other names, in words.
        given: Which column is what, as the user said.
        total: How many questions there are.
        size: How many a group has.
        starts: Where each group begins.
        digests: Of each group.
        source: What they are read from.
    """

    path: Anywhere
    form: str
    told: str
    given: Mapping[Field, str]
    total: int
    size: int
    starts: tuple[Start, ...]
    digests: tuple[str, ...]
    source: Source = field(compare=False, repr=False)

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[Question]:
        """Read the questions again, one at a time."""
        return islice(map(_question, self._from(Start())), self.total)

    def groups(self) -> Iterator[Group]:
        """Yield the groups in order; nothing is read."""
        for at, (start, digest) in enumerate(zip(self.starts, self.digests, strict=True)):
            size = min(self.size, self.total - at * self.size)
            yield Group(size, digest, partial(self._read, start, size))

    def _read(self, start: Start, size: int) -> list[Question]:
        return [_question(one) for one in islice(self._from(start), size)]

    def _from(self, start: Start) -> Iterator[Parsed]:
        return parsed(self.source, start, self.given, QUESTION)


def check_questions(
    path: str | Anywhere,
    columns: Mapping[Field, str] | None = None,
    *,
    size: int,
    limit: int | None = None,
    folder: Path | None = None,
    unique: bool = False,
) -> QuestionFile:
    """Read a file of questions to its end, holding one at a time.

    Args:
        path: A file, folder, URL or pattern that :func:`source_of` knows.
        columns: Which column is what, where it is not found by its name.
        size: Questions in a group.
        limit: Take the first ones only.
        folder: Where to note what was found, so that the same unchanged file is not read again.
        unique: Whether no two questions may have one id, or one text where there are none.

    Raises:
        InputError: If a row cannot be used, naming file, row, field and what was found; if two questions
            are the same; or if there is none.
        StorageError: If the folder cannot be written.
    """
    source, given = source_of(path), dict(columns or {})
    stamp = [_VERSION, size, limit, unique, str(source.path), source.stamp(), given]
    if folder is not None and (known := _known(folder / CHECKED, stamp)) is not None:
        starts, digests = known["groups"]
        form, told, total = (known[name] for name in ("form", "told", "total"))
        return QuestionFile(source.path, form, told, given, total, size, starts, digests, source)
    first, begins, total = "", list[Start](), 0

    def noted() -> Iterator[Question]:
        nonlocal first, total
        for one in islice(parsed(source, Start(), given, QUESTION), limit):
            if total % size == 0:
                begins.append(one.entry.start)
            first, total = first or one.columns.told(), total + 1
            yield _question(one)

    found_digests = [group.digest for group in groups_of(noted(), size, unique=unique)]
    if not total:
        raise InputError(f"{path} holds no questions", hint="one row for each question")
    found = QuestionFile(
        source.path, source.form, first, given, total, size, tuple(begins), tuple(found_digests), source
    )
    if folder is not None:
        noted_down = {"form": found.form, "told": first, "total": total, "groups": [begins, found_digests]}
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / CHECKED, json.dumps({"stamp": stamp, "data": noted_down}) + "\n")
    return found


def groups_of(
    questions: Iterable[Asked] | QuestionFile, size: int, *, unique: bool = False
) -> Iterator[Group]:
    """Yield questions in groups: those of a file that was checked unread, others as they come.

    Args:
        questions: Texts, pairs of a text and gold answers, :class:`Question`, or records by the names of
            fields that files may have.
        size: How many in a group; that of a file's own groups.
        unique: Whether no two may have one id, or one text where there are none.

    Raises:
        InputError: If one is empty or none, if two have one id, or if a text or path is given in their place.
    """
    if isinstance(questions, QuestionFile) and questions.size == size:
        yield from questions.groups()
        return
    if isinstance(questions, str | Path | Remote):
        raise InputError(
            f"questions are a list, got {str(questions)!r}",
            hint="pass [question]; surerag.evaluation.inputs.read_questions(path) reads those of a file",
        )
    remaining, seen = enumerate(questions, 1), Seen()
    while group := [as_question(one, number) for number, one in islice(remaining, size)]:
        for one in group:
            if unique and seen.add(one.id or one.text):
                raise InputError(
                    f"two questions have the id {one.id or one.text!r}",
                    hint="give each question an id of its own",
                )
        yield Group(len(group), _digest(group), lambda group=group: group)  # type: ignore[misc]  # bound now


def as_question(given: Asked, number: int) -> Question:
    """Return what a user gave as a question.

    Raises:
        InputError: If it is none, or empty, or its gold answers are no list.
    """
    if isinstance(given, Mapping):
        return question_of(given, number)
    parts: Any = (given,) if isinstance(given, str) else given
    if not isinstance(parts, Sequence) or not 1 <= len(parts) <= 3:
        raise InputError(
            f"question {number} must be a text, a text with its gold answers, or a record, got {given!r}",
            hint='write ("Where was Ada born?", ["Velm"])',
        )
    text, golds, name = Question(*parts)
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"a question must be a text that is not empty, got {text!r}")
    if isinstance(golds, str):
        raise InputError(
            f"the gold answers of {text!r} must be a list, got a text", hint=f"write [{golds!r}]"
        )
    return Question(text, tuple(golds), name)


def _question(one: Parsed) -> Question:
    return Question(one.question, one.golds, one.id or "")


def _digest(group: Sequence[Question]) -> str:
    told = json.dumps([list(question) for question in group])
    return hashlib.sha256(told.encode("ascii")).hexdigest()[:32]


def _known(file: Path, stamp: Sequence[Any]) -> dict[str, Any] | None:
    """Return what was found before, if the file is as it was then."""
    try:
        noted = json.loads(file.read_text(encoding="utf-8"))
        if noted["stamp"] != json.loads(json.dumps(stamp)):
            return None
        data: dict[str, Any] = noted["data"]
        starts, digests = data["groups"]
        data["groups"] = (tuple(Start(*start) for start in starts), tuple(digests))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return data
