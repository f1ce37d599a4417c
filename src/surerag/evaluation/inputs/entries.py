"""What every format gives: records one by one, each with its place for messages, and where to start again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from surerag.places import Anywhere


class Start(NamedTuple):
    """Where a record stands, as its format counts.

    Attributes:
        offset: Bytes or rows before it, in its file; of a compressed file, bytes as they are unpacked.
        number: Of its line or row, from 1.
        skip: Rows before it that stand in the same place, such as other questions of a SQuAD article.
        file: Files before its own.
    """

    offset: int = 0
    number: int = 1
    skip: int = 0
    file: int = 0


class Place(NamedTuple):
    """Where a record stands, for messages."""

    file: Anywhere
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


Reading = Callable[[Start, Choose | None], Iterator[Entry]]
"""Reads a file from a place on; tables read only the columns that are chosen."""
