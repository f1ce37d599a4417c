"""A file of JSON lines that only grows: a line is there whole or not at all; one process writes at a time."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from surerag.errors import ConfigurationError, InputError
from surerag.storage import storing, unwritable


class Span(NamedTuple):
    """Where a line stands in the file, in bytes."""

    start: int
    length: int


class LineFile:
    """Appends lines to a file, each on the disk before anyone acts on it.

    What could not be written whole is taken out again, so that the file stays readable. After the disk has
    failed once, nothing more is kept: see :meth:`check`. Not thread-safe.

    Args:
        file: Made if it is not there, with its folder.
        head: What every such file begins with, so that somebody else's is never touched.
        what: Such a file in words.
        kept: A sentence about what is not lost where the disk fails.
        mend: What to do about a damaged file.

    Raises:
        ConfigurationError: If another process has it open.
        InputError: If the file is something else; that is left as it is.
        StorageError: If it cannot be written.
    """

    def __init__(self, file: Path, head: bytes, *, what: str, kept: str, mend: str) -> None:
        self.file = file
        self._head, self._what, self._kept, self._mend = head, what, kept, mend
        self._end = 0
        self._failure: OSError | None = None
        self._handle = -1
        try:
            with storing(file):
                file.parent.mkdir(parents=True, exist_ok=True)
                is_new = not file.exists()
                self._handle = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
                self._claim()
                self._check_head()
                if is_new:
                    _sync_folder(file.parent)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file; closing again does nothing."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def clear(self) -> None:
        """Take all lines out."""
        with storing(self.file):
            os.ftruncate(self._handle, 0)
        self._end = 0

    def read(self) -> Iterator[tuple[Span, dict[str, Any]]]:
        """Yield all lines with their places, and cut off what a kill left unfinished. Read it to its end.

        Raises:
            InputError: If the file is damaged elsewhere than at its end.
        """
        with storing(self.file):
            size = os.fstat(self._handle).st_size
            with open(os.dup(self._handle), "rb") as lines:  # noqa: PTH123 (a descriptor has no path)
                lines.seek(0)
                found = whole_records(lines, size)
                end, ended = 0, True
                for number, (line, record) in enumerate(found, start=1):
                    if not isinstance(record, dict):
                        raise InputError(f"{self.file} is damaged in line {number}", hint=self._mend)
                    yield Span(end, len(line)), record
                    end, ended = end + len(line), line.endswith(b"\n")
            os.ftruncate(self._handle, end)
            if not ended:
                os.lseek(self._handle, end, os.SEEK_SET)
                _write_all(self._handle, b"\n")
                end += 1
        self._end = end

    def at(self, span: Span) -> dict[str, Any]:
        """Return the line that stands at a place."""
        os.lseek(self._handle, span.start, os.SEEK_SET)
        found: dict[str, Any] = json.loads(_read_exactly(self._handle, span.length, self.file))
        return found

    def append(self, records: Sequence[Mapping[str, Any]]) -> list[Span]:
        """Append lines in one write, and return where they stand when they are on the disk.

        Raises:
            StorageError: If they are not; what was kept before stays.
        """
        self.check()
        # ASCII only: a kill can then cut a line, but never a character.
        lines = [json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n" for record in records]
        try:
            os.lseek(self._handle, self._end, os.SEEK_SET)
            _write_all(self._handle, b"".join(lines))
            os.fsync(self._handle)
        except BaseException as error:
            self._take_back(error)
            raise
        ends = list(accumulate(map(len, lines), initial=self._end))
        self._end = ends[-1]
        return [Span(start, end - start) for start, end in pairwise(ends)]

    def check(self) -> None:
        """Raise if lines can no longer be kept.

        Raises:
            StorageError: If one could not be written before.
        """
        if self._failure is not None:
            raise unwritable(self.file, self._failure, kept=self._kept) from self._failure

    def _take_back(self, error: BaseException) -> None:
        """Cut off what a failed or interrupted write left: the next line must not be joined to it."""
        if isinstance(error, OSError):
            self._failure = error
        try:
            os.ftruncate(self._handle, self._end)
        except OSError as again:
            # Nothing is written after it any more; whoever opens the file next cuts it off.
            self._failure = self._failure or again
        self.check()

    def _check_head(self) -> None:
        """Refuse a file that somebody else wrote, before any of it is touched."""
        os.lseek(self._handle, 0, os.SEEK_SET)
        head = os.read(self._handle, len(self._head))
        if head != self._head[: len(head)]:
            raise InputError(
                f"{self.file} is not {self._what}: it begins with {head!r}",
                hint="write to another folder, or move that file away",
            )

    def _claim(self) -> None:
        """Lock the file for this process; the lock ends with the process, however that ends."""
        if sys.platform == "win32":
            return
        import fcntl

        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigurationError(
                f"another process is writing to {self.file}", hint="wait until it is done, or end it"
            ) from error


_UNREADABLE: Final = object()


def whole_records(lines: Any, size: int) -> Iterator[tuple[bytes, Any]]:
    """Yield lines and what they say: a last one that is cut off is left out, any other damaged one is None.

    Args:
        lines: A file that is open for reading bytes, at its beginning.
        size: Its length.
    """
    end = 0
    for line in lines:
        record = _parsed(line)
        end += len(line)
        if record is _UNREADABLE and end == size:
            return
        yield line, None if record is _UNREADABLE else record


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return _UNREADABLE


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _read_exactly(handle: int, length: int, file: Path) -> bytes:
    parts: list[bytes] = []
    while length > 0:
        part = os.read(handle, length)
        if not part:
            raise InputError(f"{file} was cut short while it was open", hint="run again")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _sync_folder(folder: Path) -> None:
    """Put the name of a new file on the disk; not needed, and not possible, on Windows."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
