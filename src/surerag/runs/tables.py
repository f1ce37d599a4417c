"""Tables of a run as Parquet files: written under another name and renamed, read some rows at a time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from surerag.errors import InputError
from surerag.extras import extra
from surerag.runs.manifest import File
from surerag.storage import storing

KEPT = "what was committed before is kept"
_BATCH = 64


def write_table(folder: Path, name: str, rows: Iterable[Mapping[str, Any]], schema: Any) -> File:
    """Write a table whole or not at all.

    Args:
        folder: Where.
        name: Of the file.
        rows: With the columns of the schema; a lone surrogate in a text becomes ``?``.
        schema: A ``pyarrow.Schema``.

    Raises:
        MissingExtraError: If pyarrow is not installed.
        StorageError: If it cannot be written; what stood there before then stands there still.
    """
    with extra("parquet"):
        import pyarrow as pa
        from pyarrow import parquet
    held = list(rows)
    try:
        table = pa.Table.from_pylist(held, schema)
    except UnicodeEncodeError:  # a model's answer may hold a lone surrogate, which UTF-8 cannot
        table = pa.Table.from_pylist(encodable(held), schema)
    with storing(folder, kept=KEPT):
        unfinished = folder / f"{name}.part"
        with unfinished.open("wb") as opened:
            parquet.write_table(table, opened, compression="zstd")
            opened.flush()
            os.fsync(opened.fileno())
        return renamed(folder, name, len(held))


def write_bytes(folder: Path, file: File, content: bytes) -> None:
    """Write a file that was made elsewhere, whole or not at all.

    Raises:
        InputError: If it is not what it is said to be, or not a file of this folder.
        StorageError: If it cannot be written.
    """
    if Path(file.name).name != file.name or hashlib.sha256(content).hexdigest() != file.sha256:
        raise InputError(f"{file.name} arrived otherwise than it was sent", hint="run the same again")
    with storing(folder, kept=KEPT):
        with (folder / f"{file.name}.part").open("wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        renamed(folder, file.name, file.rows)


def renamed(folder: Path, name: str, rows: int) -> File:
    """Give a file that is wholly written its name, and return what the manifest says of it."""
    unfinished = folder / f"{name}.part"
    digest = digest_of(unfinished)
    unfinished.replace(folder / name)
    return File(name, rows, digest)


def digest_of(file: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def check_file(folder: Path, file: File) -> Path:
    """Return a file's path, having found that it is what the manifest says.

    Raises:
        InputError: If it is missing, changed, or not in this folder.
    """
    path = folder / file.name
    if Path(file.name).name != file.name:
        raise InputError(f"{folder}: the manifest names {file.name!r}, which is no file of this folder")
    if not path.is_file():
        raise InputError(f"{path} is missing", hint="copy the whole folder, or make it again")
    if digest_of(path) != file.sha256:
        raise InputError(
            f"{path} is not the file that was recorded: its digest differs from the manifest's",
            hint="get the folder again from where it was published, or make it again",
        )
    return path


def records_in(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file, holding some at a time.

    Raises:
        InputError: If it cannot be read, or has other columns.
        MissingExtraError: If pyarrow is not installed.
    """
    for batch in batches_of(path, columns, size=_BATCH):
        yield from batch.to_pylist()


def batches_of(path: Path, columns: Sequence[str] | None = None, *, size: int = 4096) -> Iterator[Any]:
    """Yield the rows of a Parquet file as Arrow record batches of at most ``size`` rows.

    Raises:
        InputError: If it cannot be read, or has other columns.
        MissingExtraError: If pyarrow is not installed.
    """
    with extra("parquet"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    try:
        with ParquetFile(path) as table:
            yield from table.iter_batches(batch_size=size, columns=columns, use_threads=False)
    except (ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from error


def encodable(value: Any) -> Any:
    """Return a value whose texts UTF-8 can hold: a lone surrogate becomes ``?``."""
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode("utf-8")
    if isinstance(value, dict):
        return {key: encodable(item) for key, item in value.items()}
    return [encodable(item) for item in value] if isinstance(value, list | tuple) else value
