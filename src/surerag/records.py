"""Rows of CSV files and values of JSON and JSON Lines, with the lines where they begin."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from threading import Lock
from typing import Any, NamedTuple

from surerag.errors import InputError

_DELIMITERS = ",;\t|"
_LONGEST_CELL = 2**31 - 1
_SAMPLE = 2**16
_CELLS = Lock()
"""Held while the length of a cell, which the csv module limits for the whole process, is not limited."""


class Record(NamedTuple):
    """A row or value, and the number of its last line, or its place in an array."""

    line: int
    value: Any


def csv_delimiter(text: str) -> str:
    r"""Return the delimiter that cuts most lines of a table into equally many cells.

    Example:
        >>> csv_delimiter("name;price\nZoë, the elder;1,50\nAda;2,00")
        ';'
    """
    sample = text[:_SAMPLE].rpartition("\n")[0] if len(text) > _SAMPLE else text

    def fit(delimiter: str) -> tuple[float, int]:
        widths = Counter(len(record.value) for record in csv_rows(sample, delimiter))
        (width, rows), *_ = widths.most_common(1) or [(1, 0)]
        return (rows / widths.total(), -_DELIMITERS.index(delimiter)) if width > 1 else (0, 0)

    return max(_DELIMITERS, key=fit)


def csv_rows(text: str, delimiter: str = "") -> list[Record]:
    """Return the rows of a table as lists of cells, without those that are empty.

    Where a quotation mark is opened and never closed, quotation marks are characters like any other.

    Args:
        text: The file; Excel's first line ``sep=;`` is understood.
        delimiter: One character; by default the one that fits.
    """
    first, _, rest = text.partition("\n")
    if first.lower().startswith("sep=") and len(first.strip()) == 5:
        text, delimiter = rest, first[4]
    delimiter = delimiter or csv_delimiter(text)
    with _CELLS:
        usual = csv.field_size_limit(_LONGEST_CELL)
        try:
            try:
                return _rows(text, delimiter, strict=True)
            except csv.Error as error:
                quoting = csv.QUOTE_NONE if "end of data" in str(error) else csv.QUOTE_MINIMAL
                return _rows(text, delimiter, quoting=quoting)
        finally:
            csv.field_size_limit(usual)


def _rows(text: str, delimiter: str, **dialect: Any) -> list[Record]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, **dialect)
    rows = (Record(reader.line_num, [cell.strip() for cell in row]) for row in reader)
    return [row for row in rows if any(row.value)]


def csv_records(rows: Sequence[Record]) -> list[Record]:
    r"""Return rows as mappings from the cells of the header.

    The header is the first row of which more than half is filled. Rows before it, cells beyond it, and a
    table of one row have numbers in the place of names.

    Example:
        >>> [record.value for record in csv_records(csv_rows("name,town\nAda,Velm\n"))]
        [{'name': 'Ada', 'town': 'Velm'}]
    """
    widest = max((len(row.value) for row in rows), default=0)
    header = next((at for at, row in enumerate(rows) if 2 * sum(map(bool, row.value)) > widest), 0)
    numbered = [f"column {place}" for place in range(1, widest + 1)]
    names: list[str] = []
    for cell, number in zip_longest(
        rows[header].value if len(rows) > header + 1 else [], numbered, fillvalue=""
    ):
        names.append(number if not cell else f"{cell} ({number})" if cell in names else cell)
    return [
        Record(
            row.line,
            {
                name: cell
                for name, cell in zip(numbered if at < header else names, row.value, strict=False)
                if cell
            },
        )
        for at, row in enumerate(rows)
        if at != header or len(rows) == header + 1
    ]


def parse_json(text: str, name: str, line: int = 1) -> Any:
    """Return the value of a JSON text.

    Args:
        text: The text.
        name: Names the file in errors.
        line: Number of the text's first line in the file.

    Raises:
        InputError: With line and column of what is wrong.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{name}, line {line + error.lineno - 1}, column {error.colno}: not JSON: {error.msg}",
            hint="correct it there; in JSON Lines each line holds one value",
        ) from error
    except RecursionError:
        raise InputError(
            f"{name}, line {line}: brackets are nested too deep", hint="make the values flatter"
        ) from None
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"{name}, line {line}: {error}", hint="write the number as a text") from error


def json_records(text: str, name: str) -> list[Record]:
    r"""Return the values of JSON Lines, or the elements of a JSON array; anything else is one value.

    Lines end at ``\n`` alone, as the format has it.

    Args:
        text: The file.
        name: Names it in errors.

    Raises:
        InputError: With line and column of what is wrong.

    Example:
        >>> [record.value for record in json_records('{"a": 1}\n{"a": 2}', "a.jsonl")]
        [{'a': 1}, {'a': 2}]
    """
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and _is_json(lines[0][1]):
        return [Record(number, parse_json(line, name, number)) for number, line in lines]
    value = parse_json(text, name) if lines else []
    values = value if isinstance(value, list) else [value]
    return [Record(place, one) for place, one in enumerate(values, 1)]


def _is_json(line: str) -> bool:
    try:
        parse_json(line, "")
    except InputError:
        return False
    return True
