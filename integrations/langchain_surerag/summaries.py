"""Summaries for L-RAG's first answer; a user sees only summaries of documents that the retriever may find."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from langchain_surerag.documents import passage_of
from langchain_surerag.following import Snapshot
from langchain_surerag.retrieval import EmbeddingEncoder, QuestionRetriever, retriever_of
from langchain_surerag.stores import (
    MemoryStore,
    Record,
    Summarize,
    SummaryStore,
    metadata_to_show,
    summary_to_show,
)
from langchain_surerag.visibility import (
    CHROMA,
    FAISS,
    IN_MEMORY,
    UnknownVisibilityError,
    Visibility,
    apply_filter,
    path_of,
    visibility_of,
)
from surerag import Passage
from surerag.drivers import run_blocking
from surerag.errors import ConfigurationError, InputError, check_kind, kind_of
from surerag.messages import NO_SUMMARY
from surerag.readers import AWAITING, BLOCKING, Blocking
from surerag.retrieval import PassageIndex, StaleSummariesWarning
from surerag.services import Retriever

_AT_ONCE = 256
"""Number of documents that are summarized and added to a vector store at once."""
_BY_VECTOR = (IN_MEMORY, FAISS, CHROMA)
"""Classes of vector stores that find the same documents by a question's vector as by its text."""
_REMEDIES = (
    "pass your own retriever of summaries, which returns only summaries that the user may see; or, if "
    "everybody may see every summary, pass summaries_are_public=True"
)


def summaries_of(
    documents: Iterable[Document],
    *,
    summarize: Summarize = 2,
    embeddings: Embeddings | None = None,
    store: VectorStore | None = None,
) -> SummaryStore:
    """Return a store with summaries of whole documents, for :class:`~langchain_surerag.LazyRetrievalChain`.

    If the store already has a summary of a document, the summary is renewed only if the document's text, the
    document's metadata, ``summarize`` or the embedding model has changed. Nothing is deleted: to delete
    summaries, use :class:`~langchain_surerag.SummaryStore` with LangChain's ``index``, or call ``delete`` of
    the store that this function returns.

    Args:
        documents: Whole documents, not cut into passages; if ``store`` is passed, they may come from a
            generator of any length. A document without an id gets a UUID made from its text and metadata. If
            such a document changes, its old summary remains beside the new summary.
        summarize: The number of first sentences to take, the metadata key of a ready summary, a function from
            a document to a summary, or a model. If ``store`` is a ``SummaryStore``, its own setting applies.
        embeddings: The embedding model that searches summaries in memory; needed unless ``store`` is passed.
        store: A vector store for the summaries; None keeps them in memory.

    Raises:
        InputError: If there is no document with text, or ``summarize`` gives no summary for a document.
        ConfigurationError: If an argument has the wrong type, or neither ``embeddings`` nor ``store`` is
            passed.
    """
    texts = _with_text(documents)
    hint = "pass the store itself, not its retriever"
    check_kind(VectorStore | None, "a vector store", hint=hint, store=store)
    if store is None and embeddings is None:
        raise ConfigurationError(
            "summaries cannot be searched without an embedding model or a store",
            hint="pass embeddings=…, or a vector store: store=…",
        )
    summaries = store
    if not isinstance(summaries, SummaryStore):
        summaries = SummaryStore(MemoryStore(embeddings) if store is None else store, summarize)
    # The in-memory store builds its matrix of vectors in each call, so it gets all documents in one call.
    while batch := list(islice(texts, None if store is None else _AT_ONCE)):
        summaries.add_changed(batch)
    return summaries


def summary_tier(summaries: Any, retriever: Any, *, public: bool = False) -> Any:
    """Return a retriever of summaries that respects the filters of the retriever of passages.

    Summaries in a store are searched with the filter of the retriever of passages. If ``summaries`` is one
    text, everybody sees it. If ``summaries`` is an unknown retriever, it is trusted to return only permitted
    summaries.

    Args:
        summaries: A vector store, a retriever of summaries, or one summary as text.
        retriever: The retriever of passages.
        public: Whether everybody may see every summary.

    Raises:
        ConfigurationError: If we cannot know which documents ``retriever`` can return, or if the
            filters of ``summaries`` and ``retriever`` differ.
    """
    if summaries is None or isinstance(summaries, str):
        return summaries
    kinds, hint = Runnable | VectorStore | Retriever, "make them: summaries_of(documents, embeddings=…)"
    check_kind(kinds, "a vector store, a retriever or a text", hint=hint, summaries=summaries)
    if isinstance(summaries, VectorStore):
        return SummaryTier(summaries, retriever, public=public)
    tier = retriever_of(summaries)
    if public:
        return tier
    _check_same_visibility(summaries, retriever)
    return _CheckedRetriever(tier, partial(_check_same_visibility, summaries, retriever))


