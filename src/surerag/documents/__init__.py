"""Load the files of a local folder as text documents.

This module reads text, Markdown, reStructuredText, CSV and JSON files. The module ``texts`` reads mail,
notebooks, subtitles and TeX, and the module ``converted`` reads HTML, PDF and office files. The page
docs/documents.md describes how the text of each kind of file looks.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from surerag.documents.converted import CONVERTED, convert, html_as_markdown, read_pdf, read_workbook
from surerag.documents.texts import (
    Mail,
    kind_by_content,
    read_mail,
    read_mailbox,
    read_notebook,
    read_subtitles,
    read_tex,
)
from surerag.errors import InputError, MissingExtraError, kind_of
from surerag.progress import Progress, reporting
from surerag.records import Record, csv_records, csv_rows, json_records, key_of_rows, row_text
from surerag.text import counted, decode

__all__ = ["Document", "FileNotesWarning", "LoadedDocuments", "SkippedFilesWarning", "load_documents"]

TEXT = frozenset({".txt", ".text", ".log"})
CODE = frozenset(
    (
        ".bash .bat .c .cc .cfg .conf .cpp .cs .css .cxx .go .h .hpp .ini .java .jl .js .jsx .kt .kts .lua "
        ".mjs .php .pl .proto .ps1 .py .r .rb .rs .sass .scala .scss .sh .sql .swift .tf .toml .ts .tsx .vue "
        ".yaml .yml"
    ).split()
)
"""Suffixes of source code and settings; the text of these files is neither changed nor searched for
headings."""
MARKED_UP = frozenset({".adoc", ".asciidoc", ".org", ".rst"})
MARKDOWN = frozenset({".markdown", ".md", ".mdx", ".qmd", ".rmd"})
TABLES, JSON = frozenset({".csv", ".tsv"}), frozenset({".json", ".jsonl", ".ndjson"})
MARKUP = frozenset({".html", ".htm", ".xhtml", ".xml"})
MAIL, SUBTITLES = frozenset({".eml", ".mbox"}), frozenset({".srt", ".vtt"})
OTHER_MARKUP = frozenset({".ipynb", ".latex", ".tex"})
KINDS = (
    TEXT | CODE | MARKED_UP | MARKDOWN | TABLES | JSON | MARKUP | MAIL | SUBTITLES | OTHER_MARKUP | CONVERTED
)
_WITHOUT_HEADINGS = TEXT | CODE | TABLES | JSON | MAIL | SUBTITLES

_NOT_CONTENT = re.compile(
    r"\.|~\$|(?:Thumbs\.db|desktop\.ini|__MACOSX|__pycache__|node_modules)\Z|[^\n]*~\Z", re.IGNORECASE
)
"""Pattern of names that are skipped: hidden files, lock files, caches, installed packages and backups."""

_SIGNATURES = {
    b"%PDF-": "a PDF file",
    b"PK\x03\x04": "a ZIP archive or an Office file",
    b"\xd0\xcf\x11\xe0": "a file of Office before 2007, or one with a password",
    b"{\\rtf": "an RTF file",
}
"""Descriptions of file formats by their first bytes; they detect files with a wrong suffix."""

_DECLARED = re.compile(rb"(?:charset|encoding)=[\"']?([A-Za-z0-9_.:-]{1,40})")
_DECLARED_WITHIN = 2048

_FRONT_MATTER_LIMIT = 20_000
"""Maximum length of YAML front matter, in characters."""
_TEXT_KEYS = ("text", "content", "contents", "page_content", "body")
"""Names of columns whose cells are whole documents."""

_UNDERLINES, _SHORTEST_UNDERLINE = set("=-~^\"'*+#`"), 3
_FILES_LISTED = 20
_NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,18})?|true|false")
"""Pattern of a number, ``true`` or ``false`` in front matter. It does not match very long numbers and numbers
with an exponent, because these are usually identifiers, such as the hash of a commit."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text with an id, a title and metadata, before it is divided into passages.

    Attributes:
        id: Unique name of the document. For a file, it is the path relative to the folder, with ``/``.
        text: The text, in which blank lines separate paragraphs.
        title: The title; empty if there is none.
        metadata: More facts about the document by name, such as its path.
        rows: Whether each paragraph is a row of a table, with a line ``column: value`` for each cell.
    """

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    rows: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise InputError(
                f"the text of document {self.id!r} is {kind_of(self.text)}",
                hint="leave out documents without a text",
            )


@dataclass(frozen=True, slots=True)
class LoadedDocuments:
    """The documents of a folder.

    Attributes:
        documents: One document per file, in the order of the paths. A table with a column ``text`` yields
            one document per row, and a mailbox one document per message.
        skipped: By path, the reason why a file could not be read. Hidden files, lock files and backups are
            not listed.
        notes: By path, the reason why a file may have been read incorrectly, such as a guessed encoding or
            pages without text.
    """

    documents: tuple[Document, ...]
    skipped: Mapping[str, str]
    notes: Mapping[str, str] = field(default_factory=dict)


class SkippedFilesWarning(UserWarning):
    """Warns that files of a folder were skipped; the message lists the files with the reasons."""


class FileNotesWarning(UserWarning):
    """Warns that files may have been read incorrectly or incompletely; the message says why."""


class _UnreadableError(Exception):
    """Raised if a file cannot be read as text; the message is the reason."""


@dataclass(slots=True)
class _File:
    text: str = ""
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    rows: bool = False
    documents: list[Document] = field(default_factory=list)


def load_documents(
    directory: str | Path, *, max_bytes: int = 64 * 2**20, progress: Progress = False
) -> LoadedDocuments:
    """Read every file in a local folder and its subfolders; unreadable files are skipped and listed.

    Hidden files and folders, lock files, backups, and links to files outside the folder are not read.

    Args:
        directory: Path of the folder.
        max_bytes: Maximum size of a file in bytes; larger files are skipped.
        progress: True shows a progress bar on a terminal. A function is called with the number of finished
            files and the number of all files.

    Raises:
        InputError: If the folder does not exist, or no file in it can be read.
        MissingExtraError: If a file needs the extra ``documents``, which is not installed.

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
    paths = list(_files(root))
    with reporting(progress, len(paths), "Files") as advance:
        for path in paths:
            # A file name that is not UTF-8 cannot be stored as JSON or in a database.
            name = os.fsencode(path.relative_to(root).as_posix()).decode("utf-8", "backslashreplace")
            try:
                file = _read(path, name, root, max_bytes)
            except _UnreadableError as error:
                skipped[name] = str(error)
            except MissingExtraError as error:
                raise MissingExtraError(f"{name} cannot be read: {error.message}", hint=error.hint) from error
            else:
                documents += file.documents or [
                    Document(name, file.text, file.title, file.metadata, file.rows)
                ]
                if file.notes:
                    notes[name] = "; ".join(file.notes)
            advance()
    if not documents:
        raise InputError(
            f"no file in {str(directory)!r} can be read" + (f": {_listing(skipped)}" if skipped else ""),
            hint=f"add files that end in {', '.join(sorted(KINDS))}",
        )
    if skipped:
        message = f"skipped {counted(len(skipped), 'file')}: {_listing(skipped)}"
        warnings.warn(message, SkippedFilesWarning, stacklevel=2)
    if notes:
        message = f"{counted(len(notes), 'file')} may have been read wrongly; check: {_listing(notes)}"
        warnings.warn(message, FileNotesWarning, stacklevel=2)
    return LoadedDocuments(tuple(documents), skipped, notes)


