"""Which format a file or folder has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from surerag.errors import InputError
from surerag.evaluation.inputs.entries import Choose, Entry, Source, Start
from surerag.evaluation.inputs.foreign import beir_rows, beir_split, unfolded
from surerag.evaluation.inputs.json_files import json_lines, json_list
from surerag.evaluation.inputs.tables import arrow_rows, csv_rows, parquet_rows

SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".pq", ".arrow")


def source_of(path: Path) -> Source:
    """Return how a file or folder is read, by its name and what a folder holds.

    Raises:
        InputError: If it is not there, or of no known format.
    """
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise InputError(
            f"{path} is no file", hint=f"give a folder, or a file that ends in {', '.join(SUFFIXES)}"
        )
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return _of(path, "JSON lines", (path,), partial(json_lines, path))
    if suffix == ".json":
        return _of(path, "JSON", (path,), partial(json_list, path))
    if suffix in (".csv", ".tsv"):
        delimiter = "," if suffix == ".csv" else "\t"
        return _of(path, "CSV", (path,), partial(csv_rows, path, delimiter=delimiter), cells=True)
    if suffix in (".parquet", ".pq"):
        return _of(path, "Parquet", (path,), partial(parquet_rows, (path,)), cells=True)
    if suffix == ".arrow":
        return _of(path, "Arrow", (path,), partial(arrow_rows, (path,)), cells=True)
    raise InputError(
        f"{path} has the unknown format {path.suffix or 'nothing'!r}",
        hint=f"give a file that ends in {', '.join(SUFFIXES)}",
    )


def _folder(path: Path) -> Source:
    if (path / "queries.jsonl").is_file() and (path / "qrels").is_dir():
        split = beir_split(path)
        files = [path / "queries.jsonl", path / "qrels" / f"{split}.tsv", path / "corpus.jsonl"]
        found = tuple(file for file in files if file.is_file())
        return _of(path, f"BEIR ({split})", found, partial(beir_rows, path, split))
    if (path / "dataset_dict.json").is_file():
        names = json.loads((path / "dataset_dict.json").read_text(encoding="utf-8")).get("splits", [])
        raise InputError(
            f"{path} holds several splits of a Hugging Face data set: {', '.join(map(repr, names))}",
            hint=f"name one of them, such as {path / str(next(iter(names), 'test'))}",
        )
    if (path / "state.json").is_file():
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        arrow = tuple(path / Path(one["filename"]).name for one in state.get("_data_files", []))
        if any((path / name).is_file() for name in ("indices.arrow",)) or state.get("_indices_data_files"):
            raise InputError(
                f"{path} holds a selection that was not written out",
                hint="call flatten_indices() on the data set before save_to_disk()",
            )
        return _of(path, "Hugging Face data set", arrow, partial(arrow_rows, arrow), cells=True)
    parquet = tuple(sorted(path.glob("*.parquet")))
    if parquet:
        return _of(path, "Parquet", parquet, partial(parquet_rows, parquet), cells=True)
    held = sorted(file.name for file in path.iterdir())[:5]
    raise InputError(
        f"{path} is a folder of no known kind; it holds {', '.join(map(repr, held)) or 'nothing'}",
        hint="give what save_to_disk() of a Hugging Face data set wrote, BEIR, Parquet files, or a file",
    )


def _of(path: Path, form: str, files: tuple[Path, ...], reading: Any, *, cells: bool = False) -> Source:
    def entries(start: Start, choose: Choose | None) -> Iterator[Entry]:
        return unfolded(reading(start._replace(skip=0), choose), start.skip)

    return Source(path, form, files, entries, cells)
