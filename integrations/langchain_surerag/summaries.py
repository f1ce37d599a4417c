"""Tier 1 of lazy retrieval: summaries of the documents that the retriever may find."""

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
from langchain_surerag.limits import (
    CHROMA,
    FAISS,
    IN_MEMORY,
    Limits,
    NotUnderstoodError,
    judge,
    limits_of,
    path_of,
)
from langchain_surerag.retrieval import EmbeddingEncoder, QuestionRetriever, retriever_of
from langchain_surerag.stores import (
    MemoryStore,
    Record,
    Summarize,
    SummaryStore,
    metadata_to_show,
    summary_to_show,
)
from surerag import Passage
from surerag.drivers import run_blocking
from surerag.errors import ConfigurationError, InputError, check_kind
from surerag.messages import NO_SUMMARY
from surerag.readers import AWAITING, BLOCKING, Blocking
from surerag.retrieval import PassageIndex, StaleSummariesWarning
from surerag.services import Retriever

_AT_ONCE = 256
"""Documents that are summarized and added to a vector store at once."""
_BY_VECTOR = (IN_MEMORY, FAISS, CHROMA)
"""Stores that find the same by a question's vector as by the question."""
_REMEDIES = (
    "pass a retriever of your own for the summaries, which shows only what its user may see; or, if "
    "everybody may see every summary, summaries_are_public=True"
)


def summaries_of(
    documents: Iterable[Document],
    *,
    summarize: Summarize = 2,
    embeddings: Embeddings | None = None,
    store: VectorStore | None = None,
) -> SummaryStore:
    """Make summaries of whole documents, for :class:`~langchain_surerag.LazyRetrievalChain`.

    Of a document that the store holds already, the summary is made anew where the document's text, its
    metadata, the way of summarizing or the embedding model have changed. Nothing is deleted: use
    :class:`~langchain_surerag.SummaryStore` with LangChain's ``index``, or ``delete`` of what this returns.

    Args:
        documents: The corpus, not cut into passages; a generator of any length, where there is a store. One
            without an id has a UUID made of its text and metadata, so that its summary stays when it changes.
        summarize: How; a ``SummaryStore`` has its own way.
        embeddings: What the summaries are searched with, where they are held in memory.
        store: A vector store that holds the summaries instead.

    Raises:
        InputError: If there is no document with text, or one lacks the summary it should have.
        ConfigurationError: If something else is passed, or neither embeddings nor store.
    """
    texts = _with_text(documents)
    hint = "pass the store itself, not its retriever"
    check_kind(VectorStore | None, "a vector store", hint=hint, store=store)
    if store is None and embeddings is None:
        raise ConfigurationError(
            "summaries are searched by meaning", hint="pass embeddings=…, or a vector store=…"
        )
    summaries = store
    if not isinstance(summaries, SummaryStore):
        summaries = SummaryStore(MemoryStore(embeddings) if store is None else store, summarize)
    # In memory, vectors are one matrix, which is made once.
    while batch := list(islice(texts, None if store is None else _AT_ONCE)):
        summaries.add_changed(batch)
    return summaries


def summary_tier(summaries: Any, retriever: Any, *, public: bool = False) -> Any:
    """Return the summaries that may be shown: of documents that the retriever's own filter surely admits.

    One summary as text is shown to everybody. Summaries in a store are searched with the retriever's filter.
    A function or class of the user's own that searches summaries is taken at its word.

    Args:
        summaries: A vector store, a retriever of summaries, or one summary as text.
        retriever: The retriever of passages.
        public: Whether everybody may see every summary.

    Raises:
        ConfigurationError: If it is not known to which documents the retriever is limited, or if the
            summaries are not limited alike.
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
    _check_alike(summaries, retriever)
    return _Alike(tier, partial(_check_alike, summaries, retriever))


def _check_alike(summaries: Any, retriever: Any) -> None:
    """Check that a retriever of summaries is limited as that of passages is, or by the user's own code."""
    limits, why = _understood(retriever)
    of_summaries, own = _understood(summaries)
    if isinstance(summaries, PassageIndex):
        own = ""
    alike = of_summaries == limits if not why else of_summaries.leave_out
    if not (own or alike):
        raise _refusal(why or _in_words(limits, of_summaries))


