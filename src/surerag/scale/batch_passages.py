"""A retriever over a table of passages, with the vectors that stand in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from surerag.errors import ConfigurationError, InputError
from surerag.extras import extra
from surerag.retrieval import PassageIndex
from surerag.retrieval.index import USUAL_K
from surerag.runs.tables import batches_of
from surerag.services import Encoder
from surerag.types import Passage

with extra("parquet"):
    import pyarrow as pa

FIELDS: Final = ("text", "id", "vector", "encoder")
_USUAL: Final = {"text": "text", "id": "id", "vector": "embed_vector", "encoder": "embed_encoder"}


def passage_index(
    path: str, encoder: Encoder, *, k: int = USUAL_K, columns: Mapping[str, str] | None = None
) -> PassageIndex:
    """Read passages and index them; those that :class:`surerag.scale.EmbedBatch` made are not encoded again.

    Args:
        path: A Parquet file, or a folder of them, read in the order of their names.
        encoder: Encodes queries; and passages, where the table has no vectors.
        k: Passages to return where nobody asks for another number.
        columns: Where the table has other names than ``text``, ``id``, ``embed_vector`` and
            ``embed_encoder``. All other columns become the passages' metadata.

    Raises:
        InputError: If there is no such table, a column is missing, or a passage has no text or no vector.
        ConfigurationError: If the vectors are another encoder's.
    """
    names = {**_USUAL, **(columns or {})}
    passages: list[Passage] = []
    vectors: list[Any] = []
    for file in _files(Path(path)):
        for batch in batches_of(file):
            passages += _passages(batch, names, file)
            if names["vector"] in batch.schema.names:
                _check_encoder(batch, names["encoder"], encoder, file)
                vectors.append(_vectors(batch.column(names["vector"]), file))
    if not vectors:
        return PassageIndex.from_passages(passages, encoder, k=k)
    return PassageIndex(passages, np.concatenate(vectors), encoder, k=k)


def _files(path: Path) -> list[Path]:
    found = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not found or not found[0].exists():
        raise InputError(f"there are no passages at {path}", hint="name a Parquet file, or a folder of them")
    return found


def _passages(batch: pa.RecordBatch, names: Mapping[str, str], file: Path) -> list[Passage]:
    for field in ("text", "id"):
        if names[field] not in batch.schema.names:
            raise InputError(
                f"{file} has no column {names[field]!r}; found {', '.join(map(repr, batch.schema.names))}",
                hint=f'name it in the setting: {{"passages": …, "columns": {{"{field}": …}}}}',
            )
    apart = set(names.values()) | {"embed_error"}
    others = [name for name in batch.schema.names if name not in apart]
    return [
        Passage(
            row[names["text"]] or "", id=str(row[names["id"]]), metadata={name: row[name] for name in others}
        )
        for row in batch.select([names["text"], names["id"], *others]).to_pylist()
    ]


def _vectors(column: pa.Array, file: Path) -> Any:
    if column.null_count:
        raise InputError(
            f"{file}: {column.null_count} passages have no vector", hint="embed them again, or leave them out"
        )
    flat = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    return flat.reshape(len(column), -1)


def _check_encoder(batch: pa.RecordBatch, name: str, encoder: Encoder, file: Path) -> None:
    told = batch.column(name).unique().to_pylist() if name in batch.schema.names else []
    others = sorted(set(told) - {encoder.name, None})
    if others:
        raise ConfigurationError(
            f"{file} holds vectors by {', '.join(others)}, and queries are encoded by {encoder.name}",
            hint="give encoder= the one that made the vectors",
        )