def _check_same_visibility(summaries: Any, retriever: Any) -> None:
    """Raise an error if the retriever of summaries may find a document that ``retriever`` must not find.

    The filter of ``summaries`` must be equal to the filter of ``retriever``. If the filter of ``retriever``
    is unknown, any filter of ``summaries`` is accepted, but not the lack of a filter. If the filter of
    ``summaries`` is unknown, as for a user's own class, no error is raised.
    """
    visibility, why = _visibility_and_reason(retriever)
    of_summaries, own = _visibility_and_reason(summaries)
    if isinstance(summaries, PassageIndex):
        own = ""
    same = of_summaries == visibility if not why else of_summaries.hides_documents
    if not (own or same):
        raise _refusal(why or _in_words(visibility, of_summaries))


class _CheckedRetriever:
    """Retrieves summaries, and calls ``check`` before each search, because filters may change."""

    def __init__(self, tier: Retriever, check: Callable[[], None]) -> None:
        self._tier, self._check = tier, check

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        self._check()
        return self._tier.retrieve(query, k)

    async def aretrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        self._check()
        summaries: Sequence[Passage] = await AWAITING.call(self._tier, "retrieve", query, k)
        return summaries


def tiers_of(summaries: Any, retriever: Any, *, public: bool = False) -> tuple[Any, Any]:
    """Return the retriever of summaries (:func:`summary_tier`), and the retriever of passages."""
    tier = summary_tier(summaries, retriever, public=public)
    return tier, retriever_of(tier.sharing_vectors(retriever) if isinstance(tier, SummaryTier) else retriever)


def _visibility_and_reason(retriever: Any) -> tuple[Visibility, str]:
    """Return which documents a retriever can return; if unknown, also the reason (else an empty text)."""
    try:
        visibility = visibility_of(retriever)
    except UnknownVisibilityError as error:
        return Visibility(), str(error)
    partial_list = "the retriever searches its own list, which may lack documents"
    return visibility, partial_list if visibility.is_list else ""


def _refusal(why: str, hint: str = _REMEDIES) -> ConfigurationError:
    return ConfigurationError(f"we cannot know which summaries a user may see: {why}", hint=hint)


def _in_words(visibility: Visibility, others: Visibility) -> str:
    if visibility.at_call:
        names = ", ".join(name for _, name in visibility.at_call)
        return f"the configurable field {names} can limit the retriever, but not the summaries"
    if visibility.hides_documents:
        return "the retriever has a filter, but the summaries do not have the same filter"
    if others.hides_documents:
        return "the search for summaries has a filter, but the retriever has none"
    return "the retriever and the search for summaries have different filters"


