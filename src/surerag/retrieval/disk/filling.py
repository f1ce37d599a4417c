"""A stream of documents becomes rows on the disk: what is there is passed over, and the rest added."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from surerag.documents import Document
from surerag.errors import ConfigurationError, InputError
from surerag.retrieval.checks import check_number, check_text, check_vectors
from surerag.retrieval.disk.rows import RowWriter, digests_of
from surerag.services import Encoder
from surerag.types import Passage

T = TypeVar("T")


def fill(
    items: Iterable[T],
    as_bytes: Callable[[T], bytes],
    made: Callable[[Sequence[T]], tuple[Sequence[Passage], NDArray[np.float32]]],
    batch_size: int,
    writer: RowWriter,
) -> None:
    """Pass over what is on the disk, having seen that it was made of the same, and add the rest.

    Args:
        items: What summaries are made of, from the first on.
        as_bytes: Tells one from another.
        made: Makes summaries and vectors of some.
        batch_size: How many are made and committed at once.
        writer: Of the folder.

    Raises:
        ConfigurationError: If something else stands where one is.
        InputError: If there is none.
    """
    check_number("batch_size", batch_size)
    stream = iter(items)
    first = 0
    for unit in tuple(writer.contents.units):
        batch = list(islice(stream, unit.rows))
        if digests_of(map(as_bytes, batch)) != unit.source:
            raise ConfigurationError(
                f"{writer.folder} was made of something else: what is given as numbers {first} to "
                f"{first + unit.rows - 1} is not what was there",
                hint="give the same input in the same order, only longer; or throw the folder away with "
                'on_change="restart"',
            )
        first += unit.rows
    while batch := list(islice(stream, batch_size)):
        passages, vectors = made(batch)
        writer.append(passages, vectors, digests_of(map(as_bytes, batch)))
    if not writer.contents.units:
        raise InputError("there is nothing to index", hint="give at least one passage")


def encoded(encoder: Encoder, passages: Sequence[Passage]) -> tuple[Sequence[Passage], NDArray[np.float32]]:
    """Return summaries with the vectors that an encoder makes of them.

    Raises:
        InputError: If one has no text.
        ServiceError: If the encoder returns something else than vectors.
    """
    texts = [check_text(passage, place).text for place, passage in enumerate(passages)]
    return passages, check_vectors(encoder.encode(texts, "document"), len(texts))


def paired(
    passages: Sequence[Passage], vectors: NDArray[np.float32]
) -> Iterator[tuple[Passage, NDArray[np.float32]]]:
    """Yield summaries with their vectors one by one.

    Raises:
        InputError: If one has no text.
        ServiceError: If the vectors do not fit them.
    """
    for place, (passage, row) in enumerate(zip(passages, check_vectors(vectors, len(passages)), strict=True)):
        yield check_text(passage, place), row


def unpaired(
    rows: Sequence[tuple[Passage, NDArray[np.float32]]],
) -> tuple[Sequence[Passage], NDArray[np.float32]]:
    """Put summaries and vectors that came one by one together."""
    return [passage for passage, _ in rows], np.stack([row for _, row in rows])


def document_bytes(document: Document) -> bytes:
    """Return what tells a document from another."""
    parts = (document.id, document.title, document.text, document.metadata)
    return json.dumps(parts, default=str).encode()


def passage_bytes(passage: Passage) -> bytes:
    """Return what tells a summary from another."""
    return json.dumps((passage.id, passage.text, passage.metadata), default=str).encode()


def row_bytes(row: tuple[Passage, NDArray[np.float32]]) -> bytes:
    """Return what tells a summary with its vector from another."""
    return passage_bytes(row[0]) + row[1].tobytes()
