"""Documents: files of a local folder as texts.

Text, Markdown, reStructuredText, CSV and JSON are read here, other kinds by markitdown. docs/documents.md
has a table of what each kind of file becomes.
"""

from __future__ import annotations

import io
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from surerag.errors import InputError, MissingExtraError, extra
from surerag.records import Record, csv_records, csv_rows, json_records, key_of_rows
from surerag.text import decode

__all__ = ["Document", "FileNotesWarning", "LoadedDocuments", "SkippedFilesWarning", "load_documents"]

TEXT, RST, MARKDOWN = frozenset({".txt", ".text"}), frozenset({".rst"}), frozenset({".md", ".markdown"})
TABLES, JSON = frozenset({".csv", ".tsv"}), frozenset({".json", ".jsonl", ".ndjson"})
MARKUP = frozenset({".html", ".htm", ".xhtml", ".xml"})
CONVERTED = frozenset({".pdf", ".docx", ".pptx", ".xlsx", ".epub"})
"""Binary kinds of files that markitdown converts to Markdown."""
KINDS = TEXT | RST | MARKDOWN | TABLES | JSON | MARKUP | CONVERTED

_NOT_CONTENT = re.compile(r"\.|~\$|(?:Thumbs\.db|desktop\.ini|__MACOSX)\Z|[^\n]*~\Z", re.IGNORECASE)
"""Names of hidden files, lock files of office programs, caches of file managers, and editors' backups."""

_SIGNATURES = {
    b"%PDF-": "a PDF file",
    b"PK\x03\x04": "a ZIP archive or an Office file",
    b"\xd0\xcf\x11\xe0": "a file of Office before 2007, or one with a password",
    b"{\\rtf": "an RTF file",
}
"""First bytes of files that have other names now and then."""

_DECLARED = re.compile(rb"(?:charset|encoding)=[\"']?([A-Za-z0-9_.:-]{1,40})")
_DECLARED_WITHIN = 2048

_FRONT_MATTER_LIMIT = 20_000
"""Longest front matter, in characters."""
_TEXT_KEYS = ("text", "content", "contents", "page_content", "body")
"""Columns that hold a whole document in each row."""

_NAVIGATION_NAMES = {
    "nav", "navbar", "navigation", "menu", "sidebar", "breadcrumb", "breadcrumbs", "footer", "header",
    "related",
}  # fmt: skip
_UNDERLINES, _SHORTEST_UNDERLINE = set("=-~^\"'*+#`"), 3
_LISTED = 20
_NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,18})?|true|false")
"""Of front matter; more digits, or an exponent, are those of an identifier, such as a commit's."""


@dataclass(frozen=True, slots=True)
class Document:
    """A whole text.

    Attributes:
        id: Unique in its corpus; of a file, its path below the folder, with ``/``.
        text: The text; a blank line separates paragraphs.
        title: Its title, if it has one.
        metadata: Anything else.
        rows: Whether each paragraph is the row of a table, with a line ``column: value`` for each cell.
    """

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    rows: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise InputError(
                f"the text of document {self.id!r} is a {type(self.text).__name__}",
                hint="leave out what has no text",
            )


@dataclass(frozen=True, slots=True)
class LoadedDocuments:
    """Contents of a folder.

    Attributes:
        documents: In the order of their paths: one for each file; of a table with a column ``text``, one for
            each row.
        skipped: Reasons by path, for all other files but hidden ones, lock files and backups.
        notes: What may be wrong with documents, by path: a guessed encoding, pages without text.
    """

    documents: tuple[Document, ...]
    skipped: Mapping[str, str]
    notes: Mapping[str, str] = field(default_factory=dict)


class SkippedFilesWarning(UserWarning):
    """Some files of a folder were not read; the message lists them with the reasons."""


class FileNotesWarning(UserWarning):
    """Some files of a folder were read, but perhaps not rightly or not wholly; the message says how."""


class _UnreadableError(Exception):
    """A file without a text; the message is the reason."""


@dataclass(slots=True)
class _File:
    """What was read of a file: a text, or the documents that its rows hold; notes say what may be wrong."""

    text: str = ""
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    rows: bool = False
    documents: list[Document] = field(default_factory=list)


