"""A file in which a long run notes every answer it gets, so that it can be killed and go on.

Each line is one JSON object. The first names the run: its data, settings and models. Every other one holds
an answer under the digest of what was asked. Lines are only ever appended, and are on the disk before
anyone acts on the answer. What a kill can cost is therefore what was being asked at that moment, and
nothing that was answered before. A line that was cut off is completed by asking again.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from surerag.errors import ConfigurationError, InputError
from surerag.lines import LineFile, Span

FORMAT = 1
_SHOWN = 100
_HEAD = b'{"run":{"format":'
_MEND = "take that line out, or begin anew with --restart (on_change='restart')"
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
        self._places: dict[str, Span] = {}
        self._lock = threading.Lock()
        run = json.loads(json.dumps({"format": FORMAT, **run}))
        self._lines = LineFile(
            file, _HEAD, what="a journal of answers", kept="what was answered before is kept", mend=_MEND
        )
        try:
            if on_change == "restart":
                self._lines.clear()
            before = self._read()
            if before != run:
                if before is not None and on_change == "error":
                    raise _differs(file, before, run)
                self._lines.append([{"run": run}])
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
        self._lines.close()

    def get(self, key: str) -> Any:
        """Return an answer as plain JSON values; None if there is none."""
        with self._lock:
            span = self._places.get(key)
            return None if span is None else self._lines.at(span)["answer"]

    def put(self, answers: Mapping[str, Any]) -> None:
        """Append answers in one write, and return when they are on the disk.

        Raises:
            StorageError: If they are not; what was kept before stays.
        """
        with self._lock:
            spans = self._lines.append([{"key": key, "answer": answer} for key, answer in answers.items()])
            self._places.update(zip(answers, spans, strict=True))

    def check(self) -> None:
        """Raise if answers can no longer be kept, so that none is paid for in vain.

        Raises:
            StorageError: If an answer could not be written before.
        """
        self._lines.check()

    def _read(self) -> Any:
        """Note where every answer stands, and return the last run that was noted; None if there was none."""
        run = None
        for number, (span, record) in enumerate(self._lines.read(), start=1):
            if isinstance(record.get("run"), dict):
                run = record["run"]
            elif isinstance(record.get("key"), str) and "answer" in record:
                self._places[record["key"]] = span
            else:
                raise InputError(f"{self._lines.file} is damaged in line {number}", hint=_MEND)
        return run


def _differs(file: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> ConfigurationError:
    names = [*now, *(name for name in before if name not in now)]
    changes = [
        f"{name} was {_shortened(before.get(name))} and is {_shortened(now.get(name))}"
        for name in names
        if before.get(name) != now.get(name)
    ]
    return ConfigurationError(
        f"{file} holds the answers of another run: {'; '.join(changes)}",
        hint="write to another folder; or go on and keep the answers that still apply with --reuse "
        "(on_change='reuse'); or begin anew with --restart (on_change='restart')",
    )


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
