"""Tier 1 of lazy retrieval: summaries of documents, limited to what the retriever's filter admits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any
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
from surerag.errors import ConfigurationError, InputError, check_kind
from surerag.readers import Reader
from surerag.retrieval import SummaryIndex, summarizer_of, with_summaries
from surerag.services import Retriever
from surerag.text import replace_surrogates

Summarize = int | str | Callable[..., Any] | Reader | Runnable[Any, Any]
"""How to summarize: a number of lead sentences, a metadata key, a function of the document, or a model that
writes each summary once."""
Summarizer = Callable[[Sequence[PlainDocument], Sequence[Document]], list[str]]
SOURCE_HASH = "source_hash"
"""Metadata of a summary in a vector store, which tells whether its document has changed."""
_AT_ONCE = 256
"""Documents that are summarized and added to a vector store at once."""


def _filtered(summaries: SummaryIndex, admits: Callable[[Passage], bool]) -> Retriever:
    """Return a retriever of the nearest summaries in memory that a filter admits."""

    def admitted(passages: Iterable[Passage], k: int | None) -> list[Passage]:
        return list(islice(filter(admits, passages), k))

    async def aretrieve(query: str, k: int | None) -> list[Passage]:
        return admitted(await summaries.aretrieve(query, len(summaries)), k)

    return SimpleNamespace(
        retrieve=lambda query, k: admitted(summaries.retrieve(query, len(summaries)), k), aretrieve=aretrieve
    )


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
        store: A vector store that holds the summaries instead, with their documents' metadata, so that the
            retriever's filter holds for them, and ids: of what is in the store already, only documents whose
            text or metadata have changed are summarized and embedded anew. Documents may be a generator of
            any length. One without an id has a UUID made of its text and metadata, and once it is changed,
            its old summary stays.

    A document without prose has no summary: it is held by its beginning, with the key ``no_summary`` in the
    metadata, and where it is the nearest, the chain searches.

    Raises:
        InputError: If there is no document with text, or one lacks the summary it should have.
        ConfigurationError: If something else is passed, or neither embeddings nor store.
    """
    texts = _with_text(documents)
    summarizer = summarizer_of(summarize, Runnable | Reader, reader_of)
    hint = "pass the store itself, not its retriever"
    check_kind(VectorStore | None, "a vector store", hint=hint, store=store)
    if store is not None:
        while batch := list(islice(texts, _AT_ONCE)):
            _add(batch, summarizer, store)
        return store
    if embeddings is None:
        raise ConfigurationError(
            "summaries are searched by meaning", hint="pass embeddings=…, or a vector store=…"
        )
    passages = map(passage_of, _summarized(list(texts), summarizer))
    return SummaryIndex.from_passages(passages, encoder_of(embeddings))


def admitted_summaries(summaries: Any, retriever: Any) -> Any:
    """Return the summary tier limited to the documents that the retriever's own filter admits.

    A vector store of summaries is searched with the retriever's filter; of summaries in memory a filter that
    is a function of the document, or a mapping from keys to plain values, is applied here. One summary as
    text is no document of a store: everybody may see it.
    """
    if summaries is None or isinstance(summaries, str):
        return summaries
    kinds, hint = Runnable | VectorStore | Retriever, "make them: summaries_of(documents, embeddings=…)"
    check_kind(kinds, "a vector store, a retriever or a text", hint=hint, summaries=summaries)
    filters = _distinct(filters_of(retriever))
    mappings = [one for one in filters if isinstance(one, Mapping)]
    if isinstance(summaries, VectorStore) and len(filters) <= 1 and mappings == filters:
        limits = dict(mappings[0]) if mappings else {}
        return RunnableRetriever(summaries.as_retriever(search_kwargs=limits))
    if not filters:
        return retriever_of(summaries)
    if isinstance(summaries, SummaryIndex) and mappings == filters:
        admits = _admits(mappings)
        admits(summaries.passages[0])  # raises where the filter is for something else than documents
        return _filtered(summaries, admits)
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
        try:
            return all(
                condition(document) if callable(condition) else condition.items() <= document.metadata.items()
                for condition in conditions
            )
        except Exception as error:
            raise _unknown(filters) from error

    return admits


def _add(documents: Sequence[Document], summarizer: Summarizer, store: VectorStore) -> None:
    by_id = {document.id or _hash_of(document): document for document in documents}
    try:
        present = {one.id: one.metadata.get(SOURCE_HASH) for one in store.get_by_ids(list(by_id))}
    except NotImplementedError:
        present = {}
    hashes = {key: _hash_of(document) for key, document in by_id.items()}
    fresh = [
        Document(id=key, page_content=one.page_content, metadata={**one.metadata, SOURCE_HASH: hashes[key]})
        for key, one in by_id.items()
        if present.get(key) != hashes[key]
    ]
    if fresh:
        store.add_documents(_summarized(fresh, summarizer), ids=[document.id for document in fresh])


def _summarized(documents: Sequence[Document], summarizer: Summarizer) -> list[Document]:
    """Return summaries with the ids and metadata of their documents, and beginnings of those without one."""
    plain = [
        PlainDocument(one.id or "", one.page_content, str(one.metadata.get("title") or ""), one.metadata)
        for one in documents
    ]
    return [
        Document(id=one.id or None, page_content=one.text, metadata=dict(one.metadata))
        for one in with_summaries(plain, summarizer(plain, documents))
    ]


def _hash_of(document: Document) -> str:
    """Return a hash of a document's text and metadata: a UUID, as Qdrant and others want for an id."""
    metadata = sorted(map(str, document.metadata.items()))
    return str(uuid5(NAMESPACE_OID, replace_surrogates(f"{metadata}\n{document.page_content}")))


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
