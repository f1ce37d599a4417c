"""A retriever over a table of passages, with the vectors that stand in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.inputs import source_of
from surerag.evaluation.inputs.streams import opened
from surerag.extras import extra
from surerag.places import Anywhere
from surerag.retrieval import PassageIndex
from surerag.retrieval.index import USUAL_K
from surerag.services import Encoder
from surerag.types import Passage

with extra("parquet"):
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

FIELDS: Final = ("text", "id", "vector", "encoder")
_USUAL: Final = {"text": "text", "id": "id", "vector": "embed_vector", "encoder": "embed_encoder"}


def passage_index(
    path: str, encoder: Encoder, *, k: int = USUAL_K, columns: Mapping[str, str] | None = None
) -> PassageIndex:
    """Read passages and index them in memory; those that have vectors are not encoded again.

    Args:
        path: See :func:`embedded_passages`.
        encoder: Encodes queries; and passages, where the table has no vectors.
        k: Passages to return where nobody asks for another number.
        columns: See :func:`embedded_passages`.

    Raises:
        InputError: If there is no such table, a column is missing, or a passage has no text or no vector.
        ConfigurationError: If the vectors are another encoder's.
    """
    passages: list[Passage] = []
    vectors: list[NDArray[np.float32]] = []
    for batch in _read(path, encoder, columns):
        passages += batch.passages
        vectors += [] if batch.vectors is None else [batch.vectors]
    if not vectors:
        return PassageIndex.from_passages(passages, encoder, k=k)
    return PassageIndex(passages, np.concatenate(vectors), encoder, k=k)


def embedded_passages(
    path: str, encoder: Encoder, *, columns: Mapping[str, str] | None = None
) -> Iterator[tuple[list[Passage], NDArray[np.float32]]]:
    """Yield what :class:`surerag.scale.EmbedBatch` made, some at a time.

    A corpus that does not fit into memory becomes an index on the disk so:
    ``DiskSummaryIndex.from_vectors(folder, embedded_passages(path, encoder), encoder)``.

    Args:
        path: A Parquet file, a folder or a pattern of such files, read in the order of their names; or a URL.
        encoder: The one that made the vectors.
        columns: Where the table has other names than ``text``, ``id``, ``embed_vector`` and
            ``embed_encoder``. All other columns become the passages' metadata.

    Yields:
        Passages, and their vectors [passages, dimensions].

    Raises:
        InputError: If there is no such table, a column is missing, or a passage has no vector.
        ConfigurationError: If the vectors are another encoder's.
    """
    for batch in _read(path, encoder, columns):
        if batch.vectors is None:
            raise InputError(f"{path} holds no vectors", hint="let EmbedBatch add them")
        yield batch.passages, batch.vectors


class _Read(NamedTuple):
    passages: list[Passage]
    vectors: NDArray[np.float32] | None


def _read(path: str, encoder: Encoder, columns: Mapping[str, str] | None) -> Iterator[_Read]:
    names = {**_USUAL, **(columns or {})}
    source = source_of(path)
    if source.form != "Parquet":
        raise InputError(f"passages are read from Parquet, and {path} holds {source.form}")
    for file in source.files:
        for batch in _batches(file):
            vectors = None
            if names["vector"] in batch.schema.names:
                _check_encoder(batch, names["encoder"], encoder, file)
                vectors = _vectors(batch.column(names["vector"]), file)
            yield _Read(_passages(batch, names, file), vectors)


def _batches(file: Anywhere) -> Iterator[pa.RecordBatch]:
    try:
        with opened(file) as stream, ParquetFile(stream) as table:
            yield from table.iter_batches(use_threads=False)
    except pa.ArrowException as error:
        raise InputError(f"{file} cannot be read as Parquet: {str(error).splitlines()[0]}") from error


def _passages(batch: pa.RecordBatch, names: Mapping[str, str], file: Anywhere) -> list[Passage]:
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


def _vectors(column: pa.Array, file: Anywhere) -> NDArray[np.float32]:
    if column.null_count:
        raise InputError(
            f"{file}: {column.null_count} passages have no vector", hint="embed them again, or leave them out"
        )
    flat = np.asarray(column.flatten(), dtype=np.float32)
    return flat.reshape(len(column), -1)


def _check_encoder(batch: pa.RecordBatch, name: str, encoder: Encoder, file: Anywhere) -> None:
    told = batch.column(name).unique().to_pylist() if name in batch.schema.names else []
    others = sorted(set(told) - {encoder.name, None})
    if others:
        raise ConfigurationError(
            f"{file} holds vectors by {', '.join(others)}, and queries are encoded by {encoder.name}",
            hint="give encoder= the one that made the vectors",
        )
