"""Read a folder of files as documents."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from surerag.documents.document import Document
from surerag.documents.formats import SUFFIXES, UnreadableFileError
from surerag.documents.parsing import Parser
from surerag.errors import InputError
from surerag.places import Anywhere, folder_before, is_pattern, matching, place_of
from surerag.remote import Remote

_LISTED = 20


class SkippedFilesWarning(UserWarning):
    """Some files of a folder were not read; the message lists them with the reasons."""


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file or folder that was not read.

    Attributes:
        path: Where it is below the folder, with ``/``; bytes that are not UTF-8 are escaped.
        reason: Why it was not.
    """

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class LoadedDocuments:
    """What a folder held.

    Attributes:
        documents: One for each file that was read, in the order of their paths.
        skipped: All else but hidden files, in the same order.
    """

    documents: tuple[Document, ...]
    skipped: tuple[SkippedFile, ...]


def load_documents(
    directory: str | Anywhere, *, max_bytes: int = 64 * 2**20, max_seconds: float | None = 20.0
) -> LoadedDocuments:
    """Read every text, Markdown, HTML and PDF file below a folder, in the order of their paths.

    Hidden files and folders are passed over. Whatever else cannot be read is skipped and listed, in the
    result and in one warning: files that are encrypted, damaged, empty, too large, too slow to parse, of
    other kinds, links that lead out of the folder, folders that may not be entered, names that are not
    UTF-8.

    Args:
        directory: The folder; its URL, such as ``s3://bucket/manuals``; or a pattern of files, such as
            ``manuals/**/*.md``.
        max_bytes: Larger files are skipped.
        max_seconds: An HTML or PDF file that takes longer to parse is skipped. They are parsed in a second
            process, which can be ended; None parses them in this one, however long it takes.

    Returns:
        One document a file, its id being its path below the folder, and its title what the file states, or
        its name; and what was skipped.

    Raises:
        InputError: If there is no such folder, or nothing in it could be read.
        ConfigurationError: If ``max_seconds`` is not positive; or, elsewhere, if there are no credentials.
        MissingExtraError: If there are HTML or PDF files, and the ``documents`` extra is not installed.

    Warns:
        SkippedFilesWarning: If files were skipped.
    """
    root = place_of(directory)
    if isinstance(root, Path):
        root = root.expanduser()
    if not root.is_dir() and not (is_pattern(root) and matching(root)):
        raise InputError(f"{str(root)!r} is no folder", hint="give a folder with txt, md, html or pdf files")
    documents: list[Document] = []
    skipped: list[SkippedFile] = []
    with Parser(max_seconds) as parser:
        for found in _below(root):
            try:
                documents.append(_document(found, max_bytes, parser))
            except UnreadableFileError as error:
                shown = os.fsencode(found.name).decode("utf-8", "backslashreplace")
                skipped.append(SkippedFile(shown, str(error)))
    if not documents:
        raise InputError(
            f"{str(root)!r} holds no file that could be read" + (f": {_listing(skipped)}" if skipped else ""),
            hint=f"add files that end in {', '.join(SUFFIXES)}",
        )
    if skipped:
        message = f"skipped {len(skipped)} of the files: {_listing(skipped)}"
        warnings.warn(message, SkippedFilesWarning, stacklevel=2)
    return LoadedDocuments(tuple(documents), tuple(skipped))


def _listing(skipped: Sequence[SkippedFile]) -> str:
    listed = "; ".join(f"{file.path} ({file.reason})" for file in skipped[:_LISTED])
    return listed + (f"; and {len(skipped) - _LISTED} more" if len(skipped) > _LISTED else "")


@dataclass(frozen=True, slots=True)
class _Found:
    """A file, its name below the folder, how it is read, or why it cannot be."""

    path: Anywhere
    name: str
    read: Callable[[int], bytes]
    trouble: str = ""


def _below(root: Anywhere) -> Iterator[_Found]:
    """Yield what is below a folder, or what a pattern names, hidden files and folders left out."""
    if isinstance(root, Path) and root.is_dir():
        yield from _on_disk(root)
        return
    files: Sequence[Anywhere] = root.below() if isinstance(root, Remote) and root.is_dir() else matching(root)
    base = folder_before(root) if is_pattern(root) else root
    for file in files:
        name = str(file).removeprefix(f"{str(base).rstrip('/')}/")
        if not any(part.startswith(".") for part in name.split("/")):
            read = partial(_bytes, file, base) if isinstance(file, Path) else partial(_stored_bytes, file)
            yield _Found(file, name, read)


def _on_disk(root: Path) -> Iterator[_Found]:
    """Yield what is below a folder in the order of its paths."""
    found: list[tuple[Path, str]] = []

    def refused(error: OSError) -> None:
        found.append((Path(error.filename), error.strerror or str(error)))

    for folder, folders, files in os.walk(root, onerror=refused):
        folders[:] = [name for name in folders if not name.startswith(".")]
        here = Path(folder)
        found += [(here / name, "") for name in files if not name.startswith(".")]
        found += [(here / name, "a link to a folder") for name in folders if (here / name).is_symlink()]
    for path, trouble in sorted(found):
        yield _Found(path, path.relative_to(root).as_posix(), partial(_bytes, path, root), trouble)


def _document(found: _Found, max_bytes: int, parser: Parser) -> Document:
    path, name, suffix = found.path, found.name, found.path.suffix.lower()
    try:
        if found.trouble:
            raise UnreadableFileError(found.trouble)
        if suffix not in SUFFIXES:
            raise UnreadableFileError(f"no known kind of file: {suffix or 'it has no suffix'}")
        data = found.read(max_bytes)
    except (OSError, RuntimeError) as error:  # before Python 3.13, a link to itself is a RuntimeError
        raise UnreadableFileError(getattr(error, "strerror", None) or str(error)) from error
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise UnreadableFileError("its name is not UTF-8") from error
    contents = parser.read(suffix, data)
    if not contents.text.strip():
        raise UnreadableFileError("no text")
    return Document(name, contents.text, contents.title or path.stem, {"path": name})


def _bytes(path: Path, root: Anywhere, max_bytes: int) -> bytes:
    if not path.resolve().is_relative_to(Path(str(root)).resolve()):
        raise UnreadableFileError("a link that leads out of the folder")
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise UnreadableFileError("not a regular file")
    _check_size(about.st_size, max_bytes)
    return path.read_bytes()


def _stored_bytes(file: Remote, max_bytes: int) -> bytes:
    _check_size(file.version()[0], max_bytes)
    return file.read_bytes()


def _check_size(size: int | None, max_bytes: int) -> None:
    if size is not None and size > max_bytes:
        raise UnreadableFileError(f"{size:,} bytes, more than {max_bytes:,}")
