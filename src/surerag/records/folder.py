"""A trace on the disk: parts that are there whole or not at all, and a manifest that names them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from surerag.errors import ConfigurationError, InputError
from surerag.extras import extra
from surerag.records.schema import VERSION, asked_schema, question_schema
from surerag.storage import storing, write_whole

FORMAT: Final = "surerag trace"
MANIFEST: Final = "manifest.json"
_BATCH = 64
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class File:
    """A file of a trace.

    Attributes:
        name: Below the trace's folder.
        rows: How many it has.
        sha256: Digest of its bytes.
    """

    name: str
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Part:
    """Some questions in a row, and what was asked for them.

    Attributes:
        questions: Their file.
        asked: What was asked; None where it was not kept.
        source: Digest of the questions as they were given.
    """

    questions: File
    asked: File | None
    source: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a trace says of itself.

    Attributes:
        about: What was recorded, and how; see ``docs/records.md``.
        parts: In order.
        complete: Whether all questions are there.
    """

    about: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    complete: bool = False

    @property
    def rows(self) -> int:
        """Questions in all parts."""
        return sum(part.questions.rows for part in self.parts)

    @property
    def files(self) -> tuple[File, ...]:
        """All files of all parts."""
        return tuple(file for part in self.parts for file in (part.questions, part.asked) if file is not None)


def read_manifest(folder: Path) -> Manifest:
    """Read what a folder says of itself.

    Raises:
        InputError: If it holds no trace, or one of a version that is not known here.
    """
    file = folder / MANIFEST
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{folder} holds no trace: there is no {MANIFEST}", hint="give the folder that `record` wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"{file} is no manifest of a trace", hint="give the folder that `record` wrote")
    if found.get("version") != VERSION:
        raise InputError(
            f"{folder} has version {found.get('version')} of the format, and version {VERSION} is known here",
            hint="install the version of surerag that wrote it, or record again",
        )
    try:
        parts = tuple(
            Part(File(**part["questions"]), part["asked"] and File(**part["asked"]), str(part["source"]))
            for part in found["parts"]
        )
        return Manifest(dict(found["about"]), parts, bool(found["complete"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} is damaged: {type(error).__name__}: {error}") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write what a folder says of itself, whole or not at all.

    Raises:
        StorageError: If it cannot be written.
    """
    found = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    write_whole(folder / MANIFEST, json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def commit(
    folder: Path,
    manifest: Manifest,
    questions: Sequence[Mapping[str, Any]],
    asked: Sequence[Mapping[str, Any]] | None,
    source: str,
) -> Manifest:
    """Add a part: its files are written under other names, renamed, and then named by the manifest.

    A kill leaves files that no manifest names, and the next attempt writes over them.

    Returns:
        The manifest that is in force now.

    Raises:
        StorageError: If something cannot be written; what was there before is there still.
    """
    number = len(manifest.parts)
    part = Part(
        _written(folder, f"questions-{number:05}.parquet", questions, question_schema()),
        None if asked is None else _written(folder, f"asked-{number:05}.parquet", asked, asked_schema()),
        source,
    )
    manifest = replace(manifest, parts=(*manifest.parts, part))
    write_manifest(folder, manifest)
    return manifest


def check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with a trace of something else.

    Raises:
        ConfigurationError: Naming what differs.
    """
    now = json.loads(json.dumps(now))
    names = [*now, *(name for name in before if name not in now)]
    changes = [
        f"{name} was {_shortened(before.get(name))} and is {_shortened(now.get(name))}"
        for name in names
        if name != "versions" and before.get(name) != now.get(name)
    ]
    if changes:
        raise ConfigurationError(
            f"{folder} holds a trace of something else: {'; '.join(changes)}",
            hint="write to another folder, or begin anew with --restart (on_change='restart')",
        )


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
        raise InputError(f"{path} is missing", hint="copy the whole folder, or record again")
    if digest_of(path) != file.sha256:
        raise InputError(
            f"{path} is not the file that was recorded: its digest differs from the manifest's",
            hint="get the folder again from where it was published, or record again",
        )
    return path


def records_in(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file, holding some at a time.

    Raises:
        InputError: If it cannot be read, or has other columns.
        MissingExtraError: If pyarrow is not installed.
    """
    with extra("parquet"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    try:
        with ParquetFile(path) as table:
            for batch in table.iter_batches(batch_size=_BATCH, columns=columns):
                yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from error


def _written(folder: Path, name: str, rows: Sequence[Mapping[str, Any]], schema: Any) -> File:
    with extra("parquet"):
        import pyarrow as pa
        from pyarrow import parquet
    try:
        table = pa.Table.from_pylist(list(rows), schema)
    except UnicodeEncodeError:  # a model's answer may hold a lone surrogate, which UTF-8 cannot
        table = pa.Table.from_pylist(_encodable(list(rows)), schema)
    unfinished = folder / f"{name}.part"
    with storing(folder, kept="the parts before are kept"):
        with unfinished.open("wb") as opened:
            parquet.write_table(table, opened, compression="zstd")
            opened.flush()
            os.fsync(opened.fileno())
        digest = digest_of(unfinished)
        unfinished.replace(folder / name)
    return File(name, len(rows), digest)


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
