"""What every index of this room asks of its settings, its queries and its encoder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from surerag.documents import Document
from surerag.errors import ConfigurationError, InputError, ServiceError
from surerag.messages import Passage
from surerag.services import Encoder

T = TypeVar("T")

_HINTS: Final[Mapping[type, str]] = {
    Passage: "make one of a text with surerag.Passage(text); from_documents takes documents",
    Document: "make one of a text with surerag.documents.Document(id, text); from_passages takes summaries "
    "that are there",
}


def each_of(kind: type[T], items: Iterable[T]) -> Iterator[T]:
    """Return items one by one, and refuse what is none of them.

    Raises:
        InputError: If these are no several items; later, if one of them is of another kind.

    Example:
        >>> list(each_of(Passage, "Ada was born in Velm."))
        Traceback (most recent call last):
        surerag.errors.InputError: expected several Passage, got a str. Make one of a text ...
    """
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise InputError(f"expected several {kind.__name__}, got a {type(items).__name__}", hint=_HINTS[kind])
    return _checked(kind, items)


def _checked(kind: type[T], items: Iterable[T]) -> Iterator[T]:
    for place, item in enumerate(items):
        if not isinstance(item, kind):
            raise InputError(
                f"expected a {kind.__name__}, got a {type(item).__name__} at place {place}", hint=_HINTS[kind]
            )
        yield item


def check_number(name: str, value: int) -> int:
    """Return a number that has to be at least 1.

    Raises:
        ConfigurationError: If it is not.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise ConfigurationError(f"{name} must be a whole number, got {value!r}")
    if value < 1:
        raise ConfigurationError(f"{name} must be at least 1, got {value}")
    return value


def check_encoder(encoder: Encoder) -> Encoder:
    """Return an encoder.

    Raises:
        ConfigurationError: If it is none.
    """
    if not isinstance(encoder, Encoder):
        raise ConfigurationError(
            f"encoder must be an Encoder, got a {type(encoder).__name__}",
            hint="surerag.encoders has some; or give an object with the methods of surerag.services.Encoder",
        )
    return encoder


def check_index_folder(folder: object) -> Path:
    """Return a folder.

    Raises:
        ConfigurationError: If it is no path, or an empty one.
    """
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise ConfigurationError(f"folder must be a path, got {folder!r}", hint="such as 'summaries'")
    return Path(folder)


def check_queries(queries: Sequence[str]) -> None:
    """Make sure that each query asks for something.

    Raises:
        InputError: If one does not.
    """
    if isinstance(queries, str) or not isinstance(queries, Sequence):
        raise InputError(f"queries are a list, and this is a {type(queries).__name__}", hint="pass [query]")
    for query in queries:
        if not isinstance(query, str):
            raise InputError(
                f"a query is a text, and this is a {type(query).__name__}",
                hint="retrieve takes one at a time, retrieve_many several",
            )
        if not query.strip():
            raise InputError("the query is empty", hint="ask for something")


def check_text(passage: Passage, place: int) -> Passage:
    """Return a passage that has text.

    Raises:
        InputError: If it has none.
    """
    if not passage.text.strip():
        raise InputError(f"passage {place} (id {passage.id!r}) has no text", hint="leave empty passages out")
    return passage


def check_vectors(vectors: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Return what an encoder gave, as ``count`` rows of finite numbers.

    Raises:
        ServiceError: If it is something else.
    """
    try:
        array = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ServiceError(
            f"expected {count} vectors of finite numbers: {error}",
            hint="let the encoder return one vector for each text",
        ) from error
    if array.ndim != 2 or len(array) != count or not np.isfinite(array).all():
        raise ServiceError(
            f"expected {count} vectors of finite numbers, got an array of shape {array.shape}",
            hint="let the encoder return one vector for each text",
        )
    return array


def check_dimensions(vectors: NDArray[np.float32], dimensions: int) -> NDArray[np.float32]:
    """Return queries' vectors that fit those of the passages.

    Raises:
        ServiceError: If they do not.
    """
    if vectors.shape[1] != dimensions:
        raise ServiceError(
            f"queries have {vectors.shape[1]} dimensions, passages {dimensions}",
            hint="encode both with one encoder",
        )
    return vectors
