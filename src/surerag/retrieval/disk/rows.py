"""Texts and vectors of summaries in two files that only grow: written in units, read by row.

``summaries.arrow`` is an Arrow IPC stream (``id``, ``text``, ``metadata`` as JSON), uncompressed: a row is
read where it stands; ``vectors.f16`` holds rows of little-endian float16 one after the other. Both are
mapped into memory: what is not asked for is not read, and what the system needs room for, it lets go of.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from surerag.errors import ConfigurationError, InputError, ServiceError
from surerag.extras import extra
from surerag.lines import LineFile
from surerag.retrieval.disk.manifest import (
    HEAD,
    MANIFEST,
    MEND,
    VERSION,
    Contents,
    Searchable,
    Unit,
    contents_of,
)
from surerag.storage import check_folder, storing
from surerag.types import Passage

TEXTS: Final = "summaries.arrow"
VECTORS: Final = "vectors.f16"
KEPT: Final = "what was committed before is kept"
STORED: Final = np.dtype("<f2")
BLOCK: Final = 65_536
"""Vectors that are worked on at once where all of them are read."""

OnChange = Literal["error", "restart"]


class RowWriter:
    """Appends units of summaries to a folder; a unit is there whole or not at all.

    Args:
        folder: Made if it is not there.
        about: What the summaries are: the encoder's name and how they were made.
        on_change: If the folder holds summaries about something else: ``"error"``, or ``"restart"``, which
            throws them away.

    Raises:
        ConfigurationError: If the folder holds something else, or another process writes to it.
        InputError: If it is damaged.
        StorageError: If it cannot be written.
        MissingExtraError: If pyarrow is not installed.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], *, on_change: OnChange = "error") -> None:
        with extra("faiss"):
            import pyarrow as pa  # noqa: F401 (said before hours of work, not after)
        check_folder(folder)
        self.folder = folder
        _check_unclaimed(folder)
        self._lines = LineFile(
            folder / MANIFEST, HEAD, what="a manifest of a folder of summaries", kept=KEPT, mend=MEND
        )
        self._files: list[BinaryIO] = []
        try:
            if on_change == "restart":
                self.clear()
            else:
                self.contents = contents_of((record for _, record in self._lines.read()), self._lines.file)
                _check_same(folder, self.contents.about, about)
            self._about = dict(about)
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder; closing again does nothing."""
        for file in self._files:
            # After the disk has failed, what is left to be written stands behind the last unit.
            with suppress(OSError):
                file.close()
        self._lines.close()

    def clear(self) -> None:
        """Throw everything away that this folder's manifest has named."""
        self._lines.clear()
        self.contents = Contents()
        with storing(self.folder):
            for file in (*self.folder.glob("index-*.faiss"), *self.folder.glob("index-*.lists")):
                file.unlink()

    def append(self, passages: Sequence[Passage], vectors: NDArray[np.float32], source: str) -> None:
        """Write a unit, and commit it when it is on the disk.

        Args:
            passages: The summaries.
            vectors: Theirs [passages, dimensions].
            source: Digest of what they were made of.

        Raises:
            ServiceError: If the vectors have other dimensions than those before.
            InputError: If metadata cannot be written down.
            StorageError: If the disk fails.
        """
        head = []
        if not self.contents.about:
            about = {**self._about, "dimensions": vectors.shape[1]}
            head = [{"format": "surerag summaries", "version": VERSION, "about": about}]
            self.contents.about = about
        dimensions = self.contents.about["dimensions"]
        if vectors.shape[1] != dimensions:
            raise ServiceError(
                f"the encoder gave vectors of {vectors.shape[1]} dimensions after vectors of {dimensions}",
                hint="let it return vectors of one length",
            )
        parts = (_message(passages), vectors.astype(STORED).tobytes())
        with storing(self.folder, kept=KEPT):
            for file, data in zip(self._files, parts, strict=True):
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        unit = Unit(len(passages), len(parts[0]), source, hashlib.sha256(parts[1] + parts[0]).hexdigest())
        self._lines.append([*head, {"unit": unit._asdict()}])
        self.contents.units.append(unit)

    def seal(self, index: Searchable) -> None:
        """Name a search index, and remove those before it; who has one open keeps it."""
        files = [file._asdict() for file in index.files]
        line = {"rows": index.rows, "files": files, "settings": dict(index.settings)}
        self._lines.append([{"index": line}])
        self.contents.index, self.contents.made = index, self.contents.made + 1
        named = {file.name for file in index.files}
        with storing(self.folder):
            for file in self.folder.glob("index-*.*"):
                if file.name not in named:
                    file.unlink()

    def _open(self) -> None:
        """Open both files for appending, and cut off what no unit names."""
        units, width = self.contents.units, self.contents.about.get("dimensions", 0) * STORED.itemsize
        schema = _schema().serialize().to_pybytes()
        ends = {TEXTS: len(schema) + sum(unit.bytes for unit in units), VECTORS: self.contents.rows * width}
        with storing(self.folder, kept=KEPT):
            for name, end in ends.items():
                path = self.folder / name
                if units:
                    check_length(path, end)
                    os.truncate(path, end)
                self._files.append(path.open("ab" if units else "wb"))
            if not units:
                self._files[0].write(schema)