class _Alike:
    """A retriever of summaries that is checked at each question, as a filter may be changed at any time."""

    def __init__(self, tier: Retriever, check: Callable[[], None]) -> None:
        self._tier, self._check = tier, check

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        """Return the nearest summaries."""
        self._check()
        return self._tier.retrieve(query, k)

    async def aretrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        """Like :meth:`retrieve`, with the retriever's own async method."""
        self._check()
        found: Sequence[Passage] = await AWAITING.call(self._tier, "retrieve", query, k)
        return found


def tiers_of(summaries: Any, retriever: Any, *, public: bool = False) -> tuple[Any, Any]:
    """Return the summaries that may be shown, see :func:`summary_tier`, and the retriever, as services."""
    tier = summary_tier(summaries, retriever, public=public)
    return tier, retriever_of(tier.beside(retriever) if isinstance(tier, SummaryTier) else retriever)


def _understood(retriever: Any) -> tuple[Limits, str]:
    """Return what limits a retriever; and why that is not known, in words, or an empty text."""
    try:
        limits = limits_of(retriever)
    except NotUnderstoodError as error:
        return Limits(), str(error)
    return limits, "it searches a list of its own, which may lack documents" if limits.is_list else ""


def _refusal(why: str, hint: str = _REMEDIES) -> ConfigurationError:
    return ConfigurationError(f"it cannot be known which summaries the retriever admits: {why}", hint=hint)


def _in_words(limits: Limits, others: Limits) -> str:
    if limits.at_call:
        names = ", ".join(name for _, name in limits.at_call)
        return f"it is limited by the configurable field {names}, and the summaries are not"
    if limits.leave_out:
        return "it has a filter, and the summaries do not have the same"
    return "the summaries are limited, and it is not" if others.leave_out else "they are limited differently"


