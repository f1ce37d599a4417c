"""Tier 1 of lazy retrieval: summaries of documents, limited to what the retriever's filter admits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_OID, uuid5

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import VectorStore

from langchain_surerag.documents import passage_of
from langchain_surerag.models import reader_of
from langchain_surerag.retrieval import RunnableRetriever, encoder_of, filters_of, retriever_of
from surerag import Passage
from surerag.documents import Document as PlainDocument
from surerag.errors import ConfigurationError, InputError
from surerag.readers.protocol import Reader
from surerag.services import Retriever

if TYPE_CHECKING:
    from surerag.retrieval import SummaryIndex

Summarize = int | str | Callable[[Document], str] | Reader | Runnable[Any, Any]
"""How to summarize: a number of lead sentences, a metadata key, a function of the document, or a model that
writes each summary once."""

_AT_ONCE = 256
"""Documents that are summarized and added to a vector store at once."""


class FilteredSummaries:
    """Summaries in memory, of which only those are returned that a filter admits.

    Args:
        summaries: An index in memory.
        admits: Whether a summary may be shown.
    """

    def __init__(self, summaries: SummaryIndex, admits: Callable[[Passage], bool]) -> None:
        self._summaries = summaries
        self._admits = admits

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        """Return the nearest ``k`` summaries that are admitted."""
        return self._admitted(self._summaries.retrieve(query, len(self._summaries)), k)

    async def aretrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        """Like ``retrieve``, without blocking the event loop."""
        return self._admitted(await self._summaries.aretrieve(query, len(self._summaries)), k)

    def _admitted(self, passages: Sequence[Passage], k: int | None) -> list[Passage]:
        return list(islice(filter(self._admits, passages), k))


def summaries_of(
    documents: Iterable[Document],
    *,
    summarize: Summarize = 2,
    embeddings: Embeddings | None = None,
    store: VectorStore | None = None,
) -> Retriever | VectorStore:
    """Make summaries of whole documents, for :class:`~langchain_surerag.LazyRetrievalChain`.

    Args:
        documents: The corpus, not cut into passages.
        summarize: How.
        embeddings: What the summaries are searched with, where they are held in memory.
        store: A vector store that holds the summaries instead. Each has its document's metadata, so that the
            retriever's filter holds for it, and its document's id, or a UUID made of its text: what is in the
            store already is neither written nor embedded anew. Documents may be a generator of any length.

    A document without prose has no summary: it is held by its beginning, with the key ``no_summary`` in the
    metadata, and where it is the nearest, the chain searches.

    Raises:
        InputError: If there is no document with text, or one lacks the summary it should have.
        ConfigurationError: If something else is passed, or neither embeddings nor store.
    """
    texts = _with_text(documents)
    write = _writer(summarize)
    if store is not None:
        while batch := list(islice(texts, _AT_ONCE)):
            _add(batch, write, store)
        return store
    if embeddings is None:
        raise ConfigurationError(
            "summaries are searched by meaning", hint="pass embeddings=…, or a vector store=…"
        )
    from surerag.retrieval import SummaryIndex

    passages = map(passage_of, _summarized(list(texts), write))
    return SummaryIndex.from_passages(passages, encoder_of(embeddings))


def admitted_summaries(summaries: Any, retriever: Any) -> Any:
    """Return the summary tier limited to the documents that the retriever's own filter admits.

    A vector store of summaries is searched with the retriever's filter; of summaries in memory a filter that
    is a function of the document, or a mapping from keys to plain values, is applied here. One summary as
    text is no document of a store: everybody may see it.
    """
    if isinstance(summaries, str):
        return summaries
    if not isinstance(summaries, Runnable | VectorStore | Retriever):
        raise ConfigurationError(
            f"summaries must be a vector store, a retriever or a text, got {type(summaries).__name__}",
            hint="make them of documents: summaries=summaries_of(documents, embeddings=…)",
        )
    filters = _distinct(filters_of(retriever))
    mappings = [one for one in filters if isinstance(one, Mapping)]
    if isinstance(summaries, VectorStore) and len(filters) <= 1 and mappings == filters:
        limits = dict(mappings[0]) if mappings else {}
        return RunnableRetriever(summaries.as_retriever(search_kwargs=limits))
    if not filters:
        return retriever_of(summaries)
    from surerag.retrieval import SummaryIndex

    if isinstance(summaries, SummaryIndex) and mappings == filters:
        return FilteredSummaries(summaries, _admits(mappings))
    if isinstance(summaries, Runnable) and _distinct(filters_of(summaries)) == filters:
        return RunnableRetriever(summaries)
    raise _unknown(filters)


def _distinct(filters: Iterable[Mapping[str, Any] | str]) -> list[Mapping[str, Any] | str]:
    distinct: list[Mapping[str, Any] | str] = []
    for one in filters:
        if one and one not in distinct:
            distinct.append(one)
    return distinct


def _unknown(filters: Sequence[Mapping[str, Any] | str]) -> ConfigurationError:
    names = sorted({name for one in filters for name in ([one] if isinstance(one, str) else one)})
    return ConfigurationError(
        f"the retriever is limited by {', '.join(names)}, and it cannot be known which summaries that admits",
        hint="pass the vector store of the summaries itself, which is searched with the same filter, or its "
        "retriever with that filter: summaries=store.as_retriever(search_kwargs={…})",
    )


def _admits(filters: Sequence[Mapping[str, Any]]) -> Callable[[Passage], bool]:
    """Return the condition that all filters make together."""
    conditions: list[Any] = [one.get("filter") for one in filters]
    for one, condition in zip(filters, conditions, strict=True):
        plain = isinstance(condition, Mapping) and not any(
            name.startswith("$") or not isinstance(value, str | int | float | bool)
            for name, value in condition.items()
        )
        if set(one) != {"filter"} or not (plain or callable(condition)):
            raise _unknown(filters)

    def admits(passage: Passage) -> bool:
        document = Document(id=passage.id or None, page_content=passage.text, metadata=dict(passage.metadata))
        return all(
            condition(document) if callable(condition) else condition.items() <= document.metadata.items()
            for condition in conditions
        )

    return admits


def _add(
    documents: Sequence[Document], write: Callable[[Sequence[Document]], list[str]], store: VectorStore
) -> None:
    by_id = {document.id or _id_of(document): document for document in documents}
    try:
        present = {document.id for document in store.get_by_ids(list(by_id))}
    except NotImplementedError:
        present = set()
    fresh = [
        Document(id=key, page_content=document.page_content, metadata=document.metadata)
        for key, document in by_id.items()
        if key not in present
    ]
    if fresh:
        store.add_documents(_summarized(fresh, write), ids=[document.id for document in fresh])


def _summarized(
    documents: Sequence[Document], write: Callable[[Sequence[Document]], list[str]]
) -> list[Document]:
    """Return summaries with the ids and metadata of their documents, and beginnings of those without one."""
    from surerag.retrieval import with_summaries

    return [
        Document(id=one.id or None, page_content=one.text, metadata=dict(one.metadata))
        for one in with_summaries([_plain(document) for document in documents], write(documents))
    ]


def _plain(document: Document) -> PlainDocument:
    title = str(document.metadata.get("title") or "")
    return PlainDocument(document.id or "", document.page_content, title, document.metadata)


def _id_of(document: Document) -> str:
    """Return an id made of the text; a UUID, since stores such as Qdrant take no other."""
    return str(uuid5(NAMESPACE_OID, document.page_content))


def _with_text(documents: Iterable[Any]) -> Iterator[Document]:
    empty = True
    for document in documents if isinstance(documents, Iterable) else [documents]:
        if not isinstance(document, Document):
            kind = type(document)
            raise InputError(
                f"expected a list of LangChain's documents, got {kind.__module__}.{kind.__qualname__}",
                hint="make them of what load_documents returns: [Document(item.text, id=item.id, "
                "metadata=dict(item.metadata)) for item in loaded.documents]",
            )
        if document.page_content.strip():
            empty = False
            yield document
    if empty:
        raise InputError("there is no document with text to summarize", hint="pass documents that have text")


def _writer(summarize: Summarize) -> Callable[[Sequence[Document]], list[str]]:
    """Return what makes a summary of each document."""
    if isinstance(summarize, bool):
        raise ConfigurationError(f"summarize cannot be {summarize}", hint="pass a number of sentences")
    if isinstance(summarize, int):
        from surerag.retrieval import lead_summary

        return lambda documents: [lead_summary(document.page_content, summarize) for document in documents]
    if isinstance(summarize, str):
        return lambda documents: [_value(document, summarize) for document in documents]
    if isinstance(summarize, Runnable | Reader):
        from surerag.retrieval import ModelSummaries

        by_model = ModelSummaries(reader_of(summarize))
        return lambda documents: by_model([_plain(document) for document in documents])
    return lambda documents: [summarize(document) for document in documents]


def _value(document: Document, key: str) -> str:
    summary = document.metadata.get(key)
    if not isinstance(summary, str) or not summary.strip():
        raise InputError(
            f"document {document.id!r} has no summary under the metadata key {key!r}",
            hint=f"its keys are {sorted(document.metadata)}",
        )
    return summary