def _listing(reasons: Mapping[str, str]) -> str:
    listing = "; ".join(f"{name} ({reason})" for name, reason in list(reasons.items())[:_FILES_LISTED])
    return listing + (f"; and {len(reasons) - _FILES_LISTED} more" if len(reasons) > _FILES_LISTED else "")


def _files(root: Path) -> Iterator[Path]:
    closed: list[Path] = []
    for folder, folders, files in os.walk(root, onerror=lambda error: closed.append(Path(error.filename))):
        folders[:] = sorted(name for name in folders if not _NOT_CONTENT.match(name))
        yield from (Path(folder) / name for name in sorted(files) if not _NOT_CONTENT.match(name))
        yield from (path for name in folders if (path := Path(folder) / name).is_symlink())
    yield from closed


def _read(path: Path, name: str, root: Path, max_bytes: int) -> _File:
    if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises in a folder that may not be entered
        raise _UnreadableError("a link to a folder" if path.is_symlink() else "a folder that cannot be read")
    suffix, stem = _suffix(name), PurePosixPath(name).stem
    if suffix and suffix not in KINDS:
        raise _UnreadableError(f"files that end in {suffix} are not supported")
    try:
        data = _bytes_of(path, root, max_bytes)
        suffix = suffix or kind_by_content(data)
        _check_kind(data, suffix)
        file = _read_mailbox(path, name) if suffix == ".mbox" else _read_bytes(data, suffix, name, stem)
    except (OSError, RuntimeError, InputError) as error:
        raise _UnreadableError(getattr(error, "strerror", None) or str(error)) from error
    if not file.text.strip() and not file.documents:
        raise _UnreadableError("; ".join(file.notes) or "no text")
    if not file.title and suffix not in _WITHOUT_HEADINGS:
        file.title = _first_heading(file.text)
    file.title = file.title or stem
    file.metadata["path"] = name
    return file


