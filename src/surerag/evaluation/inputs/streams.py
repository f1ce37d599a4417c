"""Files as streams of bytes, wherever they are, and unpacked if they are compressed."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, cast

from surerag.errors import InputError
from surerag.extras import extra
from surerag.places import Anywhere
from surerag.remote import Remote

PACKED: Final = (".gz", ".zst")
_PIECE = 1 << 16


def opened(file: Anywhere) -> IO[bytes]:
    """Open a file for reading bytes; what it fails with later names it, too.

    A compressed file is read from its beginning to a place that is sought: it has no shorter way there.

    Raises:
        InputError: If it cannot be read, or this user may not.
        MissingExtraError: If it is packed with zstd, and pyarrow is not installed.
    """
    if isinstance(file, Path) and file.suffix.lower() not in PACKED:
        with _reading(file):
            return file.open("rb")
    return cast(IO[bytes], io.BufferedReader(_Stream(file), _PIECE))


class _Stream(io.RawIOBase):
    """Bytes of a file that is elsewhere, or packed."""

    def __init__(self, file: Anywhere) -> None:
        self._file, self._packing = file, file.suffix.lower()
        self._held: list[Any] = []
        self._at = 0
        self._open()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with _reading(self._file):
            data: bytes = self._held[-1].read(len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if self._packing not in PACKED:
            with _reading(self._file):
                self._at = int(self._held[-1].seek(offset, whence))
            return self._at
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("a packed file does not tell how long it is")
        target = offset + (self._at if whence == io.SEEK_CUR else 0)
        if target < self._at:
            self._let_go()
            self._open()
        piece = bytearray(_PIECE)
        while self._at < target and self.readinto(memoryview(piece)[: target - self._at]):
            pass
        return self._at

    def close(self) -> None:
        self._let_go()
        super().close()

    def _open(self) -> None:
        self._at = 0
        with _reading(self._file):
            self._held.append(self._file.open("rb"))
            if self._packing == ".gz":
                self._held.append(gzip.GzipFile(fileobj=self._held[0], mode="rb"))
            elif self._packing == ".zst":
                with extra("parquet"):
                    import pyarrow as pa
                self._held.append(pa.CompressedInputStream(pa.PythonFile(self._held[0], "r"), "zstd"))

    def _let_go(self) -> None:
        while self._held:
            self._held.pop().close()


@contextmanager
def _reading(file: Anywhere) -> Iterator[None]:
    """Turn what reading fails with into an error that names the file."""
    try:
        if isinstance(file, Remote):
            with file.reading():
                yield
        else:
            yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{file} cannot be unpacked: {error}", hint="it was cut short, or is packed in another way"
        ) from error
    except OSError as error:
        raise InputError(
            f"{file} cannot be read: {error.strerror or error}", hint="give a file that this user may read"
        ) from error