def load_documents(directory: str | Path, *, max_bytes: int = 64 * 2**20) -> LoadedDocuments:
    """Read every file below a local folder; what cannot be read is skipped and listed.

    Hidden files and folders, lock files and backups, and links that lead out of the folder, are not read.

    Args:
        directory: The folder.
        max_bytes: Larger files are skipped.

    Raises:
        InputError: If there is no such folder, or nothing in it can be read.
        MissingExtraError: If a file has to be converted, and the ``documents`` extra is not installed.

    Warns:
        SkippedFilesWarning: If files were skipped.
        FileNotesWarning: If an encoding was guessed, or pages of a PDF have no text.
    """
    root = Path(directory).expanduser()
    if not str(directory).strip() or not root.is_dir():
        raise InputError(
            f"folder not found: {str(directory)!r}", hint="pass a local folder with text, Markdown or PDF"
        )
    documents: list[Document] = []
    skipped: dict[str, str] = {}
    notes: dict[str, str] = {}
    for path in _files(root):
        # Bytes of a name that are no UTF-8 could not be written as JSON or into a database.
        name = os.fsencode(path.relative_to(root).as_posix()).decode("utf-8", "backslashreplace")
        try:
            file = _read(path, name, root, max_bytes)
        except _UnreadableError as error:
            skipped[name] = str(error)
            continue
        except MissingExtraError as error:
            raise MissingExtraError(f"{name} cannot be read: {error.message}", hint=error.hint) from error
        documents += file.documents or [Document(name, file.text, file.title, file.metadata, file.rows)]
        if file.notes:
            notes[name] = "; ".join(file.notes)
    if not documents:
        raise InputError(
            f"{str(directory)!r} has no file that can be read"
            + (f": {_listing(skipped)}" if skipped else ""),
            hint=f"add files that end in {', '.join(sorted(KINDS))}",
        )
    if skipped:
        message = f"skipped {len(skipped)} file{'s' if len(skipped) > 1 else ''}: {_listing(skipped)}"
        warnings.warn(message, SkippedFilesWarning, stacklevel=2)
    if notes:
        message = f"check {len(notes)} files that were read: {_listing(notes)}"
        warnings.warn(message, FileNotesWarning, stacklevel=2)
    return LoadedDocuments(tuple(documents), skipped, notes)


def _listing(reasons: Mapping[str, str]) -> str:
    listing = "; ".join(f"{name} ({reason})" for name, reason in list(reasons.items())[:_LISTED])
    return listing + (f"; and {len(reasons) - _LISTED} more" if len(reasons) > _LISTED else "")


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not _NOT_CONTENT.match(name))
        yield from (Path(folder) / name for name in sorted(files) if not _NOT_CONTENT.match(name))


def _read(path: Path, name: str, root: Path, max_bytes: int) -> _File:
    suffix, stem = PurePosixPath(name).suffix.lower(), PurePosixPath(name).stem
    if suffix not in KINDS:
        raise _UnreadableError(f"no known kind of file: {suffix or 'it has no suffix'}")
    try:
        if not path.resolve().is_relative_to(root.resolve()) or not path.is_file():
            raise _UnreadableError("not a regular file of this folder")
        if path.stat().st_size > max_bytes:
            raise _UnreadableError(f"more than {max_bytes:,} bytes")
        data = path.read_bytes()
        _check_kind(data, suffix)
        file = _read_binary(data, suffix) if suffix in CONVERTED else _read_text(data, suffix, name, stem)
    except (OSError, RuntimeError, InputError) as error:
        raise _UnreadableError(getattr(error, "strerror", None) or str(error)) from error
    if not file.text.strip() and not file.documents:
        raise _UnreadableError("; ".join(file.notes) or "no text")
    if not file.title and suffix not in TEXT | TABLES | JSON:
        file.title = _first_heading(file.text)
    file.title = file.title or stem
    file.metadata["path"] = name
    return file


