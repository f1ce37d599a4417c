"""The stages' data as Parquet files: written whole or not at all, the same rows always the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, Protocol

from surerag.errors import InputError
from surerag.extras import extra
from surerag.storage import storing

Kind = Literal["rewrites", "samples", "pairs"]
_GROUP = 4096
"""Rows that are held in memory, and written at once."""
_TEXT, _TEXTS, _NUMBER, _COUNT, _FLAG = "string", "texts", "float64", "int32", "bool"
COLUMNS: Mapping[Kind, Mapping[str, str]] = {
    "rewrites": {
        "query_id": _TEXT, "query": _TEXT, "rewrite": _TEXT, "trouble": _TEXT, "learnt": _FLAG,
    },
    "samples": {
        "query_id": _TEXT, "query": _TEXT, "golds": _TEXTS, "sample": _COUNT, "times": _COUNT,
        "rewrite": _TEXT, "trouble": _TEXT, "passages": _TEXTS, "answer": _TEXT, "uncertainty": _NUMBER,
        "correct": _FLAG, "found": _FLAG, "relevance": _NUMBER,
    },
    "pairs": {
        "query_id": _TEXT, "query": _TEXT, "better": _TEXT, "worse": _TEXT, "better_reward": _NUMBER,
        "worse_reward": _NUMBER, "difference": _NUMBER,
    },
}  # fmt: skip
"""Names and types of the columns of each file."""


class Writer(Protocol):
    """Takes rows, in order."""

    def __call__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows; columns that a row does not have are null."""


@contextmanager
def written(file: Path, kind: Kind, about: Mapping[str, Any]) -> Iterator[Writer]:
    """Write a file under another name first, and give it its own at the end; after an error there is none.

    Args:
        file: Where to; its folder is made.
        kind: Which columns.
        about: What the rows belong to; kept in the file's metadata under ``surerag``, as JSON.

    Raises:
        StorageError: If it cannot be written.
        MissingExtraError: If pyarrow is not installed.
    """
    with extra("train"):
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter
    types = {
        _TEXT: pa.string(), _TEXTS: pa.list_(pa.string()), _NUMBER: pa.float64(), _COUNT: pa.int32(),
        _FLAG: pa.bool_(),
    }  # fmt: skip
    schema = pa.schema(
        [(name, types[kind_]) for name, kind_ in COLUMNS[kind].items()],
        metadata={"surerag": json.dumps(about, sort_keys=True)},
    )
    unfinished = file.with_name(f"{file.name}.part")
    with storing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        table = ParquetWriter(unfinished, schema, compression="zstd")
    waiting: list[dict[str, Any]] = []

    def flush() -> None:
        if waiting:
            with storing(file):
                table.write_table(pa.Table.from_pylist(waiting, schema))
            waiting.clear()

    def write(rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            waiting.append({name: _encodable(row.get(name)) for name in schema.names})
            if len(waiting) == _GROUP:
                flush()

    try:
        try:
            yield write
            flush()
        finally:
            with storing(file):
                table.close()
        with storing(file):
            unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def queries_of(file: Path, kind: Kind) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of one query after the other.

    Raises:
        InputError: If there is no such file, or it has other columns.
        MissingExtraError: If pyarrow is not installed.
    """
    with extra("train"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    if not file.is_file():
        raise InputError(f"{file} is no file", hint="run the stage before this one, or name its file")
    try:
        with ParquetFile(file) as table:
            missing = [name for name in COLUMNS[kind] if name not in table.schema_arrow.names]
            if missing:
                raise InputError(
                    f"{file} is no file of {kind}: it lacks {', '.join(missing)}",
                    hint="give the file that the stage before wrote",
                )
            rows = (
                row for batch in table.iter_batches(columns=list(COLUMNS[kind])) for row in batch.to_pylist()
            )
            for _, group in groupby(rows, key=lambda row: (row["query_id"], row["query"])):
                yield list(group)
    except (ArrowException, OSError) as error:
        raise InputError(f"{file} cannot be read as Parquet: {str(error).splitlines()[0]}") from error


def _encodable(value: Any) -> Any:
    """Lone surrogates in a model's answer become the escapes that stand for them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value
