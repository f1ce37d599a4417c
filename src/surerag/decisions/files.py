"""Rows in a file: JSON lines, a question each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from surerag.decisions.rows import DecisionRow
from surerag.errors import InputError

_EXPECTED = 'a line such as {"signals": {"perplexity": 1.3}, "correct_without": true, "correct_with": true}'


def read_rows(file: str | Path) -> list[DecisionRow]:
    """Read rows from JSON lines.

    A line holds ``signals`` (numbers by name; null, or ``"inf"``, where the first answer was empty) and,
    where they are known, ``correct_without`` and ``correct_with`` (true, false, or a score), ``cost`` and
    ``id``.

    Raises:
        InputError: If the file cannot be read, or a line holds something else; with the line's number.
    """
    return list(iter_rows(file))


def iter_rows(file: str | Path) -> Iterator[DecisionRow]:
    """Yield what :func:`read_rows` returns, one row at a time.

    Raises:
        InputError: As there.
    """
    there = False
    try:
        with Path(file).open(encoding="utf-8") as lines:
            for at, line in enumerate(lines, 1):
                if line.strip():
                    yield _row(line, f"{file}, line {at}")
                    there = True
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}", hint="name a file of JSON lines") from error
    if not there:
        raise InputError(f"{file} holds no rows", hint=f"write {_EXPECTED}")


def write_rows(rows: list[DecisionRow], file: str | Path) -> None:
    """Write rows as JSON lines."""
    written = [
        {
            "id": row.id,
            "signals": {name: _plain(value) for name, value in row.signals.items()},
            "correct_without": None if row.correct_without is None else float(row.correct_without),
            "correct_with": None if row.correct_with is None else float(row.correct_with),
            "cost": row.cost,
        }
        for row in rows
    ]
    lines = [json.dumps(one, ensure_ascii=False, allow_nan=False) for one in written]
    Path(file).write_text("\n".join([*lines, ""]), encoding="utf-8")


def _row(line: str, where: str) -> DecisionRow:
    try:
        found: Any = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where} is no JSON: {error}", hint=f"write {_EXPECTED}") from error
    known = {"signals", "correct_without", "correct_with", "cost", "id"}
    if not isinstance(found, dict) or not isinstance(found.get("signals"), dict) or found.keys() - known:
        told = f"the keys {', '.join(map(str, found))}" if isinstance(found, dict) else type(found).__name__
        raise InputError(f"{where}: expected signals and scores, found {told}", hint=f"write {_EXPECTED}")
    signals = {name: _number(value) for name, value in found["signals"].items()}
    try:
        return DecisionRow(**{**found, "signals": signals})
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _number(value: Any) -> Any:
    return math.inf if value is None or value == "inf" else value


def _plain(value: float) -> float | str:
    return "inf" if value == math.inf else value
