"""Names of a run's files, and which files of a folder are its own."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from surerag.errors import ConfigurationError, InputError
from surerag.lines import LineFile
from surerag.runs.manifest import MANIFEST, Kind
from surerag.storage import storing

ANSWERS: Final = "answers"
_DIGITS, _DIGEST = "[0-9]" * 5, "[0-9a-f]" * 8


def check_kind(lines: LineFile, kind: Kind) -> None:
    """Throw away damaged runs of this kind, but never what another command wrote.

    Raises:
        ConfigurationError: If the folder holds something of another kind.
    """
    with suppress(InputError):
        for _, record in lines.read():
            if record.get("format") not in (None, kind.format):
                other = str(record["format"]).removeprefix("surerag ")
                raise ConfigurationError(
                    f"{lines.file.parent} holds a run of another kind ({other}), which is not thrown away",
                    hint="write to another folder",
                )


def open_name(unit: int) -> str:
    """Return the name of the journal of a unit that is not committed yet."""
    return f"open-{unit:05}.jsonl"


def reusable(folder: Path) -> bool:
    """Whether a folder holds answers that were folded away."""
    return next(folder.glob("answers-*.jsonl.zst"), None) is not None


def _ours(folder: Path, tables: Iterable[str]) -> Iterator[Path]:
    """Yield the files that bear names of ours, and no others: people keep their data beside their results."""
    names = [*(f"{table}-{_DIGITS}.parquet" for table in tables), f"{ANSWERS}-{_DIGITS}.jsonl.zst"]
    names += [name.replace(_DIGITS, f"{_DIGITS}-{_DIGEST}") for name in names]
    for name in (*names, f"open-{_DIGITS}.jsonl"):
        for pattern in (name, f"{name}.part"):
            yield from folder.glob(pattern)


def check_unclaimed(folder: Path, tables: Iterable[str]) -> None:
    """Refuse a folder whose files we would take for ours: a manifest is there before any of them.

    Raises:
        ConfigurationError: If there are such files and no manifest.
    """
    if (folder / MANIFEST).exists():
        return
    foreign = sorted(file.name for file in _ours(folder, tables))
    if foreign:
        raise ConfigurationError(
            f"{folder} holds {foreign[0]}, and no {MANIFEST} that says whose it is",
            hint="write to another folder, or move that file away",
        )


def clean(folder: Path, tables: Iterable[str], but: Collection[str]) -> None:
    """Remove a run's own files, but for some.

    Raises:
        StorageError: If one cannot be removed.
    """
    with storing(folder):
        for file in list(_ours(folder, tables)):
            if file.name not in but:
                file.unlink(missing_ok=True)


def sync(file: Path) -> None:
    """Return when a file is on the disk."""
    handle = os.open(file, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
