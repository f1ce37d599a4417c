"""A file in which a long run notes every answer it gets, so that it can be killed and go on.

Each line is one JSON object. The first names the run: its data, settings and models. Every other one holds
an answer under the digest of what was asked. Lines are only ever appended, and are on the disk before
anyone acts on the answer. What a kill can cost is therefore what was being asked at that moment, and
nothing that was answered before. A line that was cut off is completed by asking again.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, Self

from surerag.errors import ConfigurationError, InputError
from surerag.storage import storing, unwritable

FORMAT = 1
_SHOWN = 100
_HEAD = b'{"run":{"format":'
_KEPT = "what was answered before is kept"
OnChange = Literal["error", "reuse", "restart"]


class Answers(Protocol):
    """Where answers are kept, under the digests of what was asked."""

    def get(self, key: str) -> Any:
        """Return an answer as plain JSON values; None if there is none."""

    def put(self, answers: Mapping[str, Any]) -> None:
        """Keep answers for good."""

    def check(self) -> None:
        """Raise a StorageError if answers can no longer be kept; ask nothing more then."""


class Memory:
    """Keeps answers as long as it lives."""

    def __init__(self) -> None:
        self._answers: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        """Return an answer, or None."""
        return self._answers.get(key)

    def put(self, answers: Mapping[str, Any]) -> None:
        """Keep answers."""
        self._answers.update(answers)

    def check(self) -> None:
        """Do nothing: there is room."""


class _Span(NamedTuple):
    """Where a line stands in the file, in bytes."""

    start: int
    length: int


class Journal:
    """Keeps answers in a file; only their places are held in memory. Thread-safe; one process at a time.

    What could not be written whole is taken out again, so that the file stays readable. After the disk has
    failed once, nothing more is kept: see :meth:`check`.

    Args:
        file: Made if it is not there, with its folder.
        run: What the answers belong to: plain values under readable names, such as
            ``{"samples": 10, "reader": "…", "data": "200 rows, …"}``.
        on_change: What to do if the file belongs to a run with other values: ``"error"``; ``"reuse"`` the
            answers to all that is asked again, word for word, of the same model; or ``"restart"``.

    Attributes:
        found: Answers that were there when the file was opened.

    Raises:
        ConfigurationError: If the file belongs to another run, naming what differs; or if another process
            has it open.
        InputError: If it is damaged elsewhere than at its end, or not a journal; that is left as it is.
        StorageError: If it cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     with Journal(Path(folder) / "journal.jsonl", {"samples": 10}) as journal:
        ...         journal.put({"a1": ["Velm"]})
        ...     with Journal(Path(folder) / "journal.jsonl", {"samples": 10}) as journal:
        ...         print(journal.found, journal.get("a1"))
        1 ['Velm']
    """

    def __init__(self, file: Path, run: Mapping[str, Any], *, on_change: OnChange = "error") -> None:
        self._file = file
        self._places: dict[str, _Span] = {}
        self._lock = threading.Lock()
        self._failure: OSError | None = None
        self._handle = -1
        run = json.loads(json.dumps({"format": FORMAT, **run}))
        try:
            with storing(file):
                file.parent.mkdir(parents=True, exist_ok=True)
                is_new = not file.exists()
                self._handle = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
                self._claim()
                self._check_is_journal()
                if on_change == "restart":
                    os.ftruncate(self._handle, 0)
                self._end, before = self._read()
                if before != run:
                    if before is not None and on_change == "error":
                        raise self._differs(before, run)
                    self._append([{"run": run}])
                if is_new:
                    _sync_folder(file.parent)
        except BaseException:
            self.close()
            raise
        self.found = len(self._places)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; closing again does nothing."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def get(self, key: str) -> Any:
        """Return an answer as plain JSON values; None if there is none."""
        with self._lock:
            span = self._places.get(key)
            if span is None:
                return None
            os.lseek(self._handle, span.start, os.SEEK_SET)
            line = _read_exactly(self._handle, span.length)
        return json.loads(line)["answer"]

    def put(self, answers: Mapping[str, Any]) -> None:
        """Append answers in one write, and return when they are on the disk.

        Raises:
            StorageError: If they are not; what was kept before stays.
        """
        with self._lock:
            self.check()
            spans = self._append([{"key": key, "answer": answer} for key, answer in answers.items()])
            self._places.update(zip(answers, spans, strict=True))

    def check(self) -> None:
        """Raise if answers can no longer be kept, so that none is paid for in vain.

        Raises:
            StorageError: If an answer could not be written before.
        """
        if self._failure is not None:
            raise unwritable(self._file, self._failure, kept=_KEPT) from self._failure

    def _append(self, records: list[dict[str, Any]]) -> list[_Span]:
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
        return [_Span(start, end - start) for start, end in pairwise(ends)]

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

    def _check_is_journal(self) -> None:
        """Refuse a file that somebody else wrote, before any of it is touched."""
        os.lseek(self._handle, 0, os.SEEK_SET)
        head = os.read(self._handle, len(_HEAD))
        if head != _HEAD[: len(head)]:
            raise InputError(
                f"{self._file} is not a journal of answers: it begins with {head!r}",
                hint="write to another folder, or move that file away",
            )

    def _read(self) -> tuple[int, Any]:
        """Note where every answer stands; cut off what a kill left unfinished.

        Returns:
            Where the whole lines end, and the last run that was noted; None if there was none.
        """
        run, end = None, 0
        line: bytes = b""
        record: Any = _UNFINISHED
        size = os.fstat(self._handle).st_size
        with open(os.dup(self._handle), "rb") as lines:  # noqa: PTH123 (a descriptor has no path)
            lines.seek(0)
            for number, line in enumerate(lines, start=1):
                record = _parsed(line)
                if record is _UNFINISHED and end + len(line) == size:
                    break
                if not _is_record(record):
                    raise InputError(
                        f"{self._file} is damaged in line {number}",
                        hint="take that line out, or begin anew with --restart (on_change='restart')",
                    )
                if "run" in record:
                    run = record["run"]
                else:
                    self._places[record["key"]] = _Span(end, len(line))
                end += len(line)
        os.ftruncate(self._handle, end)
        if end and not line.endswith(b"\n") and record is not _UNFINISHED:
            os.lseek(self._handle, end, os.SEEK_SET)
            _write_all(self._handle, b"\n")
            end += 1
        return end, run

    def _differs(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> ConfigurationError:
        names = [*now, *(name for name in before if name not in now)]
        changes = [
            f"{name} was {_shortened(before.get(name))} and is {_shortened(now.get(name))}"
            for name in names
            if before.get(name) != now.get(name)
        ]
        return ConfigurationError(
            f"{self._file} holds the answers of another run: {'; '.join(changes)}",
            hint="write to another folder; or go on and keep the answers that still apply with --reuse "
            "(on_change='reuse'); or begin anew with --restart (on_change='restart')",
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
                f"another process is writing to {self._file}", hint="wait until it is done, or end it"
            ) from error


_UNFINISHED: Final = object()


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return _UNFINISHED


def _is_record(found: Any) -> bool:
    if not isinstance(found, dict):
        return False
    return isinstance(found.get("run"), dict) or (isinstance(found.get("key"), str) and "answer" in found)


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _read_exactly(handle: int, length: int) -> bytes:
    parts: list[bytes] = []
    while length > 0:
        part = os.read(handle, length)
        if not part:
            raise InputError("the journal was cut short while it was open", hint="run again")
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
