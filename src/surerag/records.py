"""Read rows of CSV files and values of JSON and JSON Lines, with their line numbers."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from threading import Lock
from typing import Any, NamedTuple

from surerag.errors import InputError

_DELIMITERS = ",;\t|"
_LONGEST_CELL = 2**31 - 1
_SAMPLE = 2**16
_CELLS = Lock()
"""Lock for changes of csv's limit on the length of a cell, which applies to the whole process."""


class Record(NamedTuple):
    """A row or value of a file, and where it is: ``number`` counts what ``unit`` names, such as lines.

    A row of several lines has the number of its last line.
    """

    number: int
    value: Any
    unit: str = "line"

    @property
    def place(self) -> str:
        """The place in the file, such as ``line 3``."""
        return f"{self.unit} {self.number}"


def csv_delimiter(text: str) -> str:
    r"""Return the delimiter that divides most lines of a table into the same number of cells.

    Example:
        >>> csv_delimiter("name;price\nZoë, the elder;1,50\nAda;2,00")
        ';'
    """
    sample = text[:_SAMPLE].rpartition("\n")[0] if len(text) > _SAMPLE else text

    def fit(delimiter: str) -> float:
        widths = [len(record.value) for record in _rows(sample, delimiter)]
        [(width, rows)] = Counter(widths).most_common(1) or [(1, 0)]
        return rows / len(widths) if width > 1 and width >= widths[0] > 1 else 0.0

    return max(_DELIMITERS, key=fit)


def csv_rows(text: str, delimiter: str = "", *, quoted: bool = True) -> list[Record]:
    """Return the rows of a table as lists of cells, without empty rows.

    Args:
        text: The contents of the file; Excel's first line ``sep=;`` is understood.
        delimiter: One character; by default :func:`csv_delimiter` chooses.
        quoted: Whether a delimiter between quotation marks belongs to the cell.

    Raises:
        InputError: If a quotation mark is never closed; the message names its line.
    """
    first, _, rest = text.partition("\n")
    if first.lower().startswith("sep=") and len(first.strip()) == 5:
        text, delimiter = rest, first[4]
    delimiter = delimiter or csv_delimiter(text)
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    try:
        return _rows(text, delimiter, quoting=quoting, strict=quoted)
    except _UnclosedError as error:
        raise InputError(
            f"line {error}: a quotation mark is opened and never closed",
            hint="close the quotation mark, or double it",
        ) from error
    except csv.Error:  # there is text between a closing quotation mark and the delimiter
        return _rows(text, delimiter, quoting=quoting)


class _UnclosedError(Exception):
    """A quotation mark is never closed; the message is the number of its line."""


def _rows(text: str, delimiter: str, **dialect: Any) -> list[Record]:
    rows: list[Record] = []
    line = 0
    with _CELLS:
        usual = csv.field_size_limit(_LONGEST_CELL)
        try:
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, **dialect)
            for row in reader:
                line = reader.line_num
                cells = [cell.strip() for cell in row]
                if any(cells):
                    rows.append(Record(line, cells))
        except csv.Error as error:
            if "end of data" in str(error):
                raise _UnclosedError(line + 1) from error
            raise
        finally:
            csv.field_size_limit(usual)
    return rows


def csv_records(rows: Sequence[Record]) -> list[Record]:
    r"""Return rows as mappings from column names to cells.

    The names come from the header: the first row with more than half of its cells filled. Names such as
    ``column 2`` are used in rows before the header, in cells to the right of the header's last cell, and in
    a table of one row.

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
            row.number,
            {
                name: cell
                for name, cell in zip(numbered if at < header else names, row.value, strict=False)
                if cell
            },
        )
        for at, row in enumerate(rows)
        if at != header or len(rows) == header + 1
    ]


def row_text(row: Mapping[str, Any]) -> str:
    r"""Return a row as a paragraph, with a line ``column: value`` for each cell.

    Example:
        >>> row_text({"name": "Ada", "town": "Velm"})
        'name: Ada\ntown: Velm'
    """
    return "\n".join(
        ": ".join(filter(None, (column, " ".join(str(value).split())))) for column, value in row.items()
    )


def parse_json(text: str, name: str, line: int = 1) -> Any:
    """Parse a JSON text whose first line has the number ``line`` in the file ``name``.

    Raises:
        InputError: If the text is not JSON; the message names file, line and column.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{name}, line {line + error.lineno - 1}, column {error.colno}: not JSON: {error.msg}",
            hint="correct the file at this place; in a JSON Lines file, each line is one JSON value",
        ) from error
    except RecursionError:
        raise InputError(
            f"{name}, line {line}: brackets are nested too deep", hint="nest the values less deeply"
        ) from None
    except ValueError as error:  # a number with thousands of digits
        raise InputError(f"{name}, line {line}: {error}", hint="write the number as a text") from error


def json_records(text: str, name: str) -> list[Record]:
    r"""Return the values of JSON Lines, or the elements of a JSON array; any other JSON is one value.

    Only ``\n`` ends a line, as the format requires. Errors name the file, the line and the column.

    Example:
        >>> [record.value for record in json_records('{"a": 1}\n{"a": 2}', "a.jsonl")]
        [{'a': 1}, {'a': 2}]
    """
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and _is_json(lines[0][1]):
        return [Record(number, parse_json(line, name, number)) for number, line in lines]
    value = parse_json(text, name) if lines else []
    values = value if isinstance(value, list) else [value]
    return [Record(place, one, "element") for place, one in enumerate(values, 1)]


def _is_json(line: str) -> bool:
    try:
        parse_json(line, "")
    except InputError:
        return False
    return True


def key_of_rows(records: Sequence[Record]) -> str | None:
    """Return the key under which a JSON object holds its only list of objects.

    Return None if there are several records, or if the only record is not such an object.

    Example:
        >>> key_of_rows([Record(1, {"version": 2, "data": [{"question": "Who?"}]})])
        'data'
    """
    value = records[0].value if len(records) == 1 else None
    if not isinstance(value, dict):
        return None
    keys = [key for key, one in value.items() if isinstance(one, list) and one and isinstance(one[0], dict)]
    return keys[0] if len(keys) == 1 else None
