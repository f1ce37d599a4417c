"""What every format gives: records one by one, each with its place for messages, and where to start again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from surerag.errors import InputError


class Start(NamedTuple):
    """Where a record stands, as its format counts.

    Attributes:
        offset: Bytes or rows before it.
        number: Of its line or row, from 1.
        skip: Rows before it that stand in the same place, such as other questions of a SQuAD article.
    """

    offset: int = 0
    number: int = 1
    skip: int = 0


class Place(NamedTuple):
    """Where a record stands, for messages."""

    file: Path
    unit: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"


class Entry(NamedTuple):
    """A record as it stands in the file."""

    start: Start
    place: Place
    record: Any


Choose = Callable[[Sequence[str]], Sequence[str]]
"""From the names of a table's columns to those that are wanted."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file or folder that can be read from any record on, holding some at a time.

    Attributes:
        path: What the user named.
        form: What it was taken for.
        files: All files that are read.
        entries: Reads from a place on; tables read only the columns that are chosen.
        cells: Whether lists may stand in texts, as JSON, because cells hold nothing else.
    """

    path: Path
    form: str
    files: tuple[Path, ...]
    entries: Callable[[Start, Choose | None], Iterator[Entry]]
    cells: bool = False

    def stamp(self) -> list[list[Any]]:
        """Return name, length and time of every file: as long as they are the same, so is what they hold."""
        found = [(file.name, file.stat()) for file in self.files]
        return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in found]


def opened(file: Path) -> IO[bytes]:
    """Open a file for reading bytes.

    Raises:
        InputError: If this user may not.
    """
    try:
        return file.open("rb")
    except OSError as error:
        raise InputError(
            f"{file} cannot be read: {error.strerror}", hint="give a file that this user may read"
        ) from error
