"""Exact vector search in memory, for corpora of up to a few hundred thousand passages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from surerag.documents import Document
from surerag.errors import ConfigurationError, InputError, ServiceError, check_items, check_kind, kind_of
from surerag.messages import Passage
from surerag.progress import Progress, reporting
from surerag.readers.calls import in_thread
from surerag.retrieval.summaries import LeadSummaries, Summarizer, with_summaries
from surerag.services import Encoder, checked_vectors
from surerag.text import replace_surrogates

DEFAULT_K = 5
"""Default number of passages that an index returns."""
MAX_IN_MEMORY = 100_000
"""Maximum number of summaries in memory; with 384 dimensions they take about 200 MB."""
_DECIMALS = 5
"""Number of decimals of scores; further decimals may depend on the batch size of the encoder."""


class PassageIndex:
    """An index in memory that ranks passages by the inner product of their vectors with the query's vector.

    Args:
        passages: The corpus.
        vectors: L2-normalised vectors of the passages, which ``encoder`` computed, [passages, dimensions].
        encoder: The model that embeds queries.
        k: Default number of passages to return.

    Raises:
        InputError: If there is no passage, or a passage has no text.
        ConfigurationError: If ``k`` is less than 1, or ``encoder`` is not an encoder.
        ServiceError: If the number of vectors is wrong, or a value is not finite.

    Example:
        >>> from surerag.encoders import HashingEncoder
        >>> texts = ["Ada was born in Velm.", "Rivers are wet."]
        >>> index = PassageIndex.from_passages(map(Passage, texts), HashingEncoder())
        >>> index.retrieve("Where was Ada born?", 1)[0].text
        'Ada was born in Velm.'
    """

    def __init__(
        self,
        passages: Iterable[Passage],
        vectors: NDArray[np.float32],
        encoder: Encoder,
        *,
        k: int = DEFAULT_K,
    ) -> None:
        self._passages = _checked(passages)
        self._k = _at_least_one("k", k)
        self._vectors = np.ascontiguousarray(checked_vectors(vectors, len(self._passages)))
        check_kind(Encoder, "an Encoder", hint="pass an encoder of surerag.encoders", encoder=encoder)
        self._encoder = encoder

    @classmethod
    def from_passages(
        cls,
        passages: Iterable[Passage],
        encoder: Encoder,
        *,
        batch_size: int = 256,
        k: int = DEFAULT_K,
        progress: Progress = False,
    ) -> Self:
        """Embed passages, and return an index of them; raises the same errors as the class.

        A :class:`~surerag.encoders.CachedEncoder` embeds only passages whose vectors are not in the cache.

        Args:
            passages: The corpus.
            encoder: The model that embeds passages and queries.
            batch_size: Number of passages for one call of the encoder.
            k: Default number of passages to return.
            progress: True shows a progress bar on a terminal. A function is called with the number of
                embedded passages and the number of all passages.
        """
        _at_least_one("batch_size", batch_size)
        check_kind(Encoder, "an Encoder", hint="pass an encoder of surerag.encoders", encoder=encoder)
        corpus = _checked(passages)
        # Batches of texts with similar lengths need the least padding.
        order = sorted(range(len(corpus)), key=lambda at: len(corpus[at].text))
        vectors: list[NDArray[np.float32]] = []
        with reporting(progress, len(corpus), "Passages") as advance:
            for start in range(0, len(order), batch_size):
                part = [replace_surrogates(corpus[at].text) for at in order[start : start + batch_size]]
                vectors.append(checked_vectors(encoder.encode(part, "document"), len(part)))
                advance(len(part))
        places = np.empty(len(order), dtype=np.intp)
        places[order] = np.arange(len(order))
        return cls(corpus, np.concatenate(vectors)[places], encoder, k=k)

    def __len__(self) -> int:
        return len(self._passages)

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The passages of the corpus, in the order of the input."""
        return self._passages

    @property
    def vectors(self) -> NDArray[np.float32]:
        """The vectors of the passages, shape [passages, dimensions]; save them to build the index again."""
        return self._vectors

    def retrieve(self, query: str, k: int | None = None) -> list[Passage]:
        """Return the ``k`` best passages with their scores, best first; equal scores keep the corpus order.

        Raises:
            InputError: If the query is empty.
            ConfigurationError: If ``k`` is less than 1.
        """
        return self.retrieve_many([query], k)[0]

    async def aretrieve(self, query: str, k: int | None = None) -> list[Passage]:
        """Do the same as :meth:`retrieve`, without blocking the event loop.

        If the encoder has no method ``aencode``, the search runs in a thread.
        """
        aencode = getattr(self._encoder, "aencode", None)
        if aencode is None:
            return await in_thread(self.retrieve, query, k)
        _check_queries([query])
        return self._nearest(await aencode([query], "query"), 1, k)[0]

    def retrieve_many(self, queries: Sequence[str], k: int | None = None) -> list[list[Passage]]:
        """Return the result of :meth:`retrieve` for each query; all queries are embedded in one call."""
        _check_queries(queries)
        return self._nearest(self._encoder.encode(list(queries), "query"), len(queries), k) if queries else []

    def _nearest(self, encoded: NDArray[np.float32], number: int, k: int | None) -> list[list[Passage]]:
        k = self._k if k is None else _at_least_one("k", k)
        vectors = checked_vectors(encoded, number)
        if vectors.shape[1] != self._vectors.shape[1]:
            raise ServiceError(
                f"queries have {vectors.shape[1]} dimensions, but passages have {self._vectors.shape[1]}",
                hint="embed queries and passages with the same encoder",
            )
        scores = (self._vectors @ vector for vector in vectors)
        return [
            [replace(self._passages[at], score=float(row[at])) for at in top_places(row, k)] for row in scores
        ]


