"""Exact search in memory, for corpora of up to some hundred thousand passages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from surerag.documents import Document
from surerag.errors import ConfigurationError, InputError, ServiceError
from surerag.messages import Passage
from surerag.readers.threads import in_thread
from surerag.retrieval.checks import (
    check_dimensions,
    check_encoder,
    check_number,
    check_queries,
    check_text,
    check_vectors,
    each_of,
)
from surerag.retrieval.summaries import LeadSummaries, Summarizer
from surerag.services import Encoder

T = TypeVar("T")

USUAL_K = 5
"""Passages that a retriever of ours returns where nobody asks for another number."""

MAX_IN_MEMORY = 100_000
"""Summaries that are held in memory where nobody raises it: of 384 dimensions, they take some 200 MB."""

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
        self._k = check_number("k", k)
        self._passages = _some(passages)
        self._vectors = np.ascontiguousarray(check_vectors(vectors, len(self._passages)))
        self._encoder = check_encoder(encoder)

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
        passages = _some(each_of(Passage, passages))
        return cls(passages, _encoded(passages, encoder, batch_size), encoder, k=k)

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
        k = self._k if k is None else check_number("k", k)
        check_queries([query])
        return self._nearest(await aencode([query], "query"), 1, k)[0]

    def retrieve_many(self, queries: Sequence[str], k: int | None = None) -> list[list[Passage]]:
        """Return what :meth:`retrieve` returns for each query; the encoder is asked once."""
        k = self._k if k is None else check_number("k", k)
        check_queries(queries)
        if not queries:
            return []
        return self._nearest(self._encoder.encode(list(queries), "query"), len(queries), k)

    def _nearest(self, encoded: NDArray[np.float32], number: int, k: int) -> list[list[Passage]]:
        vectors = check_dimensions(check_vectors(encoded, number), self._vectors.shape[1])
        return [self._best(vector, k) for vector in vectors]

    def _best(self, vector: NDArray[np.float32], k: int) -> list[Passage]:
        scores = self._vectors @ vector
        return [replace(self._passages[place], score=float(scores[place])) for place in top_places(scores, k)]


class SummaryIndex(PassageIndex):
    """Finds the documents whose summaries are nearest to the query: L-RAG's tier 1 for a corpus.

    What it returns are passages that hold a summary; their id is the document's.

    Args:
        passages: The summaries.
        vectors: See :class:`PassageIndex`.
        encoder: Encodes queries.
        k: Summaries to return where nobody asks for another number.
        max_summaries: More are refused, before any is encoded: each takes some kilobytes of memory, and each
            query looks at all of them. :class:`~surerag.retrieval.DiskSummaryIndex` takes any number.

    Raises:
        InputError: If there is no summary.
        ConfigurationError: If there are more than ``max_summaries``, or ``k`` is less than 1.
        ServiceError: If the vectors do not fit the summaries, or are no finite numbers.
    """

    def __init__(
        self,
        passages: Iterable[Passage],
        vectors: NDArray[np.float32],
        encoder: Encoder,
        *,
        k: int = USUAL_K,
        max_summaries: int = MAX_IN_MEMORY,
    ) -> None:
        super().__init__(at_most(passages, max_summaries), vectors, encoder, k=k)

    @classmethod
    def from_passages(
        cls,
        passages: Iterable[Passage],
        encoder: Encoder,
        *,
        batch_size: int = 1024,
        k: int = USUAL_K,
        max_summaries: int = MAX_IN_MEMORY,
    ) -> Self:
        """Encode summaries and index them.

        Args:
            passages: The summaries.
            encoder: Encodes summaries and queries.
            batch_size: Summaries that are handed to the encoder at once.
            k: See the class.
            max_summaries: See the class.

        Raises:
            InputError: If there is no summary, or one without text.
            ConfigurationError: If there are more than ``max_summaries``, or a number is less than 1.
            ServiceError: If the encoder returns something else than vectors.
        """
        held = _some(at_most(each_of(Passage, passages), max_summaries))
        return cls(held, _encoded(held, encoder, batch_size), encoder, k=k, max_summaries=max_summaries)

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[Document],
        encoder: Encoder,
        *,
        summarize: Summarizer | None = None,
        batch_size: int = 1024,
        max_summaries: int = MAX_IN_MEMORY,
    ) -> Self:
        """Summarize documents, encode the summaries and index them.

        Args:
            documents: The corpus.
            encoder: Encodes summaries and queries.
            summarize: How; by default the first two sentences.
            batch_size: Summaries that are handed to the encoder at once.
            max_summaries: See the class.

        Raises:
            InputError: If there is no document, or one without text.
            ConfigurationError: If there are more than ``max_summaries``.
            ServiceError: If there are not as many summaries as documents.
        """
        held = at_most(each_of(Document, documents), max_summaries)
        passages = summarized(held, summarize or LeadSummaries())
        return cls.from_passages(passages, encoder, batch_size=batch_size, max_summaries=max_summaries)


def summarized(documents: Sequence[Document], summarize: Summarizer) -> list[Passage]:
    """Return the summary of each document, under its id.

    Raises:
        ServiceError: If there are not as many summaries as documents.
    """
    summaries = summarize(documents)
    if len(summaries) != len(documents):
        raise ServiceError(f"{len(summaries)} summaries were made of {len(documents)} documents")
    return [
        Passage(summary, id=document.id, metadata={**document.metadata, "title": document.title})
        for document, summary in zip(documents, summaries, strict=True)
    ]


def at_most(items: Iterable[T], most: int) -> tuple[T, ...]:
    """Return all items of a stream that is to be held in memory, having read one too many at most.

    Raises:
        ConfigurationError: If there are more.
    """
    held = tuple(islice(items, most + 1))
    if len(held) > most:
        raise too_many(most)
    return held


def too_many(most: int) -> ConfigurationError:
    """Say what to do about summaries that are too many for memory."""
    return ConfigurationError(
        f"there are more than {most:,} summaries to be held in memory",
        hint="keep them on the disk, with surerag.retrieval.DiskSummaryIndex.from_documents, or in a vector "
        "store of your own (summaries_of(…, store=…) fills one); or raise max_summaries",
    )


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


def _some(passages: Iterable[Passage]) -> tuple[Passage, ...]:
    corpus = tuple(passages)
    if not corpus:
        raise InputError("there is nothing to index", hint="give at least one passage")
    return corpus


def _encoded(passages: Sequence[Passage], encoder: Encoder, batch_size: int) -> NDArray[np.float32]:
    check_number("batch_size", batch_size)
    check_encoder(encoder)
    texts = [check_text(passage, place).text for place, passage in enumerate(passages)]
    batches = [texts[start : start + batch_size] for start in range(0, len(texts), batch_size)]
    return np.concatenate([check_vectors(encoder.encode(one, "document"), len(one)) for one in batches])
