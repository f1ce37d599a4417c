"""Services that answer a method's requests: their protocols, and the class that holds a method's services."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from surerag.errors import ConfigurationError, MissingServiceError, ServiceError, with_article
from surerag.messages import ANSWER_TOKENS, Pair, Passage
from surerag.readers.protocol import BaseReader, as_reader


@runtime_checkable
class Retriever(Protocol):
    """Finds passages.

    A retriever may also have ``aretrieve(query, k)`` for async code, and ``retrieve_many(queries, k)`` for
    batches.
    """

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        """Return at most ``k`` passages, best first; with ``k`` None, the retriever chooses the number."""


@runtime_checkable
class Encoder(Protocol):
    """Turns texts into vectors; an encoder may also have ``aencode(texts, kind)`` for async code."""

    @property
    def name(self) -> str:
        """Name that identifies the model."""

    def encode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> NDArray[np.float32]:
        """Return L2-normalised vectors [texts, dimensions]; ``kind`` says what the texts are."""


def checked_vectors(vectors: Any, count: int, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Return vectors as an array [count, dimensions].

    Raises:
        ServiceError: If the array has another shape, or a value is not a finite number.
    """
    try:
        rows = np.asarray(vectors, dtype=dtype)
    except (TypeError, ValueError):
        rows = np.empty(0)
    if rows.ndim != 2 or len(rows) != count or not np.isfinite(rows).all():
        raise ServiceError(
            f"expected {count} vectors of finite numbers, got an array of shape {rows.shape}",
            hint="let the encoder return one vector for each text",
        )
    return rows


def normalised_rows(vectors: Sequence[Sequence[float]], texts: int) -> NDArray[np.float32]:
    """Return an embedding model's vectors as an array [texts, dimensions] of rows with length 1.

    ``texts`` is the number of texts that the model embedded.

    Raises:
        ServiceError: If the numbers of vectors and texts differ, or a vector consists of zeros.
    """
    if len(vectors) != texts:
        raise ServiceError(f"the embedding model returned {len(vectors)} vectors for {texts} texts")
    rows = np.asarray(vectors, dtype=np.float32).reshape(texts, -1)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (lengths > 0).all():
        raise ServiceError("the embedding model returned a vector of zeros", hint="leave empty texts out")
    normalised: NDArray[np.float32] = rows / lengths
    return normalised


@runtime_checkable
class Entailer(Protocol):
    """Judges pairs of statements; an entailer may also have ``aentail(pairs)`` for async code."""

    @property
    def name(self) -> str:
        """Name that identifies the model."""

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """Return probabilities [pairs, 3] of contradiction, neutral and entailment.

        A row of zeros means that the model gave no usable judgement.
        """


_HINTS = {
    "entailer": ", such as surerag.entailment.JudgeEntailer(reader), which asks the model itself, or "
    "NLIEntailer.from_pretrained(…)",
    "encoder": ", such as surerag.encoders.HashingEncoder() for a first try",
}
"""Implementations to suggest if a service is missing."""


@dataclass(frozen=True)
class Services:
    """Models and retrievers that answer a method's requests; a method needs only some of them.

    Attributes:
        reader: The model that answers.
        encoder: Turns texts into vectors.
        retriever: Finds passages of the corpus.
        entailer: Judges pairs of statements.
        summaries: Retriever of summaries of the corpus's documents.
        rewriter: The model that rewrites queries; None means the reader.
    """

    reader: BaseReader | None = None
    encoder: Encoder | None = None
    retriever: Retriever | None = None
    entailer: Entailer | None = None
    summaries: Retriever | None = None
    rewriter: BaseReader | None = None

    def __post_init__(self) -> None:
        for field in ("reader", "rewriter"):
            model = getattr(self, field)
            if model is not None:
                object.__setattr__(self, field, as_reader(model))
        for field, protocol in (
            ("encoder", Encoder),
            ("retriever", Retriever),
            ("entailer", Entailer),
            ("summaries", Retriever),
        ):
            service = getattr(self, field)
            if service is not None and not isinstance(service, protocol):
                raise ConfigurationError(
                    f"{field} must be {_article(protocol.__name__)}, got {type(service).__name__}",
                    hint=f"pass an object with the methods of surerag.services.{protocol.__name__}",
                )

    def require(self, method: str, *names: str) -> tuple[Any, ...]:
        """Return the services of these names; ``method`` is the method's name for the error message.

        Raises:
            MissingServiceError: If one of the services is None.
        """
        for name in names:
            if getattr(self, name) is None:
                raise MissingServiceError(
                    f"{method} needs {_article(name)}",
                    hint=f"pass {name}=… when you build it{_HINTS.get(name, '')}",
                )
        return tuple(getattr(self, name) for name in names)

    def answer_tokens(self, max_tokens: int | None) -> int | None:
        """Return the maximum length of an answer in tokens: ``max_tokens``, or else the reader's default.

        None means that neither the user nor the reader sets a limit.
        """
        if max_tokens is not None:
            return max_tokens
        return ANSWER_TOKENS if self.reader is None else self.reader.max_tokens


def _article(name: str) -> str:
    if name.endswith("s"):
        return name
    return with_article(name)
