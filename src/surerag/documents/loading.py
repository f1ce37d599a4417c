"""Read a folder of files as documents."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from surerag.documents.document import Document
from surerag.documents.formats import READERS, UnreadableFileError
from surerag.errors import InputError


class SkippedFilesWarning(UserWarning):
    """Some files of a folder were not read; the message lists them with the reasons."""


class _Skipped(NamedTuple):
    id: str
    reason: str


def load_documents(directory: str | Path, *, max_bytes: int = 64 * 2**20) -> list[Document]:
    """Read every text, Markdown, HTML and PDF file below a folder, in the order of their paths.

    Hidden files and files of other kinds are passed over. Files that cannot be read (encrypted, damaged,
    empty, too large, or a link that leads out of the folder) are skipped, and one warning lists them.

    Args:
        directory: The folder.
        max_bytes: Larger files are skipped.

    Returns:
        One document a file; its id is its path below the folder, its title what the file states, or its
        name.

    Raises:
        InputError: If there is no such folder, or nothing in it could be read.
        MissingExtraError: If there are HTML or PDF files, and the ``documents`` extra is not installed.

    Warns:
        SkippedFilesWarning: If files were skipped.
    """
    root = Path(directory).expanduser()
    if not root.is_dir():
        raise InputError(f"{str(root)!r} is no folder", hint="give a folder with txt, md, html or pdf files")
    documents: list[Document] = []
    skipped: list[_Skipped] = []
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        try:
            documents.append(_document(path, name, root, max_bytes))
        except UnreadableFileError as error:
            skipped.append(_Skipped(name, str(error)))
    listing = "; ".join(f"{name} ({reason})" for name, reason in skipped)
    if not documents:
        raise InputError(
            f"{str(root)!r} holds no file that could be read" + (f": {listing}" if skipped else ""),
            hint=f"add files that end in {', '.join(READERS)}",
        )
    if skipped:
        warnings.warn(f"skipped {len(skipped)} of the files: {listing}", SkippedFilesWarning, stacklevel=2)
    return documents


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
        if not hidden and path.suffix.lower() in READERS and path.is_file():
            yield path


def _document(path: Path, name: str, root: Path, max_bytes: int) -> Document:
    if not path.resolve().is_relative_to(root.resolve()):
        raise UnreadableFileError("a link that leads out of the folder")
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise UnreadableFileError(f"{size:,} bytes, more than {max_bytes:,}")
        data = path.read_bytes()
    except OSError as error:
        raise UnreadableFileError(error.strerror or str(error)) from error
    contents = READERS[path.suffix.lower()](data)
    if not contents.text.strip():
        raise UnreadableFileError("no text")
    return Document(name, contents.text, contents.title or path.stem, {"path": name})
