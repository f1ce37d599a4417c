"""Documents: files of a local folder as texts. Text and Markdown are read here, other kinds by markitdown."""

from __future__ import annotations

import codecs
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from surerag.errors import InputError, MissingExtraError, extra

__all__ = ["Document", "LoadedDocuments", "SkippedFilesWarning", "load_documents"]

TEXT, MARKDOWN = frozenset({".txt", ".text"}), frozenset({".md", ".markdown"})
CONVERTED = frozenset({".html", ".htm", ".pdf", ".docx", ".pptx", ".xlsx", ".csv", ".epub", ".xml"})
"""Kinds of files that markitdown converts to Markdown."""

_HEADING = re.compile(r"^#{1,6}[ \t]+(.*?)[ \t]*#*[ \t]*$", re.MULTILINE)
_FRONT_MATTER = re.compile(
    r"\A---[ \t]*\r?\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE
)
_TITLE = re.compile(r"^title:[ \t]*(['\"]?)(.+?)\1[ \t]*$", re.MULTILINE)
_RAW = ("%PDF-", "PK\x03\x04")
"""Beginnings of files that no parser could read, and that markitdown then takes for plain text."""
_LISTED = 20


@dataclass(frozen=True, slots=True)
class Document:
    """A whole text.

    Attributes:
        id: Unique in its corpus; of a file, its path below the folder, with ``/``.
        text: The text; a blank line separates paragraphs.
        title: Its title, if it has one.
        metadata: Anything else.
    """

    id: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadedDocuments:
    """Contents of a folder.

    Attributes:
        documents: One for each file that was read, in the order of their paths.
        skipped: Reasons by path, for all other files but hidden ones.
    """

    documents: tuple[Document, ...]
    skipped: Mapping[str, str]


class SkippedFilesWarning(UserWarning):
    """Some files of a folder were not read; the message lists them with the reasons."""


class _UnreadableError(Exception):
    """A file without a text; the message is the reason."""


def load_documents(directory: str | Path, *, max_bytes: int = 64 * 2**20) -> LoadedDocuments:
    """Read every file below a local folder; what cannot be read is skipped and listed.

    Hidden files and folders, and links that lead out of the folder, are not read.

    Args:
        directory: The folder.
        max_bytes: Larger files are skipped.

    Raises:
        InputError: If there is no such folder, or nothing in it can be read.
        MissingExtraError: If a file has to be converted, and the ``documents`` extra is not installed.

    Warns:
        SkippedFilesWarning: If files were skipped.
    """
    root = Path(directory).expanduser()
    if not root.is_dir():
        raise InputError(
            f"folder not found: {directory}", hint="pass a local folder with text, Markdown or PDF"
        )
    documents: list[Document] = []
    skipped: dict[str, str] = {}
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        try:
            documents.append(_read(path, name, root, max_bytes))
        except _UnreadableError as error:
            skipped[os.fsencode(name).decode("utf-8", "backslashreplace")] = str(error)
    listing = "; ".join(f"{name} ({reason})" for name, reason in list(skipped.items())[:_LISTED])
    listing += f"; and {len(skipped) - _LISTED} more" if len(skipped) > _LISTED else ""
    if not documents:
        kinds = ", ".join(sorted(TEXT | MARKDOWN | CONVERTED))
        raise InputError(
            f"{str(directory)!r} has no file that can be read" + (f": {listing}" if skipped else ""),
            hint=f"add files that end in {kinds}",
        )
    if skipped:
        warnings.warn(f"skipped {len(skipped)} files: {listing}", SkippedFilesWarning, stacklevel=2)
    return LoadedDocuments(tuple(documents), skipped)


def split_front_matter(text: str) -> tuple[str, str]:
    r"""Return the YAML front matter of a Markdown text, and the text without it.

    Example:
        >>> split_front_matter("---\ntitle: Velm\n---\nA town.")
        ('title: Velm\n', 'A town.')
    """
    match = _FRONT_MATTER.match(text)
    return (match[1], text[match.end() :]) if match else ("", text)


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder) / name for name in sorted(files) if not name.startswith("."))


def _read(path: Path, name: str, root: Path, max_bytes: int) -> Document:
    suffix = path.suffix.lower()
    if suffix not in TEXT | MARKDOWN | CONVERTED:
        raise _UnreadableError(f"no known kind of file: {suffix or 'it has no suffix'}")
    try:
        if not path.resolve().is_relative_to(root.resolve()) or not path.is_file():
            raise _UnreadableError("not a regular file of this folder")
        if path.stat().st_size > max_bytes:
            raise _UnreadableError(f"more than {max_bytes:,} bytes")
        text, title = _convert(path) if suffix in CONVERTED else (_decode(path.read_bytes()), "")
    except (OSError, RuntimeError) as error:
        raise _UnreadableError(getattr(error, "strerror", None) or str(error)) from error
    if suffix not in TEXT:
        front, text = split_front_matter(text)
        stated, heading = _TITLE.search(front), _HEADING.search(text)
        title = title or (stated[2] if stated else "") or (heading[1] if heading else "")
    if not text.strip():
        raise _UnreadableError("no text")
    return Document(name, text, title or path.stem, {"path": name})


@cache
def _converter() -> Any:
    with extra("documents"):
        from markitdown import MarkItDown
    return MarkItDown(enable_plugins=False)


def _convert(path: Path) -> tuple[str, str]:
    """Convert a file to Markdown; return its text and title."""
    try:
        converted = _converter().convert_local(path)
    except MissingExtraError:
        raise
    except Exception as error:  # parsers of damaged files fail in any way
        raise _UnreadableError(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
    if converted.text_content.lstrip().startswith(_RAW):
        raise _UnreadableError("damaged")
    return converted.text_content.encode("utf-8", "replace").decode(), (converted.title or "").strip()


def _decode(data: bytes) -> str:
    """Decode by the byte order mark, else as UTF-8, else as Windows-1252."""
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if data.startswith(mark):
            return data.decode(encoding, errors="replace")
    if b"\0" in data:
        raise _UnreadableError("binary data")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")