def _bytes_of(path: Path, root: Path, max_bytes: int) -> bytes:
    if not path.resolve().is_relative_to(root.resolve()) or not path.is_file():
        raise _UnreadableError("not a regular file of this folder")
    if path.stat().st_size > max_bytes:
        raise _UnreadableError(f"more than {max_bytes:,} bytes")
    return path.read_bytes()


def _read_mailbox(path: Path, name: str) -> _File:
    file = _File()
    _take_messages(file, read_mailbox(path), name)
    return file


def _read_bytes(data: bytes, suffix: str, name: str, stem: str) -> _File:
    return _read_binary(data, suffix) if suffix in CONVERTED else _read_text(data, suffix, name, stem)


def _suffix(name: str) -> str:
    suffix = PurePosixPath(name).suffix.lower()
    return "" if suffix[1:].isdigit() or " " in suffix else suffix


def _check_kind(data: bytes, suffix: str) -> None:
    if not data.strip():
        raise _UnreadableError("the file is empty")
    kind = next((kind for signature, kind in _SIGNATURES.items() if data.startswith(signature)), "")
    signature = b"%PDF-" if suffix == ".pdf" else b"PK\x03\x04"
    if signature not in data[:1024] if suffix in CONVERTED else kind:
        raise _UnreadableError(f"its name ends in {suffix}, but it is {kind or 'another kind of file'}")


# Text


def _read_text(data: bytes, suffix: str, name: str, stem: str) -> _File:
    if suffix == ".eml":
        return _mail_file(read_mail(data))
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
    elif suffix == ".xml":  # convert gets UTF-8, so the declaration of the original encoding is removed
        text = re.sub(r"(<\?xml[^>]{0,99}?) encoding=[\"'][^\"']{1,40}[\"']", r"\1", file.text, count=1)
        file.text = convert(text.encode("utf-8", "replace"), suffix, charset="utf-8")
    elif suffix in MARKUP:
        file.text, file.title = html_as_markdown(file.text)
    elif suffix == ".ipynb":
        file.text = read_notebook(file.text)
    elif suffix in SUBTITLES:
        file.text = read_subtitles(file.text)
    elif suffix in OTHER_MARKUP:
        file.text, file.title = read_tex(file.text)
    return file


