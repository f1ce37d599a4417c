"""Find tables and lists on PDF pages by the positions of the characters; ruled lines are not needed.

A line consists of the characters at the same height. A gap divides the line into
cells if the gap is at least about as wide as the height of the line. Consecutive lines form a table if their
columns stay separated by gaps, and if the cells are too short to be columns of prose. A list is a table with
a narrow first column of numbers or bullets.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

CELL_GAP, WORD_GAP = 0.9, 0.12
"""Minimum gap between two cells, and minimum gap between two words, as multiples of the line's height."""
PARAGRAPH_GAP, TABLE_GAP = 0.6, 2.5
"""Minimum vertical gap between two paragraphs, and maximum vertical gap between two lines of a table, as
multiples of the line's height."""
LEAST_ROWS = 3
"""Minimum number of rows of a table."""
SHORT_CELL = 25
"""In at least half of a table's columns, the median length of cells is at most this number of characters."""
MARK = 3
"""Maximum length, in characters, of the number or bullet of a list item."""
MOST_COLUMNS_OF_PROSE = 0.3
"""If more than this share of the lines outside tables have several cells, the page is prose in columns."""


class Character(NamedTuple):
    """A character and its bounding box, in points from the page's lower left corner."""

    text: str
    left: float
    bottom: float
    right: float
    top: float


@dataclass(slots=True)
class Cell:
    """A part of a line, with its distances in points from the page's left edge; wide gaps separate cells."""

    text: str
    left: float
    right: float


@dataclass(slots=True)
class Line:
    """A line of a page: its cells from left to right, and the heights of its lower and upper edge.

    Heights are in points above the bottom of the page.
    """

    cells: list[Cell]
    bottom: float
    top: float

    @property
    def height(self) -> float:
        """Height of the line in points, at least 1."""
        return max(self.top - self.bottom, 1.0)


TableRow = list[str]


def page_with_tables(page: Any) -> tuple[str, list[TableRow]] | None:
    """Return a page's text with its tables in Markdown, and the rows of all tables.

    Return None if the page has no table, is rotated, contains right-to-left text, or seems to have prose in
    columns.

    Args:
        page: A ``PdfPage`` of pypdfium2.
    """
    characters = _characters(page)
    if page.get_rotation() or any(unicodedata.bidirectional(one.text) in ("R", "AL") for one in characters):
        return None
    lines = _lines(characters)
    parts: list[str] = []
    tables: list[TableRow] = []
    outside: list[Line] = []
    at = 0
    while at < len(lines):
        rows, end = _table(lines, at)
        if rows:
            parts += ["", _markdown(rows), ""]
            tables += rows
            at = end
            continue
        line = lines[at]
        if at and lines[at - 1].bottom - line.top > PARAGRAPH_GAP * line.height:
            parts.append("")
        parts.append(" ".join(cell.text for cell in line.cells))
        outside.append(line)
        at += 1
    in_columns = sum(len(line.cells) > 1 for line in outside)
    if not tables or in_columns > MOST_COLUMNS_OF_PROSE * max(len(outside), 1):
        return None
    return "\n".join(parts).strip(), tables


def _characters(page: Any) -> list[Character]:
    from pypdfium2 import raw

    text = page.get_textpage()
    characters = []
    for at in range(text.count_chars()):
        letter = chr(raw.FPDFText_GetUnicode(text, at))
        if letter.isspace() or not letter.isprintable() or raw.FPDFText_IsGenerated(text, at) == 1:
            continue
        characters.append(Character(letter, *text.get_charbox(at, loose=True)))
    return characters


def _lines(characters: Sequence[Character]) -> list[Line]:
    lines: list[list[Character]] = []
    for one in sorted(characters, key=lambda one: -(one.top + one.bottom)):
        last = lines[-1][0] if lines else None
        height = one.top - one.bottom
        if last is None or abs(last.top + last.bottom - one.top - one.bottom) > height:
            lines.append([])
        lines[-1].append(one)
    return [_line(sorted(line, key=lambda one: one.left)) for line in lines]


def _line(characters: Sequence[Character]) -> Line:
    line = Line([], min(one.bottom for one in characters), max(one.top for one in characters))
    for one in characters:
        gap = one.left - line.cells[-1].right if line.cells else line.height
        if gap >= CELL_GAP * line.height:
            line.cells.append(Cell("", one.left, one.right))
        elif gap > WORD_GAP * line.height:
            line.cells[-1].text += " "
        line.cells[-1].text += one.text
        line.cells[-1].right = max(one.right, line.cells[-1].right)
    return line


def _table(lines: Sequence[Line], start: int) -> tuple[list[TableRow], int]:
    if len(lines[start].cells) < 2:
        return [], start
    columns = [(cell.left, cell.right) for cell in lines[start].cells]
    end = start + 1
    while end < len(lines):
        line = lines[end]
        joined = _join_spans([*columns, *((cell.left, cell.right) for cell in line.cells)])
        continues = len(line.cells) > 1 or (joined[0] == columns[0] and len(joined) == len(columns))
        is_far = lines[end - 1].bottom - line.top > TABLE_GAP * line.height
        if is_far or not continues or len(joined) < len(columns):
            break
        columns, end = joined, end + 1
    rows = list(_rows(lines[start:end], columns))
    return (rows, end) if _is_table(rows) else ([], start)


def _join_spans(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for left, right in sorted(spans):
        if joined and left < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(right, joined[-1][1]))
        else:
            joined.append((left, right))
    return joined


def _rows(lines: Sequence[Line], columns: Sequence[tuple[float, float]]) -> Iterator[TableRow]:
    row: TableRow = []
    for line in lines:
        texts = ["" for _ in columns]
        for cell in line.cells:
            place = next(at for at, (left, right) in enumerate(columns) if left <= cell.left <= right)
            texts[place] = f"{texts[place]} {cell.text}".strip()
        if row and not texts[0] and 2 * sum(map(bool, texts)) <= len(texts):
            row = [" ".join(filter(None, pair)) for pair in zip(row, texts, strict=True)]
            continue
        if row:
            yield row
        row = texts
    yield row


def _is_table(rows: Sequence[TableRow]) -> bool:
    if len(rows) < LEAST_ROWS:
        return False
    lengths = [median(len(cell) for cell in column if cell) for column in zip(*rows, strict=True)]
    return 2 * sum(length <= SHORT_CELL for length in lengths) >= len(lengths)


def _markdown(rows: Sequence[TableRow]) -> str:
    if len(rows[0]) == 2 and max(len(row[0]) for row in rows) <= MARK:
        return "\n".join(map(" ".join, rows))
    header, *others = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows)
    rule = " | ".join("---" for _ in rows[0])
    return "\n".join(f"| {line} |" for line in (header, rule, *others))