class SummaryIndex(PassageIndex):
    """An index of summaries in memory, for L-RAG's first pass.

    The index returns summaries as passages with the ids of their documents. For more than ``MAX_IN_MEMORY``
    documents, use a vector store.
    """

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[Document],
        encoder: Encoder,
        *,
        summarize: Summarizer | None = None,
        **options: Any,
    ) -> Self:
        """Summarise documents, embed the summaries, and return an index of them.

        Args:
            documents: The corpus.
            encoder: The model that embeds summaries and queries.
            summarize: A function that returns the summaries of all documents. By default, a summary is the
                first two sentences of a document. If the summary of a document is empty, the title and first
                words of the document replace it; see :func:`~surerag.retrieval.with_summaries`.
            **options: Options of :meth:`from_passages`: ``batch_size``, ``k`` and ``progress``.

        Raises:
            InputError: If there is no document, or a document has no text.
            ConfigurationError: If there are more than ``MAX_IN_MEMORY`` documents.
            ServiceError: If the number of summaries differs from the number of documents.

        Warns:
            MissingSummariesWarning: If a summary is empty.
        """
        corpus = list(documents)
        if len(corpus) > MAX_IN_MEMORY:
            raise ConfigurationError(
                f"expected at most {MAX_IN_MEMORY:,} documents for an index in memory, got {len(corpus):,}",
                hint="store the summaries in a vector store, and pass its retriever",
            )
        check_items(Document, corpus, "make a Document from a text: surerag.documents.Document(id, text)")
        passages = [
            Passage(one.text, id=one.id, metadata={**one.metadata, "title": one.title})
            for one in with_summaries(corpus, (summarize or LeadSummaries())(corpus))
        ]
        return cls.from_passages(passages, encoder, **options)


def top_places(scores: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Return the positions of the ``k`` largest scores, largest first; equal scores keep their order.

    Example:
        >>> top_places(np.array([0.1, 0.5, 0.1, 0.5], dtype=np.float32), 3).tolist()
        [1, 3, 0]
    """
    rounded = np.round(scores, _DECIMALS)
    places = np.arange(len(rounded))
    if k < len(rounded):
        places = np.flatnonzero(rounded >= np.partition(rounded, -k)[-k])
    return places[np.argsort(-rounded[places], kind="stable")[:k]]


def _checked(passages: object) -> tuple[Passage, ...]:
    if isinstance(passages, str) or not isinstance(passages, Iterable):
        raise InputError(f"expected passages, got {kind_of(passages)}", hint="pass [Passage(text)]")
    corpus = tuple(passages)
    if not corpus:
        raise InputError("there is no passage to index", hint="pass at least one passage")
    check_items(Passage, corpus, "make a Passage from a text: surerag.Passage(text)")
    for place, passage in enumerate(corpus):
        if not passage.text.strip():
            raise InputError(
                f"passage {place} (id {passage.id!r}) has no text", hint="leave out this passage"
            )
    return corpus


def _check_queries(queries: Sequence[str]) -> None:
    if isinstance(queries, str):
        raise InputError("expected a list of queries, got a text", hint="pass [query], or call retrieve")
    for query in queries:
        if not isinstance(query, str) or not query.strip():
            raise InputError(f"expected a query that is not empty, got {query!r}", hint="pass a question")


def _at_least_one(name: str, value: int) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)
