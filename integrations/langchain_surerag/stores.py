"""Vector stores that take documents, and store and search a summary of each document."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self
from uuid import NAMESPACE_OID, UUID, uuid5
from weakref import WeakKeyDictionary

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import VectorStore

from langchain_surerag.documents import passage_of
from langchain_surerag.models import reader_of
from langchain_surerag.retrieval import encoder_of
from surerag import Passage
from surerag.documents import Document as PlainDocument
from surerag.drivers import run_blocking
from surerag.errors import ConfigurationError, InputError, check_kind, kind_of
from surerag.messages import NO_SUMMARY
from surerag.readers import AWAITING, BLOCKING, Blocking, Reader, in_thread
from surerag.retrieval import PassageIndex, summarizer_of, with_summaries
from surerag.services import Encoder
from surerag.text import replace_surrogates

Summarize = int | str | Callable[..., Any] | Reader | Runnable[Any, Any]
"""How to summarize: the number of first sentences to take, the metadata key of a ready summary, a function
from a document to a summary, or a model that writes the summary."""
RECORD_KEY = "surerag_summary"
"""Metadata key of a summary's :class:`Record`, in JSON; it is removed before a user sees the summary."""
_ANY_TEXT = ("InMemoryVectorStore", "FAISS", "Chroma", "MemoryStore")
"""Classes of stores that accept any text as an id; other stores, such as Qdrant, may require UUIDs."""


class Record(NamedTuple):
    """The origin of a summary: document id, hashes of text and metadata, summarizer, and embedding model."""

    id: str
    text: str
    metadata: str
    summarize: str
    encoder: str

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Record | None:
        """Return the record in a summary's metadata; None if there is no record."""
        written = metadata.get(RECORD_KEY)
        return cls(*json.loads(written)) if isinstance(written, str) else None

    def fits(self, former: Record | None) -> bool:
        """Whether ``former``, a stored summary's record, has the text and summarizer of this record."""
        return former is not None and (former.text, former.summarize) == (self.text, self.summarize)


def hash_of(text: str) -> str:
    """Return a hash of a text, as a UUID, because some stores accept only UUIDs as ids."""
    return str(uuid5(NAMESPACE_OID, replace_surrogates(text)))


class MemoryStore(VectorStore):
    """An in-memory vector store that keeps all vectors in one matrix, unlike LangChain's own store."""

    def __init__(self, embeddings: Any) -> None:
        self._embeddings = embeddings
        self.encoder = encoder_of(embeddings)
        self._index: PassageIndex | None = None

    @property
    def embeddings(self) -> Any:
        """The embedding model, or the encoder of surerag."""
        return self._embeddings

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The passages in the store."""
        return self._index.passages if self._index else ()

    def add_documents(
        self, documents: list[Document], ids: Sequence[str] | None = None, **_: Any
    ) -> list[str]:
        """Embed and store documents, which replace documents with the same ids; return the ids."""
        names = [str(one.id) for one in documents] if ids is None else [*ids]
        passages = map(passage_of, documents)
        held = [replace(one, id=name) for name, one in zip(names, passages, strict=True)]
        fresh = PassageIndex.from_passages(held, self.encoder)
        kept = self._without(names)
        if kept is not None:
            vectors = np.concatenate([kept.vectors, fresh.vectors])
            fresh = PassageIndex([*kept.passages, *held], vectors, self.encoder)
        self._index = fresh
        return names

    def delete(self, ids: Sequence[str] | None = None, **_: Any) -> bool:
        """Delete documents by their ids."""
        self._index = self._without(ids or ())
        return True

    def _without(self, ids: Iterable[str]) -> PassageIndex | None:
        gone, index = {*ids}, self._index
        places = [at for at, one in enumerate(self.passages) if one.id not in gone]
        if index is None or len(places) == len(index):
            return index
        held = [index.passages[at] for at in places]
        return PassageIndex(held, index.vectors[places], self.encoder) if held else None

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return documents by their ids."""
        requested = {*ids}
        return [_document(one) for one in self.passages if one.id in requested]

    def similarity_search(
        self, query: str, k: int = 4, filter: Callable[[Document], Any] | None = None, **_: Any
    ) -> list[Document]:
        """Among the documents for which ``filter`` is true, return the ``k`` nearest to ``query``."""
        return run_blocking(self._nearest(query, k, filter, BLOCKING))

    async def asimilarity_search(
        self, query: str, k: int = 4, filter: Callable[[Document], Any] | None = None, **_: Any
    ) -> list[Document]:
        """Like :meth:`similarity_search`, without blocking the event loop."""
        return await self._nearest(query, k, filter, AWAITING)

    async def _nearest(
        self, query: str, k: int, admits: Callable[[Document], Any] | None, calls: Blocking
    ) -> list[Document]:
        index, many = self._index, k if admits is None else 32 * k
        while index is not None:
            passages: list[Passage] = await calls.call(index, "retrieve", query, many)
            documents = [_document(one) for one in passages]
            admitted = [one for one in documents if admits is None or admits(one)]
            if len(admitted) >= k or many >= len(index):
                return admitted[:k]
            many *= 16
        return []

    @classmethod
    def from_texts(cls, texts: Any, embedding: Any, metadatas: Any = None, **keywords: Any) -> Self:
        """Make a store of texts; the arguments are those of LangChain's stores."""
        store = cls(embedding)
        store.add_texts(list(texts), metadatas, **keywords)
        return store