def _check_kind(data: bytes, suffix: str) -> None:
    if not data.strip():
        raise _UnreadableError("empty")
    kind = next((kind for signature, kind in _SIGNATURES.items() if data.startswith(signature)), "")
    signature = b"%PDF-" if suffix == ".pdf" else b"PK\x03\x04"
    if signature not in data[:1024] if suffix in CONVERTED else kind:
        raise _UnreadableError(f"its name ends in {suffix}, and it is {kind or 'another kind of file'}")


# Text


def _read_text(data: bytes, suffix: str, name: str, stem: str) -> _File:
    declared = _DECLARED.search(data, 0, _DECLARED_WITHIN) if suffix in MARKUP else None
    decoded = decode(data, declared[1].decode() if declared else "")
    file = _File(decoded.text.replace("\r\n", "\n").replace("\r", "\n"))
    if decoded.guessed:
        file.notes.append(f"its encoding is a guess: {decoded.encoding}")
    if suffix in MARKDOWN:
        file.metadata, file.text = split_front_matter(file.text)
        file.title = str(file.metadata.pop("title", ""))
    elif suffix in TABLES:
        delimiter = "\t" if suffix == ".tsv" else ""
        try:
            rows = csv_rows(file.text, delimiter)
        except InputError as error:
            file.notes.append(str(error))
            rows = csv_rows(file.text, delimiter, quoted=False)
        _take_records(file, csv_records(rows), name, stem)
    elif suffix in JSON:
        _take_records(file, _main_records(json_records(file.text, "the file")), name, stem)
    elif suffix in MARKUP:
        if suffix == ".xml":  # what follows is UTF-8, whatever it was
            text = re.sub(r"(<\?xml[^>]{0,99}?) encoding=[\"'][^\"']{1,40}[\"']", r"\1", file.text, count=1)
        else:
            text, file.title = _main_html(file.text)
        file.text = _convert(text.encode("utf-8", "replace"), suffix, charset="utf-8")
    return file


def split_front_matter(text: str) -> tuple[dict[str, str | int | float | bool], str]:
    r"""Return the values of a Markdown text's YAML front matter, and the text without it.

    It begins in the first line and has keys; a text between two rules is none. Lists are joined by commas,
    mappings left out; values that are no number, ``true`` or ``false`` are texts, as they stand there.

    Example:
        >>> split_front_matter("---\ntitle: Velm\nfounded: 1200\n---\nA town.")
        ({'title': 'Velm', 'founded': 1200}, 'A town.')
        >>> split_front_matter("---\nNever open valve 7.\n---\n")
        ({}, '---\nNever open valve 7.\n---\n')
    """
    first, _, rest = text.partition("\n")
    if first.rstrip() != "---":
        return {}, text
    block = ""
    for line in rest[:_FRONT_MATTER_LIMIT].splitlines(keepends=True):
        if line.rstrip() in ("---", "..."):
            values = _yaml_values(block)
            return (values, rest[len(block) + len(line) :]) if values is not None else ({}, text)
        block += line
    return {}, text


class _Quoted(str):
    """A value that was quoted, and so is a text whatever it looks like."""

    __slots__ = ()


class _YAMLLoader(yaml.BaseLoader):  # type: ignore[misc]  # untyped
    """Builds texts alone, and keeps in mind which were quoted."""

    def construct_scalar(self, node: yaml.ScalarNode) -> str:
        text: str = super().construct_scalar(node)
        return _Quoted(text) if node.style else text


def _yaml_values(block: str) -> dict[str, str | int | float | bool] | None:
    """Return the values of front matter; None if it is no such thing."""
    try:
        value = yaml.load(block, _YAMLLoader)  # noqa: S506  # it builds texts alone
    except (yaml.YAMLError, RecursionError, ValueError):  # of colons in its values, which are common
        lines = [line.partition(":") for line in block.splitlines() if line.strip()]
        if not all(colon and key.strip().isidentifier() for key, colon, _ in lines):
            return None
        value = {key.strip(): text.strip() for key, _, text in lines}
    if not isinstance(value, dict):
        return None if value else {}
    values = {str(key): _joined(one) for key, one in value.items()}
    return {key: _number(one) for key, one in values.items() if isinstance(one, str) and one}