class SummaryTier:
    """Searches a vector store for summaries that the user may see.

    A summary is not shown in three cases: the retriever's filter may exclude the summarized document; the
    document was deleted or changed later in the retriever's store (noticed only in in-memory stores); or
    another embedding model made the summary's vector.
    """

    def __init__(self, summaries: VectorStore, retriever: Any, *, public: bool) -> None:
        self._summaries = summaries if isinstance(summaries, SummaryStore) else SummaryStore(summaries)
        self._retriever, self._public = retriever, public
        inner = self._summaries.inner
        self._in_memory = isinstance(inner, MemoryStore)
        self._encoder = inner.encoder if isinstance(inner, MemoryStore) else None
        if self._in_memory:
            # Searches in memory do not appear as runs in a trace.
            self._search: Any = partial(_search_in_memory, inner)
        else:
            searched = inner.as_retriever()
            model = inner.embeddings
            if isinstance(model, Embeddings) and path_of(inner) in _BY_VECTOR:
                self._encoder = EmbeddingEncoder(model)
                searched = QuestionRetriever.of(searched, self._encoder)
            self._search = partial(_search_in_store, searched)
        arguments, snapshots = self._current_visibility()
        if isinstance(inner, MemoryStore) and arguments:
            _check_filter(visibility_of(retriever).condition, inner.passages)
        if self._in_memory and not snapshots:
            _warn(
                "summaries in memory become outdated if this retriever's documents are deleted or changed: "
                "to update them, keep the summaries in a vector store, and use LangChain's index"
            )

    def _current_visibility(self) -> tuple[dict[str, Any], list[tuple[Snapshot, Any]]]:
        """Return the retriever's filter as search arguments, and snapshots of its in-memory stores."""
        visibility, why = _visibility_and_reason(self._retriever)
        for store in visibility.stores:
            self._summaries.snapshots.setdefault(store, Snapshot(store, self._summaries))
        snapshots = [(self._summaries.snapshots[store], store) for store in visibility.stores]
        if self._public:
            return {}, snapshots
        if why:
            raise _refusal(why)
        if visibility.at_call:
            hint = (
                "pass a retriever of summaries with the same configurable field, or summaries_are_public=True"
            )
            raise _refusal(_in_words(visibility, Visibility()), hint)
        arguments = (
            {} if visibility.filter is None else {"filter": _filter_of(visibility, self._summaries.inner)}
        )
        return arguments, snapshots

    def sharing_vectors(self, retriever: Any) -> Any:
        """Return a retriever like ``retriever`` that reuses the question's vector from the summary search.

        If ``retriever`` cannot use this vector, it is returned unchanged.
        """
        if (
            path_of(retriever) == path_of(VectorStoreRetriever)
            and retriever.search_type == "similarity"
            and path_of(retriever.vectorstore) in _BY_VECTOR
            and isinstance(self._encoder, EmbeddingEncoder)
            and retriever.vectorstore.embeddings is self._summaries.embeddings
        ):
            return QuestionRetriever.of(retriever, self._encoder)
        return retriever

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return at most ``k`` summaries, those nearest to ``query`` first."""
        return run_blocking(self._retrieve(query, k, BLOCKING))

    async def aretrieve(self, query: str, k: int | None) -> list[Passage]:
        """Like :meth:`retrieve`, without blocking the event loop."""
        return await self._retrieve(query, k, AWAITING)

    async def _retrieve(self, query: str, k: int | None, calls: Blocking) -> list[Passage]:
        arguments, snapshots = self._current_visibility()
        if self._in_memory and any(
            one.has_unknown_changes(store, self._summaries) for one, store in snapshots
        ):
            _warn(
                "documents were deleted or changed since they were summarized: no summary is shown, and "
                "L-RAG calls the retriever for every question. Update the summaries with LangChain's index "
                "on chain.summaries, or with chain.summaries.delete(ids) and "
                "chain.summaries.add_documents(documents)"
            )
            return []
        encoder, passages = self._summaries.encoder_name, []
        for document in await self._search(arguments, query, k, calls):
            passage, record = passage_of(summary_to_show(document)), Record.of(document.metadata)
            since = [one.change_of(record, store) for one, store in snapshots] if record else []
            if record and encoder and record.encoder not in ("", encoder):
                _warn(
                    f"summaries that {record.encoder} embedded are not shown, because {encoder} embeds the "
                    "questions: add the documents of these summaries again"
                )
            elif since and all(since):
                _warn(
                    f"the document {passage.id} was {since[0]} since it was summarized: the chain calls the "
                    "retriever instead of showing the summary to the model"
                )
                passages.append(replace(passage, metadata={**passage.metadata, NO_SUMMARY: True}))
            else:
                passages.append(passage)
        return passages


async def _search_in_memory(
    store: VectorStore, arguments: Mapping[str, Any], query: str, k: int | None, calls: Blocking
) -> list[Document]:
    summaries: list[Document] = await calls.call(store, "similarity_search", query, k or 4, **arguments)
    return summaries


async def _search_in_store(
    retriever: VectorStoreRetriever, arguments: Mapping[str, Any], query: str, k: int | None, calls: Blocking
) -> list[Document]:
    number = {"k": k} if k else {}
    summaries: list[Document] = await calls.call(retriever, "invoke", query, **number, **arguments)
    return summaries


def _filter_of(visibility: Visibility, store: VectorStore) -> Any:
    path = path_of(store)
    takes_document = path in (IN_MEMORY, path_of(MemoryStore))
    condition = visibility.condition if takes_document or path == FAISS else None
    if condition is None and path == visibility.store:
        return visibility.filter
    if condition is None:
        raise _refusal(
            f"{kind_of(store)} cannot apply the filter of the retriever's store",
            "keep the summaries in a vector store of the same class as the passages",
        )
    return lambda one: apply_filter(condition, metadata_to_show(one.metadata if takes_document else one))[0]


def _check_filter(condition: Any, passages: Sequence[Passage]) -> None:
    """Raise an error unless one of the first 100 summaries has all the metadata that a filter reads."""
    missing: set[str] = set()
    for passage in passages[:100]:
        try:
            _, lacking = apply_filter(condition, metadata_to_show(passage.metadata))
        except Exception:
            return  # we cannot check a filter that works only during a web request, which identifies the user
        if not lacking:
            return
        missing |= lacking
    raise _refusal(f"the retriever's filter reads {', '.join(sorted(missing))}, which no summary has")


def _warn(text: str) -> None:
    warnings.warn(text, StaleSummariesWarning, stacklevel=2)


def _with_text(documents: Iterable[Any]) -> Iterator[Document]:
    empty = True
    for document in documents if isinstance(documents, Iterable) else [documents]:
        if not isinstance(document, Document):
            kind = type(document)
            raise InputError(
                f"expected a list of LangChain's documents, got {kind.__module__}.{kind.__qualname__}",
                hint="convert the result of load_documents: [Document(item.text, id=item.id, "
                "metadata=dict(item.metadata)) for item in loaded.documents]",
            )
        if document.page_content.strip():
            empty = False
            yield document
    if empty:
        raise InputError("there is no document with text to summarize", hint="pass documents that have text")