def _document(passage: Passage) -> Document:
    return Document(id=passage.id, page_content=passage.text, metadata=dict(passage.metadata))


class SummaryStore(VectorStore):
    """A vector store that takes whole documents, and stores and searches a summary of each document.

    LangChain's ``index`` keeps the store up to date: it adds new documents, replaces changed documents and
    deletes removed documents. Unchanged documents are not summarized again::

        summaries = SummaryStore(Chroma("summaries", embeddings), summarize=2)
        index(documents, record_manager, summaries, cleanup="full", source_id_key="source")

    Documents may also be added and deleted by their own ids: ``summaries.delete(["refund.md"])``. If
    ``store`` takes only UUIDs, as Qdrant does, a UUID is made from the id.

    Each summary has its document's metadata, so that the retriever's filter applies to the summary. The
    summary also has the name of the embedding model. If you change this model, summaries with the former
    model's vectors are no longer shown. Add the documents again (with ``index``, pass ``force_update=True``):
    the summaries then get new vectors, but no summary is written again.

    A document without prose has no summary: the store holds the document's beginning instead, with the key
    ``no_summary`` in the metadata. If this beginning is nearest to a question, the chain retrieves passages.

    Args:
        store: A vector store that holds only summaries; or an embedding model, to hold summaries in memory.
        summarize: The number of first sentences to take, the metadata key of a ready summary, a function from
            a document to a summary, or a model.

    Raises:
        ConfigurationError: If ``store`` is neither a vector store nor an embedding model.
    """

    def __init__(self, store: VectorStore | Embeddings, summarize: Summarize = 2) -> None:
        hint = "pass the store itself, not its retriever; or an embedding model, to hold summaries in memory"
        check_kind(VectorStore | Embeddings, "a vector store", hint=hint, store=store)
        if isinstance(store, SummaryStore):
            raise ConfigurationError(
                "the store is a SummaryStore already", hint="use this SummaryStore itself"
            )
        self.inner = store if isinstance(store, VectorStore) else MemoryStore(store)
        self._summarizer = summarizer_of(summarize, Runnable | Reader, reader_of)
        self._way = _describe_way(summarize)
        self.changes = 0
        """How often summaries were added or deleted."""
        self.snapshots: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        """For each in-memory store of a retriever: its documents when summaries were last updated, to detect
        documents that were deleted or changed later."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "snapshots": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, snapshots=WeakKeyDictionary())

    @property
    def embeddings(self) -> Embeddings | None:
        """The embedding model of the store."""
        return self.inner.embeddings

    def add_documents(
        self, documents: list[Document], ids: Sequence[str] | None = None, **keywords: Any
    ) -> list[str]:
        """Store summaries of documents in place of summaries with the same ids; return the ids."""
        return run_blocking(self._add(documents, ids, keywords, BLOCKING))

    async def aadd_documents(
        self, documents: list[Document], ids: Sequence[str] | None = None, **keywords: Any
    ) -> list[str]:
        """Like :meth:`add_documents`, without blocking the event loop."""
        return await self._add(documents, ids, keywords, AWAITING)

    def add_changed(self, documents: Sequence[Document]) -> None:
        """Store a summary of each document, unless the stored summary is up to date.

        A stored summary is up to date if these have not changed since: the document's text and metadata, the
        summarizer, and the embedding model.
        """
        run_blocking(self._add(documents, None, {}, BLOCKING, only_changed=True))

    def delete(self, ids: Sequence[str] | None = None, **keywords: Any) -> bool:
        """Delete summaries by the ids under which their documents were added; ignore unknown ids."""
        return run_blocking(self._delete(ids, keywords, BLOCKING))

    async def adelete(self, ids: Sequence[str] | None = None, **keywords: Any) -> bool:
        """Like :meth:`delete`, without blocking the event loop."""
        return await self._delete(ids, keywords, AWAITING)

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return summaries by the ids of their documents."""
        summaries = run_blocking(self._stored_summaries(ids, BLOCKING))
        if summaries is None:
            raise NotImplementedError(f"{kind_of(self.inner)} has no get_by_ids")
        return [*map(summary_to_show, summaries.values())]

    def similarity_search(self, query: str, k: int = 4, **keywords: Any) -> list[Document]:
        """Return the ``k`` summaries nearest to ``query``."""
        return [summary_to_show(one) for one in self.inner.similarity_search(query, k, **keywords)]

    async def asimilarity_search(self, query: str, k: int = 4, **keywords: Any) -> list[Document]:
        """Like :meth:`similarity_search`, without blocking the event loop."""
        return [summary_to_show(one) for one in await self.inner.asimilarity_search(query, k, **keywords)]

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return the ``k`` summaries nearest to ``query``, as passages; four summaries if ``k`` is None."""
        return [*map(passage_of, self.similarity_search(query, k or 4))]

    async def aretrieve(self, query: str, k: int | None) -> list[Passage]:
        """Like :meth:`retrieve`, without blocking the event loop."""
        return [*map(passage_of, await self.asimilarity_search(query, k or 4))]

    @classmethod
    def from_texts(cls, texts: Any, embedding: Any, metadatas: Any = None, **keywords: Any) -> Self:
        """Make an in-memory store of summaries of texts; the arguments are those of LangChain's stores."""
        store = cls(embedding)
        store.add_texts(list(texts), metadatas, **keywords)
        return store

    @property
    def encoder_name(self) -> str:
        """Identity of the embedding model; empty if the store does not know the model."""
        model = self.inner.embeddings
        return str(encoder_of(model).name) if isinstance(model, Embeddings | Encoder) else ""

    async def _add(
        self,
        documents: Sequence[Document],
        ids: Sequence[str] | None,
        keywords: Mapping[str, Any],
        calls: Blocking,
        *,
        only_changed: bool = False,
    ) -> list[str]:
        names = [one.id or id_of(one) for one in documents] if ids is None else [*map(str, ids)]
        by_id = dict(zip(names, documents, strict=True))
        records = {name: self._record(name, one) for name, one in by_id.items()}
        present = await self._stored_summaries(names, calls) or {}
        former = {name: Record.of(one.metadata) for name, one in present.items()}
        if only_changed:
            by_id = {name: one for name, one in by_id.items() if former.get(name) != records[name]}
        if by_id:
            summaries = await self._renewed(by_id, present, records, calls)
            # Not every store replaces a document with the same id: FAISS rejects the new document.
            await self._delete([name for name in by_id if name in present], {}, calls)
            ids_in_store = [str(one.id) for one in summaries]
            await calls.call(self.inner, "add_documents", summaries, ids=ids_in_store, **keywords)
            self.changes += 1
        return names

    def _record(self, name: str, document: Document) -> Record:
        return Record(name, hash_of(document.page_content), id_of(document), self._way, self.encoder_name)

    async def _renewed(
        self,
        documents: Mapping[str, Document],
        present: Mapping[str, Document],
        records: Mapping[str, Record],
        calls: Blocking,
    ) -> list[Document]:
        reusable = {
            name: one
            for name, one in present.items()
            if name in documents and records[name].fits(Record.of(one.metadata))
        }
        made = await self._summarize(
            {name: one for name, one in documents.items() if name not in reusable}, calls
        )
        return [
            self._summary(made.get(name) or _with_metadata_of(reusable[name], one), records[name])
            for name, one in documents.items()
        ]

    async def _summarize(self, documents: Mapping[str, Document], calls: Blocking) -> dict[str, Document]:
        plain = [
            PlainDocument(name, one.page_content, str(one.metadata.get("title") or ""), one.metadata)
            for name, one in documents.items()
        ]
        originals = [*documents.values()]
        if not plain:
            return {}
        if calls.prefix:
            texts = await in_thread(self._summarizer, plain, originals)
        else:
            texts = self._summarizer(plain, originals)
        held = with_summaries(plain, texts)
        return {one.id: Document(page_content=one.text, metadata=dict(one.metadata)) for one in held}

    def _summary(self, summary: Document, record: Record) -> Document:
        metadata = {**summary.metadata, RECORD_KEY: json.dumps(record)}
        return Document(id=self._stored_id(record.id), page_content=summary.page_content, metadata=metadata)

    async def _stored_summaries(self, names: Collection[str], calls: Blocking) -> dict[str, Document] | None:
        """Return the stored summaries of the documents ``names``; None if the store has no ``get_by_ids``."""
        stored = [*dict.fromkeys(map(self._stored_id, names))]
        if not stored:  # Chroma refuses an empty list
            return {}
        try:
            held = await calls.call(self.inner, "get_by_ids", stored)
        except NotImplementedError:
            return None
        # Documents from Qdrant have no id, so the id is read from the record.
        return {record.id: one for one in held if (record := Record.of(one.metadata))}

    async def _delete(
        self, ids: Collection[str] | None, keywords: Mapping[str, Any], calls: Blocking
    ) -> bool:
        if ids is None:
            raise InputError(
                "there are no ids of summaries to delete", hint="pass the ids of the summarized documents"
            )
        # FAISS rejects unknown ids.
        held = await self._stored_summaries(ids, calls)
        gone = [self._stored_id(name) for name in (ids if held is None else held)]
        if not gone:
            return True
        self.changes += 1
        return await calls.call(self.inner, "delete", gone, **keywords) is not False

    def _stored_id(self, name: str) -> str:
        if any(kind.__name__ in _ANY_TEXT for kind in type(self.inner).__mro__):
            return name
        try:
            return str(UUID(name))
        except ValueError:
            return hash_of(name)


def summary_to_show(summary: Document) -> Document:
    """Return a summary for users: with its document's id and metadata, and without its :class:`Record`."""
    record, metadata = Record.of(summary.metadata), metadata_to_show(summary.metadata)
    return Document(
        id=record.id if record else summary.id, page_content=summary.page_content, metadata=metadata
    )


def metadata_to_show(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a summary without its :class:`Record`."""
    return {key: value for key, value in metadata.items() if key != RECORD_KEY}


def _with_metadata_of(summary: Document, document: Document) -> Document:
    kept = {NO_SUMMARY: True} if NO_SUMMARY in summary.metadata else {}
    return Document(page_content=summary.page_content, metadata={**document.metadata, **kept})


def id_of(document: Document) -> str:
    """Return an id that is a hash of a document's text and metadata."""
    metadata = sorted(map(str, document.metadata.items()))
    return hash_of(f"{metadata}\n{document.page_content}")


def _describe_way(summarize: Summarize) -> str:
    if isinstance(summarize, Runnable | Reader):
        return str(reader_of(summarize).name)
    return getattr(summarize, "__qualname__", None) or repr(summarize)