def _number(text: str) -> str | int | float | bool:
    """Return a number, ``true`` or ``false`` as such; ``NO`` stays Norway, 007 and 7e12 texts."""
    if isinstance(text, _Quoted) or not _NUMBER.fullmatch(text):
        return str(text)
    value: int | float | bool = json.loads(text.lstrip("+"))
    return value


def _joined(value: Any) -> Any:
    is_flat = isinstance(value, list) and all(isinstance(one, str | int | float) for one in value)
    return _Quoted(", ".join(map(str, value))) if is_flat else value


def _first_heading(text: str) -> str:
    in_code, before = False, ""
    for line in map(str.strip, text.split("\n")):
        in_code ^= line.startswith(("```", "~~~"))
        if in_code:
            continue
        marks = len(line) - len(line.lstrip("#"))
        if 1 <= marks <= 6 and line[marks : marks + 1].isspace():
            without = line.rstrip("#")
            return (without if without[-1:].isspace() else line)[marks:].strip()
        if len(line) >= _SHORTEST_UNDERLINE and set(line) <= {line[0]} & _UNDERLINES and before[:1].isalnum():
            return before
        before = line
    return ""


# Records


def _main_records(records: Sequence[Record]) -> Sequence[Record]:
    """Return the rows of an object that has one list of rows, and what else it states, as records."""
    key = key_of_rows(records)
    if key is None:
        return records
    rest = dict(records[0].value)
    rows = rest.pop(key)
    return [Record(0, rest), *(Record(place, row) for place, row in enumerate(rows, 1))]


def _take_records(file: _File, records: Iterable[Record], name: str, stem: str) -> None:
    """Make each row that holds a whole document a document, or else a paragraph of the file's text."""
    rows = [(record.number, dict(_fields(record.value))) for record in records]
    columns = {column for _, row in rows for column in row}
    key = next((key for key in _TEXT_KEYS if key in columns), None)
    if key is None:
        file.text, file.rows = "\n\n".join(filter(None, (_row_text(row) for _, row in rows))), True
        return
    for line, row in rows:
        text = str(row.pop(key, "")) or _row_text(row)
        title = str(row.pop("title", "")) or f"{stem}, {line}"
        if text.strip():
            file.documents.append(Document(f"{name}:{line}", text, title, {**row, "path": name}))


def _fields(value: Any) -> Iterator[tuple[str, str | int | float | bool]]:
    """Yield the values in a JSON value under the path to them, such as ``town.river.1``."""
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        name, one = stack.pop()
        one = _joined(one)
        if isinstance(one, dict | list):
            inner = one.items() if isinstance(one, dict) else enumerate(one, 1)
            stack.extend(reversed([(f"{name}.{key}" if name else str(key), part) for key, part in inner]))
        elif one is not None and one != "":
            yield name, one


def _row_text(row: Mapping[str, Any]) -> str:
    return "\n".join(
        ": ".join(filter(None, (column, " ".join(str(value).split())))) for column, value in row.items()
    )


# Pages and office files


def _main_html(text: str) -> tuple[str, str]:
    """Return a page without its navigation and tables that only lay it out, and its title."""
    with extra("documents"):
        from bs4 import BeautifulSoup
    soup = BeautifulSoup(text, "lxml")  # closes what old pages leave open, such as <p> and <li>
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    for tag in soup(["script", "style", "noscript", "template"]):
        tag.decompose()
    whole = str(soup)
    for tag in soup(_is_navigation):
        tag.decompose()
    for table in soup("table"):
        if not table.find("th") and table.find(["p", "table", "h1", "h2", "h3", "div", "font"]):
            for tag in [table, *table(["tbody", "tr", "td"])]:
                tag.name = "div"
    body, main = soup.body or soup, soup("main")
    if len(main) == 1 and 2 * len(main[0].get_text()) > len(body.get_text()):
        body = main[0]
    return (str(body) if body.get_text().strip() else whole), title


