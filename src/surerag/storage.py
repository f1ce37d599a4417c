"""Files that are written whole or not at all; failures of the disk say what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from surerag.errors import StorageError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
_IN_THE_WAY = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR)


@contextmanager
def storing(path: Path, *, kept: str = "") -> Iterator[None]:
    """Turn an ``OSError`` from writing below a path into a :class:`StorageError`.

    Args:
        path: What is written; named in the message.
        kept: A sentence about what is not lost.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise unwritable(path, error, kept=kept) from error


def unwritable(path: Path, error: OSError, *, kept: str = "") -> StorageError:
    """Say why a path cannot be written, and how to mend it."""
    if error.errno in _FULL:
        hint = "free some space or quota, or write to another disk, and run the same again"
    elif error.errno in _CLOSED:
        hint = "make it writable, or write to another folder"
    elif error.errno in _IN_THE_WAY:
        hint = "a file stands where a folder is needed, or a folder where a file is; name another path"
    else:
        hint = "check the disk, or write to another one, and run the same again"
    reason = error.strerror or str(error)
    return StorageError(f"{path} cannot be written: {reason}" + (f"; {kept}" if kept else ""), hint=hint)


def check_folder(folder: Path) -> None:
    """Make a folder, and make sure that files can be written there: before hours of work, not after.

    Raises:
        StorageError: If they cannot.
    """
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as file:
            file.write(b"?")


def check_file(file: Path) -> None:
    """Make sure that a file can be written, and make its folder; what stands there stays.

    Raises:
        StorageError: If it cannot.
    """
    check_folder(file.parent)
    with storing(file):
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


@contextmanager
def whole_lines(file: Path) -> Iterator[Callable[[str], None]]:
    """Write a file of lines under another name first, and give it its own at the end.

    Lone surrogates become the escapes that stand for them in JSON.

    Yields:
        A function that appends a line.

    Raises:
        StorageError: If it cannot be written; what stood there before then stands there still.
    """
    unfinished = file.with_name(f"{file.name}.part")
    with storing(file):
        lines = unfinished.open("w", encoding="utf-8", errors="backslashreplace", newline="\n")

    def write(line: str) -> None:
        with storing(file):
            lines.write(line + "\n")

    try:
        yield write
    finally:
        with storing(file):
            lines.close()
    with storing(file):
        unfinished.replace(file)


def write_whole(file: Path, text: str) -> None:
    """Write a UTF-8 file whole or not at all; missing folders are made.

    The text stands in a second file until it is on the disk. A lone surrogate, which a model's answer may
    hold and UTF-8 cannot, becomes ``?``.

    Raises:
        StorageError: If it cannot be written; what stood there before then stands there still.
    """
    unfinished = file.with_name(f"{file.name}.part")
    with storing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with unfinished.open("wb") as written:
                written.write(text.encode("utf-8", errors="replace"))
                written.flush()
                os.fsync(written.fileno())
            unfinished.replace(file)
        except OSError:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
