"""Tier 1 of L-RAG for corpora that do not fit into memory: section III-A."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from surerag.documents import Document
from surerag.errors import ConfigurationError, InputError
from surerag.options import takes
from surerag.readers.threads import in_thread
from surerag.retrieval.checks import (
    check_dimensions,
    check_encoder,
    check_index_folder,
    check_number,
    check_queries,
    check_vectors,
    each_of,
)
from surerag.retrieval.disk.exact import Found, exact_rows, recall_of
from surerag.retrieval.disk.filling import (
    document_bytes,
    encoded,
    fill,
    paired,
    passage_bytes,
    row_bytes,
    unpaired,
)
from surerag.retrieval.disk.lists import Cells, DiskIndexOptions, build, load_faiss, planned
from surerag.retrieval.disk.manifest import check_sealed, read_contents
from surerag.retrieval.disk.rows import OnChange, RowWriter, StoredRows
from surerag.retrieval.index import USUAL_K, summarized, top_places
from surerag.retrieval.summaries import LeadSummaries, Summarizer, identity_of
from surerag.services import Encoder
from surerag.types import Passage

CANDIDATES = 32
"""Summaries that are compared exactly for a query, where nobody asks for another number."""

_AT_ONCE = 256


class DiskSummaryIndex:
    """Finds the documents whose summaries are nearest to the query, in a folder on the disk.

    What :class:`~surerag.retrieval.SummaryIndex` does in memory, for corpora of any size: FAISS names
    candidates from cells on the disk, and these are compared exactly by their stored vectors (float16).
    Files are mapped into memory, so that processes share what is read of them.

    Make a folder with :meth:`from_documents`, :meth:`from_passages` or :meth:`from_vectors`, which read
    their input once and hold a part of it at a time. A build that was killed goes
    on where it stood, and one whose documents have become more adds those: give the same input from its
    beginning. What is on the disk is neither summarized nor encoded again.

    Args:
        folder: What one of these wrote.
        encoder: Encodes queries; the one that encoded the summaries.
        k: Summaries to return where nobody asks for another number.
        n_probe: Cells that a query looks into; None takes what the folder was built for. More finds more of
            what exact search finds, and takes longer.
        n_candidates: Summaries that are compared exactly for a query.

    Raises:
        InputError: If the folder is something else, unfinished or damaged.
        ConfigurationError: If another encoder made it, or a number is less than 1.
        MissingExtraError: If faiss or pyarrow is not installed.
    """

    def __init__(
        self,
        folder: str | Path,
        encoder: Encoder,
        *,
        k: int = USUAL_K,
        n_probe: int | None = None,
        n_candidates: int = CANDIDATES,
    ) -> None:
        self._k = check_number("k", k)
        self._n_candidates = check_number("n_candidates", n_candidates)
        self._encoder = check_encoder(encoder)
        self.folder = check_index_folder(folder)
        contents = read_contents(self.folder)
        if contents.index is None:
            raise InputError(
                f"{folder} holds {contents.rows} summaries and no index of them: its build did not end",
                hint="build it again from the same documents; it goes on where it stood",
            )
        _check_encoder(self.folder, contents.about, encoder)
        self._index = contents.index
        self._rows = StoredRows(self.folder, contents, contents.index.rows)
        self._cells = Cells(self.folder, contents.index)
        built_for: int = self._index.settings["n_probe"]
        self._n_probe = check_number("n_probe", built_for if n_probe is None else n_probe)

    def __repr__(self) -> str:
        return f"DiskSummaryIndex({str(self.folder)!r}, {len(self)} summaries)"

    @classmethod
    @takes(DiskIndexOptions)
    def from_documents(
        cls,
        folder: str | Path,
        documents: Iterable[Document],
        encoder: Encoder,
        *,
        summarize: Summarizer | None = None,
        batch_size: int = 1024,
        k: int = USUAL_K,
        on_change: OnChange = "error",
        **layout: Any,
    ) -> Self:
        """Summarize documents, encode the summaries and index them, some at a time.

        Args:
            folder: Where; made if it is not there.
            documents: The corpus, in an order that is the same each time.
            encoder: Encodes summaries and queries.
            summarize: How; by default the first two sentences.
            batch_size: Documents that are summarized, encoded and committed at once: what a kill can cost.
            k: Summaries to return where nobody asks for another number.
            on_change: If the folder holds summaries by another encoder, or made in another way, or of other
                documents: ``"error"``, or ``"restart"``, which throws them away.
            **layout: Listed below.

        Raises:
            InputError: If there is no document, or a summary has no text, or the folder is damaged.
            ConfigurationError: If the folder holds something else, a document differs from the one that was
                in its place, or a number is less than 1.
            ServiceError: If there are not as many summaries as documents, or the encoder returns something
                else than vectors.
            StorageError: If the folder cannot be written; what was committed is kept.
            MissingExtraError: If faiss or pyarrow is not installed.
        """
        how = summarize or LeadSummaries()

        def made(batch: Sequence[Document]) -> tuple[Sequence[Passage], NDArray[np.float32]]:
            return encoded(encoder, summarized(batch, how))

        about = {"encoder": check_encoder(encoder).name, "summarizer": identity_of(how)}
        filled = partial(fill, each_of(Document, documents), document_bytes, made, batch_size)
        return cls._built(folder, about, filled, encoder, k, on_change, layout)

    @classmethod
    @takes(DiskIndexOptions)
    def from_passages(
        cls,
        folder: str | Path,
        passages: Iterable[Passage],
        encoder: Encoder,
        *,
        batch_size: int = 1024,
        k: int = USUAL_K,
        on_change: OnChange = "error",
        **layout: Any,
    ) -> Self:
        """Encode summaries that are there and index them, some at a time.

        Args:
            folder: See :meth:`from_documents`.
            passages: The summaries; the id of each is its document's.
            encoder: See :meth:`from_documents`.
            batch_size: See :meth:`from_documents`.
            k: See :meth:`from_documents`.
            on_change: See :meth:`from_documents`.
            **layout: Listed below.

        Raises:
            SureragError: As :meth:`from_documents` does.
        """
        about = {"encoder": check_encoder(encoder).name, "summarizer": "given"}
        filled = partial(
            fill, each_of(Passage, passages), passage_bytes, partial(encoded, encoder), batch_size
        )
        return cls._built(folder, about, filled, encoder, k, on_change, layout)

    @classmethod
    @takes(DiskIndexOptions)
    def from_vectors(
        cls,
        folder: str | Path,
        batches: Iterable[tuple[Sequence[Passage], NDArray[np.float32]]],
        encoder: Encoder,
        *,
        k: int = USUAL_K,
        on_change: OnChange = "error",
        **layout: Any,
    ) -> Self:
        """Index summaries that were encoded elsewhere: on other machines, or in an earlier job.

        Args:
            folder: See :meth:`from_documents`.
            batches: Summaries, and their L2-normalised vectors [summaries, dimensions], some at a time.
            encoder: What encoded them, and encodes queries.
            k: See :meth:`from_documents`.
            on_change: See :meth:`from_documents`.
            **layout: Listed below.

        Raises:
            SureragError: As :meth:`from_documents` does.
        """
        about = {"encoder": check_encoder(encoder).name, "summarizer": "given with vectors"}
        rows = (row for passages, vectors in batches for row in paired(passages, vectors))
        filled = partial(fill, rows, row_bytes, unpaired, 1024)
        return cls._built(folder, about, filled, encoder, k, on_change, layout)

    @classmethod
    def _built(
        cls,
        folder: str | Path,
        about: dict[str, str],
        filled: Callable[[RowWriter], None],
        encoder: Encoder,
        k: int,
        on_change: OnChange,
        layout: dict[str, Any],
    ) -> Self:
        load_faiss()  # what is missing is said before hours of work, not after
        check_number("k", k)
        options, path = DiskIndexOptions(**layout), check_index_folder(folder)
        with RowWriter(path, about, on_change=on_change) as writer:
            filled(writer)
            contents = writer.contents
            plan = planned(contents.rows, options)
            if contents.index is None or (contents.index.rows, contents.index.settings) != (
                contents.rows,
                asdict(plan),
            ):
                stored = StoredRows(path, contents, contents.rows)
                writer.seal(build(stored, contents.made + 1, plan))
        return cls(path, encoder, k=k)

    def __len__(self) -> int:
        return self._rows.rows

    @property
    def layout(self) -> Mapping[str, Any]:
        """How the vectors lie on the disk: the options of :meth:`from_documents`, as they were decided."""
        return self._index.settings

    def retrieve(self, query: str, k: int | None = None) -> list[Passage]:
        """Return the ``k`` nearest summaries with their scores, best first; equal ones in the corpus' order.

        Raises:
            InputError: If the query is empty.
            ConfigurationError: If ``k`` is less than 1.
        """
        return self.retrieve_many([query], k)[0]

    async def aretrieve(self, query: str, k: int | None = None) -> list[Passage]:
        """Like :meth:`retrieve`, without blocking the event loop."""
        aencode = getattr(self._encoder, "aencode", None)
        if aencode is None:
            return await in_thread(self.retrieve, query, k)
        k = self._k if k is None else check_number("k", k)
        check_queries([query])
        return (await in_thread(self._nearest, await aencode([query], "query"), 1, k))[0]

    def retrieve_many(self, queries: Sequence[str], k: int | None = None) -> list[list[Passage]]:
        """Return what :meth:`retrieve` returns for each query; encoder and cells are asked once."""
        k = self._k if k is None else check_number("k", k)
        check_queries(queries)
        if not queries:
            return []
        return self._nearest(self._encoder.encode(list(queries), "query"), len(queries), k)

    def recall(self, queries: Sequence[str], k: int = 3) -> float:
        """Return which part of what exact search finds is found, over all queries: read ``n_probe`` off it.

        Every stored vector is read once; nothing else than blocks of them is held.

        Args:
            queries: As users ask them; some hundred say enough.
            k: Summaries of each.

        Raises:
            InputError: If there is no query, or one is empty.
        """
        check_queries(queries)
        if not queries:
            raise InputError("there is no query to measure with", hint="give some that users ask")
        vectors = self._fitting(self._encoder.encode(list(queries), "query"), len(queries))
        found = self._found(vectors, check_number("k", k))
        return recall_of(found, exact_rows(self._rows, vectors, k))

    def verify(self) -> None:
        """Read every file and compare it with the manifest; opening compares sizes, beginnings and ends.

        Raises:
            InputError: If something was changed.
        """
        self._rows.verify()
        for file in self._index.files:
            check_sealed(self.folder, file, whole=True)

    def _fitting(self, encoded: NDArray[np.float32], number: int) -> NDArray[np.float32]:
        found = check_dimensions(check_vectors(encoded, number), self._rows.dimensions)
        return np.ascontiguousarray(found)

    def _nearest(self, encoded: NDArray[np.float32], number: int, k: int) -> list[list[Passage]]:
        passage = self._rows.passage
        return [
            [passage(int(row), float(score)) for row, score in zip(*found, strict=True)]
            for found in self._found(self._fitting(encoded, number), k)
        ]

    def _found(self, vectors: NDArray[np.float32], k: int) -> list[Found]:
        """Return the rows nearest to each vector with their scores, best first."""
        k = min(k, len(self))
        number = min(max(self._n_candidates, 2 * k), len(self))
        rows = self._cells.candidates(vectors, number, self._n_probe, least=k)
        rows.sort(axis=1)
        found = []
        for start in range(0, len(vectors), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            # Rows that are not there (−1) stand for the last one here, and are left out below.
            stored = self._rows.vectors[some].astype(np.float32)
            scores = (stored @ vectors[start : start + _AT_ONCE, :, None])[..., 0]
            for those, theirs in zip(some, scores, strict=True):
                there = those >= 0
                best = top_places(theirs[there], k)
                found.append((those[there][best], theirs[there][best]))
        return found


def _check_encoder(folder: Path, about: Mapping[str, Any], encoder: Encoder) -> None:
    if about["encoder"] != encoder.name:
        raise ConfigurationError(
            f"the summaries in {folder} were encoded by {about['encoder']!r}, and this is {encoder.name!r}",
            hint="give the encoder that made them, or build the folder again with this one",
        )