def _is_navigation(tag: Any) -> bool:
    if tag.decomposed:
        return False
    if tag.name in ("nav", "aside") or tag.get("role") in ("navigation", "banner", "contentinfo", "search"):
        return True
    if tag.name in ("header", "footer"):
        return tag.find_parent(["article", "main", "section"]) is None
    names = {
        part for name in (tag.get("id") or "", *(tag.get("class") or ())) for part in re.split(r"[-_]", name)
    }
    if not names & _NAVIGATION_NAMES:
        return False
    links = sum(len(link.get_text()) for link in tag("a"))
    return 2 * links > len(tag.get_text(strip=True))


@cache
def _converter(suffix: str) -> Any:
    """Return a converter; for binary kinds one that takes no damaged file for a text."""
    with extra("documents"):
        from markitdown import MarkItDown, converters
    if suffix not in CONVERTED:
        return MarkItDown(enable_plugins=False)
    converter = MarkItDown(enable_builtins=False, enable_plugins=False)
    converter.register_converter(getattr(converters, f"{suffix[1:].capitalize()}Converter")())
    return converter


def _convert(data: bytes, suffix: str, **info: str) -> str:
    """Convert a file to Markdown."""
    converter = _converter(suffix)
    from markitdown import MissingDependencyException, StreamInfo

    try:
        text = converter.convert_stream(
            io.BytesIO(data), stream_info=StreamInfo(extension=suffix, **info)
        ).text_content
    except Exception as error:  # parsers of damaged files fail in any way
        attempts = getattr(error, "attempts", None)
        cause = attempts[-1].exc_info[1] if attempts else error
        if isinstance(cause, MissingDependencyException):
            with extra("documents"):
                raise cause.__cause__ or cause from None
        raise _UnreadableError(_what_is_wrong(cause)) from error
    return str(text.replace("\f", "\n\n").encode("utf-8", "replace").decode())


def _what_is_wrong(error: BaseException) -> str:
    """Return why a file cannot be converted, in its parser's words."""
    if type(error).__name__ == "PDFPasswordIncorrect":
        return "it opens with a password"
    return f"damaged: {' '.join(str(error).split())[:200] or type(error).__name__}"


def _read_binary(data: bytes, suffix: str) -> _File:
    if suffix == ".xlsx":
        return _read_workbook(data)
    file = _File(_convert(data, suffix))
    if suffix == ".pdf" and (pages := _blank_pages(data)):
        numbers = ", ".join(map(str, pages))
        file.metadata["pages_without_text"] = numbers
        file.notes.append(f"no text on page {numbers}: a picture, perhaps; a program for OCR can add it")
    return file


def _blank_pages(data: bytes) -> list[int]:
    """Return the numbers of a PDF's pages without text, from 1."""
    with extra("documents"):
        import pypdfium2
    try:
        with pypdfium2.PdfDocument(data) as pdf:
            return [
                number
                for number, page in enumerate(pdf, 1)
                if not page.get_textpage().get_text_range().strip()
            ]
    except pypdfium2.PdfiumError:  # it was read all the same
        return []


def _read_workbook(data: bytes) -> _File:
    """Read each sheet as a table."""
    with extra("documents"):
        from openpyxl import load_workbook
    try:
        book = load_workbook(io.BytesIO(data), read_only=True, data_only=True)
        sheets = {
            sheet.title: [
                Record(number, [_cell_text(cell) for cell in row])
                for number, row in enumerate(sheet.iter_rows(values_only=True), 1)
                if any(cell is not None for cell in row)
            ]
            for sheet in book.worksheets
        }
    except Exception as error:  # parsers of damaged files fail in any way
        raise _UnreadableError(_what_is_wrong(error)) from error
    parts = []
    for title, rows in sheets.items():
        text = "\n\n".join(_row_text(record.value) for record in csv_records(rows))
        parts += [f"## {title}" if len(sheets) > 1 and text else "", text]
    return _File("\n\n".join(filter(None, parts)), rows=True)


def _cell_text(cell: Any) -> str:
    if isinstance(cell, datetime) and not (cell.hour or cell.minute or cell.second):
        return cell.date().isoformat()
    return "" if cell is None else str(cell).strip()