class SummaryTier:
    """Summaries in a vector store that may be shown, beside what the retriever finds.

    Left out are summaries of documents that the retriever's filter may deny, and of documents that the
    retriever's store holds no longer as they were summarized, as far as that can be seen; and those with
    vectors of another embedding model.
    """

    def __init__(self, summaries: VectorStore, retriever: Any, *, public: bool) -> None:
        self._summaries = summaries if isinstance(summaries, SummaryStore) else SummaryStore(summaries)
        self._retriever, self._public = retriever, public
        inner = self._summaries.inner
        self._in_memory = isinstance(inner, MemoryStore)
        self._encoder = inner.encoder if isinstance(inner, MemoryStore) else None
        if self._in_memory:
            # Searches in memory are no runs of their own in a trace.
            self._search: Any = partial(_search_in_memory, inner)
        else:
            searched = inner.as_retriever()
            model = inner.embeddings
            if isinstance(model, Embeddings) and path_of(inner) in _BY_VECTOR:
                self._encoder = EmbeddingEncoder(model)
                searched = QuestionRetriever.of(searched, self._encoder)
            self._search = partial(_search_in_store, searched)
        arguments, snapshots = self._limited()
        if isinstance(inner, MemoryStore) and arguments:
            _check_filter(limits_of(retriever).condition, inner.passages)
        if self._in_memory and not snapshots:
            _warn(
                "summaries in memory cannot follow this retriever's documents: where these are deleted or "
                "changed, hold summaries in a vector store, and bring it up to date by LangChain's index"
            )

    def _limited(self) -> tuple[dict[str, Any], list[tuple[Snapshot, Any]]]:
        """Return the arguments of a search that is limited as the retriever now is, and what it looks at."""
        limits, why = _understood(self._retriever)
        for store in limits.chunks:
            self._summaries.snapshots.setdefault(store, Snapshot(store, self._summaries))
        snapshots = [(self._summaries.snapshots[store], store) for store in limits.chunks]
        if self._public:
            return {}, snapshots
        if why:
            raise _refusal(why)
        if limits.at_call:
            hint = (
                "pass the summaries' retriever, configurable by the same field; or summaries_are_public=True"
            )
            raise _refusal(_in_words(limits, Limits()), hint)
        arguments = {} if limits.filter is None else {"filter": _filter_of(limits, self._summaries.inner)}
        return arguments, snapshots

    def beside(self, retriever: Any) -> Any:
        """Return the retriever; a store's, with the same embedding model, does not embed a question again."""
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
        """Return the nearest summaries, ``k`` at most."""
        return run_blocking(self._retrieve(query, k, BLOCKING))

    async def aretrieve(self, query: str, k: int | None) -> list[Passage]:
        """Like :meth:`retrieve`, without blocking the event loop."""
        return await self._retrieve(query, k, AWAITING)

    async def _retrieve(self, query: str, k: int | None, calls: Blocking) -> list[Passage]:
        arguments, snapshots = self._limited()
        if self._in_memory and any(one.lacks(store, self._summaries) for one, store in snapshots):
            _warn(
                "documents were deleted or changed since they were summarized: no summary is shown, and "
                "every question is searched; bring the summaries up to date by LangChain's index over "
                "chain.summaries, or by chain.summaries.delete(ids) and .add_documents(documents)"
            )
            return []
        encoder, passages = self._summaries.encoder_name, []
        for document in await self._search(arguments, query, k, calls):
            passage, record = passage_of(summary_to_show(document)), Record.of(document.metadata)
            fates = [one.fate_of(record, store) for one, store in snapshots] if record else []
            if record and encoder and record.encoder not in ("", encoder):
                _warn(
                    f"summaries that {record.encoder} embedded are not shown, as {encoder} embeds "
                    "questions: add their documents again"
                )
            elif fates and all(fates):
                _warn(f"the document {passage.id} was {fates[0]} since it was summarized, and is searched")
                passages.append(replace(passage, metadata={**passage.metadata, NO_SUMMARY: True}))
            else:
                passages.append(passage)
        return passages


async def _search_in_memory(
    store: VectorStore, arguments: Mapping[str, Any], query: str, k: int | None, calls: Blocking
) -> list[Document]:
    found: list[Document] = await calls.call(store, "similarity_search", query, k or 4, **arguments)
    return found


async def _search_in_store(
    retriever: VectorStoreRetriever, arguments: Mapping[str, Any], query: str, k: int | None, calls: Blocking
) -> list[Document]:
    number = {"k": k} if k else {}
    found: list[Document] = await calls.call(retriever, "invoke", query, **number, **arguments)
    return found


def _filter_of(limits: Limits, store: VectorStore) -> Any:
    """Return the filter of a retriever as the store of the summaries takes it."""
    path = path_of(store)
    takes_document = path in (IN_MEMORY, path_of(MemoryStore))
    condition = limits.condition if takes_document or path == FAISS else None
    if condition is None and path == limits.store:
        return limits.filter
    if condition is None:
        raise _refusal(
            f"a {type(store).__name__} cannot apply the filter of the retriever's store",
            "keep the summaries in a vector store of the same class as the passages",
        )
    return lambda one: judge(condition, metadata_to_show(one.metadata if takes_document else one))[0]


def _check_filter(condition: Any, passages: Sequence[Passage]) -> None:
    """Check that a filter can be applied to some summaries at least."""
    missing: set[str] = set()
    for passage in passages[:100]:
        try:
            _, lacking = judge(condition, metadata_to_show(passage.metadata))
        except Exception:
            return  # a filter may need a request to know its user
        if not lacking:
            return
        missing |= lacking
    raise _refusal(f"its filter asks for {', '.join(sorted(missing))}, which no summary has")


def _warn(text: str) -> None:
    warnings.warn(text, StaleSummariesWarning, stacklevel=2)


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
