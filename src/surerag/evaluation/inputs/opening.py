"""Which format a file, several files or a folder have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from surerag.errors import InputError
from surerag.evaluation.inputs.entries import Choose, Entry, Start
from surerag.evaluation.inputs.foreign import beir_rows, beir_split
from surerag.evaluation.inputs.json_files import json_lines, json_list
from surerag.evaluation.inputs.source import Source
from surerag.evaluation.inputs.streams import PACKED
from surerag.evaluation.inputs.tables import arrow_rows, csv_rows, parquet_rows
from surerag.places import Anywhere, is_pattern, matching, place_of


class _Format(NamedTuple):
    name: str
    rows: Callable[[Anywhere, Start, Choose | None], Iterator[Entry]]
    cells: bool = False


_TEXTS: Final = {
    ".jsonl": _Format("JSON lines", json_lines),
    ".ndjson": _Format("JSON lines", json_lines),
    ".json": _Format("JSON", json_list),
    ".csv": _Format("CSV", csv_rows, cells=True),
    ".tsv": _Format("CSV", partial(csv_rows, delimiter="\t"), cells=True),
}
_TABLES: Final = {
    ".parquet": _Format("Parquet", parquet_rows, cells=True),
    ".pq": _Format("Parquet", parquet_rows, cells=True),
    ".arrow": _Format("Arrow", arrow_rows, cells=True),
}
SUFFIXES: Final = (*_TEXTS, *_TABLES)
"""What data files end in; those of text may be packed, and then end in .gz or .zst besides."""


def source_of(path: str | Anywhere) -> Source:
    """Return how a file, several or a folder are read, by their names and what a folder holds.

    Args:
        path: A file or folder, a URL of either, or a pattern of several files of one format.

    Raises:
        InputError: If it is not there, or of no known format, or of several.
        ConfigurationError: If it is elsewhere, and there are no credentials, or no such protocol.
        MissingExtraError: If it is elsewhere, and a package is missing that goes there.
    """
    place = place_of(path)
    if place.is_dir():
        return _folder(place)
    if place.is_file():
        return _files(place, (place,))
    if not is_pattern(place):
        raise InputError(
            f"{place} is no file", hint=f"give a folder, or a file that ends in {', '.join(SUFFIXES)}"
        )
    found = matching(place)
    if not found:
        raise InputError(f"no file is named by {place}", hint="check folder and pattern")
    return _files(place, found)


def format_of(file: Anywhere) -> str:
    """Return the name of a file's format; nothing where it is none that is known."""
    found = _format(file)
    return "" if found is None else found.name


def of_rows(place: Anywhere) -> bool:
    """Whether a place holds rows: a file, files of a pattern, or a folder of nothing else; not documents."""
    if place.is_dir():
        held = [file for file in place.iterdir() if not file.name.startswith((".", "_"))]
        return bool(held) and all(map(format_of, held))
    return not is_pattern(place) or place.is_file() or all(map(format_of, matching(place)))


def _format(file: Anywhere) -> _Format | None:
    name = PurePosixPath(file.name.lower())
    if name.suffix in PACKED:
        return _TEXTS.get(PurePosixPath(name.stem).suffix)
    return _TEXTS.get(name.suffix) or _TABLES.get(name.suffix)


def _files(place: Anywhere, files: Iterable[Anywhere]) -> Source:
    """Return how files are read, one after the other.

    Raises:
        InputError: If one has no known format, or two have different ones.
    """
    found: list[tuple[Anywhere, _Format]] = []
    for file in files:
        form = _format(file)
        if form is None:
            raise InputError(
                f"{file} has the unknown format {file.suffix or 'nothing'!r}",
                hint=f"give a file that ends in {', '.join(SUFFIXES)}; of text also in .gz or .zst",
            )
        if found and form.name != found[0][1].name:
            raise InputError(
                f"{place} has files of two formats: {found[0][0].name} ({found[0][1].name}) and {file.name} "
                f"({form.name})",
                hint="name those of one with a pattern, such as data/*.jsonl",
            )
        found.append((file, form))
    readings = tuple(partial(form.rows, file) for file, form in found)
    first = found[0][1]
    return Source(place, first.name, tuple(file for file, _ in found), readings, first.cells)


def _folder(path: Anywhere) -> Source:
    if (path / "queries.jsonl").is_file() and (path / "qrels").is_dir():
        split = beir_split(path)
        files = [path / "queries.jsonl", path / "qrels" / f"{split}.tsv", path / "corpus.jsonl"]
        there = tuple(file for file in files if file.is_file())
        return Source(path, f"BEIR ({split})", there, (partial(beir_rows, path, split),))
    if (path / "dataset_dict.json").is_file():
        names = json.loads((path / "dataset_dict.json").read_text(encoding="utf-8")).get("splits", [])
        raise InputError(
            f"{path} holds several splits of a Hugging Face data set: {', '.join(map(repr, names))}",
            hint=f"name one of them, such as {path / str(next(iter(names), 'test'))}",
        )
    if (path / "state.json").is_file():
        return _saved(path)
    held: list[Anywhere] = sorted(path.iterdir(), key=lambda file: file.name)
    shown = [file for file in held if not file.name.startswith((".", "_"))]
    known = [file for file in shown if format_of(file) and file.is_file()]
    # Beside tables stands what describes them, in JSON.
    found = [file for file in known if format_of(file) == "Parquet"] or known
    if found:
        return _files(path, found)
    names = [file.name for file in held[:5]]
    raise InputError(
        f"{path} is a folder of no known kind; it holds {', '.join(map(repr, names)) or 'nothing'}",
        hint="give files of one format, what save_to_disk() of a Hugging Face data set wrote, or BEIR",
    )


def _saved(path: Anywhere) -> Source:
    """Return how a data set is read that Hugging Face wrote to the disk."""
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    files = tuple(path / PurePosixPath(one["filename"]).name for one in state.get("_data_files", []))
    if (path / "indices.arrow").is_file() or state.get("_indices_data_files"):
        raise InputError(
            f"{path} holds a selection that was not written out",
            hint="call flatten_indices() on the data set before save_to_disk()",
        )
    readings = tuple(partial(arrow_rows, file) for file in files)
    return Source(path, "Hugging Face data set", files, readings, cells=True)