class StoredRows:
    """The first rows of a folder, read one by one.

    Args:
        folder: As a :class:`RowWriter` left it.
        contents: What its manifest says.
        rows: How many of them.

    Raises:
        InputError: If a file is missing, cut short, or not that of this manifest.
    """

    def __init__(self, folder: Path, contents: Contents, rows: int) -> None:
        with extra("faiss"):
            import pyarrow as pa
        self.folder, self._units, self.rows = folder, _covering(contents.units, rows), rows
        self.dimensions: int = contents.about["dimensions"]
        starts = np.cumsum([0, *(unit.rows for unit in self._units)])
        self._starts = starts[:-1]
        self._ends = np.cumsum([len(_schema().serialize()), *(unit.bytes for unit in self._units)])
        check_length(folder / TEXTS, int(self._ends[-1]))
        check_length(folder / VECTORS, int(starts[-1]) * self.dimensions * STORED.itemsize)
        with storing(folder):
            mapped = np.memmap(folder / VECTORS, STORED, "r", shape=(int(starts[-1]), self.dimensions))
            # As a plain array, a row of it is a plain array, too: half the time of taking some.
            self.vectors: NDArray[np.float16] = np.asarray(mapped)[:rows]
        for place in (0, len(self._units) - 1):
            self._check_unit(place)
        try:
            with pa.memory_map(str(folder / TEXTS)) as opened:
                stream = pa.ipc.open_stream(opened)
                self._batches = [stream.read_next_batch() for _ in self._units]
        except (pa.ArrowException, StopIteration, OSError) as error:
            raise _damaged(folder / TEXTS) from error

    def block(self, start: int, number: int) -> NDArray[np.float32]:
        """Return some vectors in a row, read rather than mapped: nothing of them stays."""
        number = min(number, self.rows - start)
        offset = start * self.dimensions * STORED.itemsize
        found = np.fromfile(self.folder / VECTORS, STORED, number * self.dimensions, offset=offset)
        return found.reshape(number, self.dimensions).astype(np.float32)

    def some(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the vectors of some rows in order of place [rows, dimensions]."""
        found = np.empty((len(rows), self.dimensions), np.float32)
        for start in range(0, self.rows, BLOCK):
            first, last = np.searchsorted(rows, (start, start + BLOCK))
            if first < last:
                found[first:last] = self.block(start, BLOCK)[rows[first:last] - start]
        return found

    def passage(self, row: int, score: float) -> Passage:
        """Return a summary with the score that it was found with."""
        unit = int(np.searchsorted(self._starts, row, side="right")) - 1
        batch, place = self._batches[unit], row - int(self._starts[unit])
        name, text, metadata = (column[place].as_py() for column in batch.columns)
        return Passage(text, id=name, score=score, metadata=json.loads(metadata))

    def verify(self) -> None:
        """Read everything, and compare it with the manifest.

        Raises:
            InputError: If something was changed.
        """
        for place in range(len(self._units)):
            self._check_unit(place)

    def _check_unit(self, place: int) -> None:
        unit, first = self._units[place], int(self._starts[place])
        start = int(self._ends[place])
        width = self.dimensions * STORED.itemsize
        digest = hashlib.sha256()
        for name, at, size in ((VECTORS, first * width, unit.rows * width), (TEXTS, start, unit.bytes)):
            with (self.folder / name).open("rb") as opened:
                opened.seek(at)
                digest.update(opened.read(size))
        if digest.hexdigest() != unit.sha256:
            raise _damaged(self.folder, f": summaries {first} to {first + unit.rows - 1}")


def check_length(path: Path, least: int) -> None:
    """Make sure that a file holds what was committed.

    Raises:
        InputError: If it is missing or shorter.
    """
    found = path.stat().st_size if path.is_file() else 0
    if found < least:
        raise InputError(
            f"{path} is missing or cut short: expected {least} bytes, found {found}",
            hint=f"copy the whole folder, or {MEND}",
        )


def _covering(units: Sequence[Unit], rows: int) -> list[Unit]:
    """Return the units that the first rows stand in."""
    found, covered = [], 0
    for unit in units:
        if covered >= rows:
            break
        found.append(unit)
        covered += unit.rows
    return found


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([(name, pa.string()) for name in ("id", "text", "metadata")])


def _message(passages: Sequence[Passage]) -> bytes:
    """Return a unit's texts as a message of the Arrow stream; a lone surrogate becomes ``?``."""
    import pyarrow as pa

    columns = (
        [_encodable(passage.id) for passage in passages],
        [_encodable(passage.text) for passage in passages],
        [_as_json(passage) for passage in passages],
    )
    batch = pa.record_batch([pa.array(one, pa.string()) for one in columns], _schema())
    message: bytes = batch.serialize().to_pybytes()
    return message


def _encodable(text: str) -> str:
    return text.encode("utf-8", errors="replace").decode("utf-8")


def _as_json(passage: Passage) -> str:
    try:
        return json.dumps(dict(passage.metadata))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"the metadata of {passage.id!r} cannot be written down: {error}",
            hint="keep plain values in it: texts, numbers, lists and mappings",
        ) from error


def _damaged(path: Path, where: str = "") -> InputError:
    return InputError(f"{path} is not what its manifest says{where}", hint=f"get the folder again, or {MEND}")


def _check_unclaimed(folder: Path) -> None:
    """Refuse a folder whose files we would take for ours: a manifest is there before any of them.

    Raises:
        ConfigurationError: If there are such files and no manifest.
    """
    found = next((name for name in (TEXTS, VECTORS) if (folder / name).exists()), None)
    if found is not None and not (folder / MANIFEST).exists():
        raise ConfigurationError(
            f"{folder} holds {found}, and no {MANIFEST} that says whose it is", hint="write to another folder"
        )


def _check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in now if before else ():
        if before.get(name) != now[name]:
            raise ConfigurationError(
                f"{folder} holds other summaries: its {name} is {before.get(name)!r}, not {now[name]!r}",
                hint='write to another folder, or throw it away with on_change="restart"',
            )


def digests_of(files: Iterator[bytes]) -> str:
    """Return the digest of several texts, told apart by their lengths."""
    digest = hashlib.sha256()
    for data in files:
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
