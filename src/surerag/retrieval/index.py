"""Exact search in memory, for corpora of up to some hundred thousand passages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from surerag.documents import Document
from surerag.errors import ConfigurationError, InputError, ServiceError
from surerag.readers.threads import in_thread
from surerag.retrieval.summaries import LeadSummaries, Summarizer
from surerag.services import Encoder
from surerag.types import Passage

USUAL_K = 5
"""Passages that a retriever of ours returns where nobody asks for another number."""

# Scores are compared to this many decimals. Float32 noise, which differs between batch sizes, then does not
# decide between passages that say the same.
_DECIMALS = 5


class PassageIndex:
    """Finds the passages whose vectors have the largest inner product with the query's.

    Args:
        passages: The corpus.
        vectors: L2-normalised vectors [passages, dimensions], as ``encoder`` makes them.
        encoder: Encodes queries.
        k: Passages to return where nobody asks for another number.

    Raises:
        InputError: If there is no passage.
        ConfigurationError: If ``k`` is less than 1.
        ServiceError: If the vectors do not fit the passages, or are no finite numbers.
    """

    def __init__(
        self, passages: Iterable[Passage], vectors: NDArray[np.float32], encoder: Encoder, *, k: int = USUAL_K
    ) -> None:
        self._k = _number(k)
        self._passages = _some(passages)
        self._vectors = np.ascontiguousarray(_checked(vectors, len(self._passages)))
        self._encoder = encoder

    @classmethod
    def from_passages(
        cls, passages: Iterable[Passage], encoder: Encoder, *, batch_size: int = 1024, k: int = USUAL_K
    ) -> Self:
        """Encode passages and index them.

        Args:
            passages: The corpus.
            encoder: Encodes passages and queries.
            batch_size: Passages that are handed to the encoder at once.
            k: Passages to return where nobody asks for another number.

        Raises:
            InputError: If there is no passage, or one without text.
            ConfigurationError: If ``batch_size`` or ``k`` is less than 1.
            ServiceError: If the encoder returns something else than vectors.
        """
        if batch_size < 1:
            raise ConfigurationError(f"batch_size must be at least 1, got {batch_size}")
        passages = _some(passages)
        for place, passage in enumerate(passages):
            if not passage.text.strip():
                raise InputError(
                    f"passage {place} (id {passage.id!r}) has no text", hint="leave empty passages out"
                )
        batches = [passages[start : start + batch_size] for start in range(0, len(passages), batch_size)]
        vectors = [
            _checked(encoder.encode([p.text for p in batch], "document"), len(batch)) for batch in batches
        ]
        return cls(passages, np.concatenate(vectors), encoder, k=k)

    def __len__(self) -> int:
        return len(self._passages)

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The corpus, in the order it was given."""
        return self._passages

    @property
    def vectors(self) -> NDArray[np.float32]:
        """The passages' vectors [passages, dimensions], to be kept and given again."""
        return self._vectors

    def retrieve(self, query: str, k: int | None = None) -> list[Passage]:
        """Return the ``k`` best passages with their scores, best first; equal ones in the corpus' order.

        Raises:
            InputError: If the query is empty.
            ConfigurationError: If ``k`` is less than 1.
        """
        return self.retrieve_many([query], k)[0]

    async def aretrieve(self, query: str, k: int | None = None) -> list[Passage]:
        """Like :meth:`retrieve`, with the encoder's own ``aencode``; in a thread where it has none."""
        aencode = getattr(self._encoder, "aencode", None)
        if aencode is None:
            return await in_thread(self.retrieve, query, k)
        k = self._k if k is None else _number(k)
        _check_queries([query])
        return self._nearest(await aencode([query], "query"), 1, k)[0]

    def retrieve_many(self, queries: Sequence[str], k: int | None = None) -> list[list[Passage]]:
        """Return what :meth:`retrieve` returns for each query; the encoder is asked once."""
        k = self._k if k is None else _number(k)
        _check_queries(queries)
        if not queries:
            return []
        return self._nearest(self._encoder.encode(list(queries), "query"), len(queries), k)

    def _nearest(self, encoded: NDArray[np.float32], number: int, k: int) -> list[list[Passage]]:
        vectors = _checked(encoded, number)
        if vectors.shape[1] != self._vectors.shape[1]:
            raise ServiceError(
                f"queries have {vectors.shape[1]} dimensions, passages {self._vectors.shape[1]}",
                hint="encode both with one encoder",
            )
        return [self._best(vector, k) for vector in vectors]

    def _best(self, vector: NDArray[np.float32], k: int) -> list[Passage]:
        scores = self._vectors @ vector
        return [replace(self._passages[place], score=float(scores[place])) for place in top_places(scores, k)]


def _check_queries(queries: Sequence[str]) -> None:
    for query in queries:
        if not query.strip():
            raise InputError("the query is empty", hint="ask for something")


class SummaryIndex(PassageIndex):
    """Finds the documents whose summaries are nearest to the query: L-RAG's tier 1 for a corpus.

    What it returns are passages that hold a summary; their id is the document's.
    """

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[Document],
        encoder: Encoder,
        *,
        summarize: Summarizer | None = None,
        batch_size: int = 1024,
    ) -> Self:
        """Summarize documents, encode the summaries and index them.

        Args:
            documents: The corpus.
            encoder: Encodes summaries and queries.
            summarize: How; by default the first two sentences.
            batch_size: Summaries that are handed to the encoder at once.

        Raises:
            InputError: If there is no document, or one without text.
            ServiceError: If there are not as many summaries as documents.
        """
        documents = tuple(documents)
        summaries = (summarize or LeadSummaries())(documents)
        if len(summaries) != len(documents):
            raise ServiceError(f"{len(summaries)} summaries were made of {len(documents)} documents")
        passages = [
            Passage(summary, id=document.id, metadata={**document.metadata, "title": document.title})
            for document, summary in zip(documents, summaries, strict=True)
        ]
        return cls.from_passages(passages, encoder, batch_size=batch_size)


def top_places(scores: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Return the places of the ``k`` largest scores, largest first, equal ones in order of place.

    Example:
        >>> top_places(np.array([0.1, 0.5, 0.1, 0.5], dtype=np.float32), 3).tolist()
        [1, 3, 0]
    """
    rounded = np.round(scores, _DECIMALS)
    if k < len(rounded):
        least = np.partition(rounded, -k)[-k]
        places = np.flatnonzero(rounded >= least)
    else:
        places = np.arange(len(rounded))
    return places[np.argsort(-rounded[places], kind="stable")[:k]]


def _number(k: int) -> int:
    if k < 1:
        raise ConfigurationError(f"k must be at least 1, got {k}")
    return k


def _some(passages: Iterable[Passage]) -> tuple[Passage, ...]:
    corpus = tuple(passages)
    if not corpus:
        raise InputError("there is nothing to index", hint="give at least one passage")
    return corpus


def _checked(vectors: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    array = np.asarray(vectors, dtype=np.float32)
    if array.ndim != 2 or len(array) != count or not np.isfinite(array).all():
        raise ServiceError(
            f"expected {count} vectors of finite numbers, got an array of shape {array.shape}",
            hint="let the encoder return one vector for each text",
        )
    return array