def _mail_file(mail: Mail) -> _File:
    attached = [f"attachments were not read: {', '.join(mail.attachments)}"] if mail.attachments else []
    return _File(mail.text, mail.title, dict(mail.metadata), attached)


def _take_messages(file: _File, messages: Iterable[Mail], name: str) -> None:
    attachments: list[str] = []
    for number, mail in enumerate(messages, 1):
        attachments += mail.attachments
        if mail.text:
            title = mail.title or f"{PurePosixPath(name).stem}, {number}"
            file.documents.append(
                Document(f"{name}:{number}", mail.text, title, {**mail.metadata, "path": name})
            )
    if attachments:
        file.notes.append(f"attachments were not read: {len(attachments)} files")


def _read_binary(data: bytes, suffix: str) -> _File:
    if suffix == ".xlsx":
        return _File(read_workbook(data), rows=True)
    if suffix != ".pdf":
        return _File(convert(data, suffix))
    text, blank = read_pdf(data)
    file = _File(text)
    if blank:
        numbers = ", ".join(map(str, blank))
        file.metadata["pages_without_text"] = numbers
        file.notes.append(f"no text on page {numbers}: if it is a scan, add its text with an OCR program")
    return file


def split_front_matter(text: str) -> tuple[dict[str, str | int | float | bool], str]:
    r"""Return the values of a Markdown text's YAML front matter, and the text without the front matter.

    Front matter is a YAML mapping between two lines ``---`` at the beginning of the text. Lists are joined
    with commas, and nested mappings are left out. Numbers, ``true`` and ``false`` are converted; all other
    values remain texts.

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
    """A value that was quoted in YAML, so that it stays a text even if it looks like a number."""

    __slots__ = ()


class _YAMLLoader(yaml.BaseLoader):  # type: ignore[misc]  # untyped
    def construct_scalar(self, node: yaml.ScalarNode) -> str:
        text: str = super().construct_scalar(node)
        return _Quoted(text) if node.style else text


def _yaml_values(block: str) -> dict[str, str | int | float | bool] | None:
    try:
        value = yaml.load(block, _YAMLLoader)  # noqa: S506  # the loader only builds texts
    except (yaml.YAMLError, RecursionError, ValueError):  # often because of a colon in a value
        lines = [line.partition(":") for line in block.splitlines() if line.strip()]
        if not all(colon and key.strip().isidentifier() for key, colon, _ in lines):
            return None
        value = {key.strip(): text.strip() for key, _, text in lines}
    if not isinstance(value, dict):
        return None if value else {}
    values = {str(key): _joined(one) for key, one in value.items()}
    return {key: _number(one) for key, one in values.items() if isinstance(one, str) and one}


def _number(text: str) -> str | int | float | bool:
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
    key = key_of_rows(records)
    if key is None:
        return records
    rest = dict(records[0].value)
    rows = rest.pop(key)
    return [Record(0, rest), *(Record(place, row) for place, row in enumerate(rows, 1))]


def _take_records(file: _File, records: Iterable[Record], name: str, stem: str) -> None:
    rows = [(record.number, dict(_fields(record.value))) for record in records]
    columns = {column for _, row in rows for column in row}
    key = next((key for key in _TEXT_KEYS if key in columns), None)
    if key is None:
        file.text, file.rows = "\n\n".join(filter(None, (row_text(row) for _, row in rows))), True
        return
    for line, row in rows:
        text = str(row.pop(key, "")) or row_text(row)
        title = str(row.pop("title", "")) or f"{stem}, {line}"
        if text.strip():
            file.documents.append(Document(f"{name}:{line}", text, title, {**row, "path": name}))


def _fields(value: Any) -> Iterator[tuple[str, str | int | float | bool]]:
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        name, one = stack.pop()
        one = _joined(one)
        if isinstance(one, dict | list):
            inner = one.items() if isinstance(one, dict) else enumerate(one, 1)
            stack.extend(reversed([(f"{name}.{key}" if name else str(key), part) for key, part in inner]))
        elif one is not None and one != "":
            yield name, one
