"""A folder that others can verify: traces, the tables made from them, and a digest of every file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from surerag.errors import InputError
from surerag.evaluation.serialise import to_json
from surerag.records.figures import TraceFigures, trace_figures
from surerag.records.tables import grids
from surerag.records.trace import Trace
from surerag.runs import MANIFEST, digest_of
from surerag.storage import write_whole

FORMAT: Final = "surerag pack"
VERSION: Final = 1
PACK: Final = "pack.json"
FIGURES: Final = "figures.json"
TABLES: Final = "tables.md"


def _own() -> str:
    try:
        return version("surerag")
    except PackageNotFoundError:  # a source tree that was never installed
        return "unknown"


OWN: Final = _own()


@dataclass(frozen=True, slots=True)
class Pack:
    """What a packed folder says of itself.

    Attributes:
        traces: Names of the traces, which are their folders.
        files: Digest of every other file, by its path below the folder.
        about: What was done: plain values.
        surerag: Version that wrote it.
    """

    traces: tuple[str, ...]
    files: Mapping[str, str]
    about: Mapping[str, Any]
    surerag: str


@dataclass(frozen=True, slots=True)
class AllFigures:
    """The figures of all traces of a folder."""

    traces: tuple[TraceFigures, ...]


def figures_of(folder: Path, names: Sequence[str]) -> AllFigures:
    """Compute every figure from the traces of a folder."""
    found = []
    for name in names:
        trace = Trace(folder / name)
        about = trace.about
        found.append(trace_figures(name, trace, reader=str(about["reader"]), judge=str(about["judge"])))
    return AllFigures(tuple(found))


def tables_text(figures: AllFigures) -> str:
    """Return all tables as Markdown, the same on every machine."""
    lines = ["# What a reader's answers say", ""]
    for trace in figures.traces:
        lines += [f"## {trace.name}: {trace.n:,} questions, read by {trace.reader}", ""]
        lines += [grid.markdown() for grid in grids(trace)]
    return "\n".join(lines).rstrip() + "\n"


def pack(folder: Path, names: Sequence[str], about: Mapping[str, Any]) -> AllFigures:
    """Write figures and tables beside the traces of a folder, and a digest of every file.

    Args:
        folder: Holds the traces' folders.
        names: Of the traces.
        about: What was done: plain values.

    Returns:
        The figures.

    Raises:
        StorageError: If the folder cannot be written.
    """
    (folder / PACK).unlink(missing_ok=True)
    figures = figures_of(folder, names)
    write_whole(folder / FIGURES, to_json(figures) + "\n")
    write_whole(folder / TABLES, tables_text(figures))
    made = Pack(tuple(names), {name: digest_of(folder / name) for name in files_in(folder)}, about, OWN)
    told = {"format": FORMAT, "version": VERSION, **asdict(made)}
    write_whole(folder / PACK, json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    return figures


def read_pack(folder: Path) -> Pack:
    """Read what a packed folder says of itself.

    Raises:
        InputError: If it says nothing, or in a form that is not known here.
    """
    file = folder / PACK
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if (found["format"], found["version"]) != (FORMAT, VERSION):
            raise InputError(f"{file} has an unknown format or version", hint="install a newer surerag")
        return Pack(
            tuple(map(str, found["traces"])),
            dict(found["files"]),
            dict(found["about"]),
            str(found["surerag"]),
        )
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} cannot be read: {type(error).__name__}: {error}") from error


def files_in(folder: Path) -> list[str]:
    """Return all files below a folder but the pack's own, as paths with ``/``."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in found if name != PACK)


def fingerprint(folder: Path) -> str:
    """Return the digest that stands for the whole folder: publish it where nobody else can write."""
    file = folder / PACK if (folder / PACK).exists() else folder / MANIFEST
    return hashlib.sha256(file.read_bytes()).hexdigest()
