"""Tier 1 of lazy retrieval: a small index of document summaries, made from what a pipeline has."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import RetrieverLike
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import VectorStore

from langchain_surerag.services import EmbeddingEncoder, RunnableRetriever, reader_from_model
from surerag.documents import Document as PlainDocument
from surerag.errors import ConfigurationError, InputError
from surerag.messages import Passage
from surerag.readers import Reader
from surerag.readers.threads import in_thread
from surerag.retrieval import LeadSummaries, MetadataSummaries, ModelSummaries, Summarizer, SummaryIndex
from surerag.retrieval.index import MAX_IN_MEMORY, at_most
from surerag.services import Retriever

Made = LeadSummaries | MetadataSummaries | ModelSummaries
"""surerag's own ways, with settings of one's own, such as a language."""

Summarize = str | int | Callable[[Document], str] | Reader | Runnable[Any, Any] | Made | None
"""How to summarize: a metadata key, a number of lead sentences, a function of the document, a model that
writes each summary once, or one of surerag's own ways; None takes the first two sentences."""

_Way = Callable[[Sequence[Document]], list[str]]

_AT_ONCE = 256
"""Documents that are summarized and handed to a vector store at once."""

SummarySource = str | Retriever | RetrieverLike | VectorStore | Iterable[Document]


def summaries_of(
    source: SummarySource,
    *,
    summarize: Summarize = None,
    embeddings: Embeddings | None = None,
    store: VectorStore | None = None,
    max_summaries: int = MAX_IN_MEMORY,
) -> Retriever | str:
    """Make the summary tier of whatever a pipeline has.

    Args:
        source: Whole documents; a retriever whose documents *are* summaries, or a vector store of them; an
            index of surerag, such as a :class:`~surerag.retrieval.DiskSummaryIndex`; or the summary of a
            single document as text.
        summarize: How, for documents.
        embeddings: What the summaries of documents are searched with, where they are kept in memory.
        store: A vector store of your own that keeps the summaries of documents instead. Each has its
            document's id, or one that is made of its text: what is in the store already is neither written
            nor embedded anew, and ``store.delete`` takes a document's summary out. Documents are read
            and stored some at a time: a generator of any length will do.
        max_summaries: More are not kept in memory, but refused before any is made.

    Returns:
        What :class:`~langchain_surerag.LazyRetrievalChain` takes as ``summaries``.

    Raises:
        InputError: If there is no document with text, or one lacks the summary it should have.
        ConfigurationError: If the source is of another kind, or documents come without embeddings and
            store, or more of them than ``max_summaries`` without a store.
    """
    if isinstance(source, str):
        return source
    if isinstance(source, VectorStore):
        return RunnableRetriever(source.as_retriever())
    if isinstance(source, Runnable):
        return RunnableRetriever(source)
    if isinstance(source, Retriever):
        return source
    # One of them is iterable, too: over its fields.
    given: object = source
    if not isinstance(source, Iterable) or isinstance(given, Document):
        raise ConfigurationError(
            f"summaries cannot be made of a {type(source).__name__}",
            hint="pass a list of documents, a retriever or vector store of summaries, or one summary as text",
        )
    documents = _with_text(source)
    if store is not None:
        return _stored(documents, _way(summarize), store)
    return _index(documents, _way(summarize), embeddings, max_summaries)


async def asummaries_of(
    source: SummarySource,
    *,
    summarize: Summarize = None,
    embeddings: Embeddings | None = None,
    store: VectorStore | None = None,
    max_summaries: int = MAX_IN_MEMORY,
) -> Retriever | str:
    """Like :func:`summaries_of`, without blocking the event loop."""
    return await in_thread(
        partial(
            summaries_of,
            source,
            summarize=summarize,
            embeddings=embeddings,
            store=store,
            max_summaries=max_summaries,
        )
    )


def _stored(documents: Iterable[Document], summarize: _Way, store: VectorStore) -> Retriever:
    """Add the summaries that a store does not have yet, some at a time, and search it."""
    stream = iter(documents)
    while batch := list(islice(stream, _AT_ONCE)):
        _add(batch, summarize, store)
    return RunnableRetriever(store.as_retriever())


def _add(documents: Sequence[Document], summarize: _Way, store: VectorStore) -> None:
    by_id = {document.id or _id_of(document): document for document in documents}
    try:
        known = {found.id for found in store.get_by_ids(list(by_id))}
    except NotImplementedError:
        # It cannot be asked; by their ids, summaries that are there are written over.
        known = set()
    fresh = {key: document for key, document in by_id.items() if key not in known}
    if fresh:
        texts = summarize(list(fresh.values()))
        added = [
            Document(id=key, page_content=text, metadata=dict(document.metadata))
            for (key, document), text in zip(fresh.items(), texts, strict=True)
        ]
        store.add_documents(added, ids=list(fresh))


def _id_of(document: Document) -> str:
    return f"summary-{hashlib.sha256(document.page_content.encode()).hexdigest()[:32]}"


def _with_text(documents: Iterable[Any]) -> Iterator[Document]:
    found = False
    for item in documents:
        if not isinstance(item, Document):
            raise ConfigurationError(
                f"summaries cannot be made of a {type(item).__name__}", hint="pass LangChain documents"
            )
        if item.page_content.strip():
            found = True
            yield item
    if not found:
        raise InputError("there is no document with text to summarize", hint="pass documents that have text")


def _index(
    documents: Iterable[Document], summarize: _Way, embeddings: Embeddings | None, max_summaries: int
) -> SummaryIndex:
    if embeddings is None:
        raise ConfigurationError(
            "summaries are searched by meaning", hint="pass embeddings=…, or a vector store=…"
        )
    held = at_most(documents, max_summaries)
    passages = [
        Passage(text, id=document.id or "", metadata=dict(document.metadata))
        for document, text in zip(held, summarize(held), strict=True)
    ]
    encoder = EmbeddingEncoder(embeddings)
    return SummaryIndex.from_passages(passages, encoder, max_summaries=max_summaries)


def _way(summarize: Summarize) -> _Way:
    """Return what makes a summary of each document."""
    how: Summarizer
    match summarize:
        case None:
            how = LeadSummaries()
        case LeadSummaries() | MetadataSummaries() | ModelSummaries():
            how = summarize
        case bool():
            raise ConfigurationError(f"summarize cannot be {summarize}", hint="give a number of sentences")
        case int():
            how = LeadSummaries(summarize)
        case str():
            how = MetadataSummaries(summarize)
        case Runnable():
            how = ModelSummaries(reader_from_model(summarize))
        case Reader():
            how = ModelSummaries(summarize)
        case _:
            return lambda documents: [summarize(document) for document in documents]
    return lambda documents: how(
        [
            PlainDocument(document.id or str(place), document.page_content, metadata=dict(document.metadata))
            for place, document in enumerate(documents)
        ]
    )
