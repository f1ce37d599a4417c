"""What is read, from any record on: a file, several of one format, or a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from surerag.evaluation.inputs.entries import Choose, Entry, Reading, Start
from surerag.evaluation.inputs.foreign import unfolded
from surerag.places import Anywhere


@dataclass(frozen=True, slots=True)
class Source:
    """A file, several, or a folder, that can be read from any record on, holding some at a time.

    Attributes:
        path: What the user named.
        form: What it was taken for.
        files: All files that are looked into.
        readings: What is read, one after the other: a file each, or all files of a folder at once.
        cells: Whether lists may stand in texts, as JSON, because cells hold nothing else.
    """

    path: Anywhere
    form: str
    files: tuple[Anywhere, ...]
    readings: tuple[Reading, ...]
    cells: bool = False

    def entries(self, start: Start, choose: Choose | None) -> Iterator[Entry]:
        """Yield the records from a place on."""
        for number, reading in islice(enumerate(self.readings), start.file, None):
            begin = start if number == start.file else Start()
            for entry in unfolded(reading(begin._replace(skip=0), choose), begin.skip):
                yield entry._replace(start=entry.start._replace(file=number))

    def stamp(self) -> list[list[Any]]:
        """Return name, length and time of every file: as long as they are the same, so is what it holds.

        Of a file elsewhere, it is the tag or time that its file system tells.
        """
        return [[file.name, *_version(file)] for file in self.files]


def _version(file: Anywhere) -> list[Any]:
    if not isinstance(file, Path):
        return file.version()
    about = file.stat()
    return [about.st_size, about.st_mtime_ns]
