"""LangChain's documents and surerag's passages: copies either way, nothing lost, nothing changed."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from langchain_core.runnables.base import coerce_to_runnable
from langchain_core.stores import BaseStore

from surerag import PROVENANCE_KEY, SOURCES_KEY
from surerag.errors import ConfigurationError, ServiceError
from surerag.messages import Event, Passage

logger = logging.getLogger("surerag")

Listener = Callable[[Event], None]

_SCORES = ("score", "relevance_score")


class Decision(dict[str, Any]):
    """How a document came to be chosen. Two of these are equal, for it is no part of what a document is.

    It holds plain values only: ``dumps`` and LangGraph's checkpointers write it down, and read it again as a
    plain mapping, to which it is equal, too.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decision) or (isinstance(other, dict) and other.keys() == self.keys())

    def __ne__(self, other: object) -> bool:
        return not self == other


def passages_of(documents: Iterable[Document]) -> list[Passage]:
    """Return documents as passages; each remembers the document it came from.

    Raises:
        ServiceError: If there is something else among them.
    """
    return [_passage(document) for document in documents]


def documents_of(passages: Sequence[Passage]) -> list[Document]:
    """Return passages as documents: copies of the ones they came from, or new ones."""
    return [_document(passage) for passage in passages]


def _passage(document: Document) -> Passage:
    if not isinstance(document, Document):
        raise ServiceError(
            f"expected documents, found a {type(document).__name__}",
            hint="pass LangChain documents; a retriever, or a runnable in its place, returns a list of them",
        )
    return Passage(
        document.page_content,
        id=document.id or "",
        score=_score(document.metadata),
        metadata=dict(document.metadata),
        origin=document,
    )


def _document(passage: Passage) -> Document:
    metadata = {name: _copied(value) for name, value in passage.metadata.items()}
    if passage.metadata.get(SOURCES_KEY):
        metadata[SOURCES_KEY] = [_source(one) for one in metadata[SOURCES_KEY]]
    origin = passage.origin
    if not isinstance(origin, Document):
        return Document(id=passage.id or None, page_content=passage.text, metadata=metadata)
    if origin.page_content == passage.text:
        return origin.model_copy(update={"metadata": metadata})
    # Of another text, nothing else holds that its class may know of it, such as an embedding.
    return Document(id=origin.id, page_content=passage.text, metadata=metadata)


def _source(source: Any) -> Any:
    """Return an entry of a compressed document's sources; one without an id has none, as in LangChain."""
    return {**source, "id": source.get("id") or None} if isinstance(source, Mapping) else source


def _copied(value: Any) -> Any:
    """Return a deep copy; what cannot be copied (a lock, an open file) is shared."""
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def _score(metadata: dict[str, Any]) -> float | None:
    """Return the score that a retriever or reranker left in the metadata; there is no other place for it."""
    found = next((metadata[name] for name in _SCORES if name in metadata), None)
    try:
        # Rerankers leave numpy's numbers as well as Python's.
        return None if found is None or isinstance(found, bool | str) else float(found)
    except (TypeError, ValueError):
        return None


class Parent(NamedTuple):
    """A document that can be cut anew, and the key under which its store has it, if one does."""

    document: Document
    key: str | None = None


class Parents:
    """Finds the documents behind chunks.

    A chunk whose document is not found stands for itself, so that nothing that was retrieved gets lost. If
    none is found, or the source fails, there is nothing to cut, with a warning.

    Args:
        source: A store of documents, as a ParentDocumentRetriever fills it; or a function (or a runnable)
            from chunks to the documents behind them.
        id_key: Where a chunk's metadata has the key of its document in the store.
        strict: Whether a failure of the source is raised.

    Raises:
        ConfigurationError: If the source is neither; later, if it gives something else than documents.
    """

    def __init__(self, source: Any, id_key: str, *, strict: bool = False) -> None:
        # A retriever is a runnable, too, but one from a question.
        known = isinstance(source, BaseStore | Runnable) and not isinstance(source, BaseRetriever)
        if not known and not callable(source):
            raise ConfigurationError(
                f"parents is a {type(source).__name__}",
                hint="pass a store of documents (a ParentDocumentRetriever's docstore), or a function from "
                "chunks to the documents behind them",
            )
        self._source: BaseStore[str, Any] | Runnable[Any, Any] = (
            source if isinstance(source, BaseStore) else coerce_to_runnable(source)
        )
        self._id_key = id_key
        self._strict = strict

    def of(self, chunks: Sequence[Document], on_event: Listener) -> list[Passage]:
        """Return the documents behind chunks as passages; each remembers its :class:`Parent`."""
        found: list[Parent] = []
        with self._failing(on_event):
            if isinstance(self._source, BaseStore):
                keys = self._keys(chunks)
                found = self._stored(chunks, keys, self._source.mget(keys) if keys else [])
            else:
                found = _given(self._source.invoke(list(chunks)))
            _tell_if_none(found, on_event)
        return _passages(found)

    async def aof(self, chunks: Sequence[Document], on_event: Listener) -> list[Passage]:
        """Like :meth:`of`, without blocking the event loop."""
        found: list[Parent] = []
        with self._failing(on_event):
            if isinstance(self._source, BaseStore):
                keys = self._keys(chunks)
                found = self._stored(chunks, keys, await self._source.amget(keys) if keys else [])
            else:
                found = _given(await self._source.ainvoke(list(chunks)))
            _tell_if_none(found, on_event)
        return _passages(found)

    def _keys(self, chunks: Iterable[Document]) -> list[str]:
        return list(dict.fromkeys(key for chunk in chunks if (key := self._key(chunk)) is not None))

    def _key(self, chunk: Document) -> str | None:
        key = chunk.metadata.get(self._id_key)
        return key if isinstance(key, str) else None

    def _stored(
        self, chunks: Sequence[Document], keys: Sequence[str], documents: Sequence[Any]
    ) -> list[Parent]:
        found = {
            key: Parent(_checked(document), key)
            for key, document in zip(keys, documents, strict=True)
            if document is not None
        }
        if not found:
            return []
        whole: dict[str | int, Parent] = {}
        for place, chunk in enumerate(chunks):
            parent = found.get(self._key(chunk) or "", Parent(chunk))
            whole[place if parent.key is None else parent.key] = parent
        return list(whole.values())

    @contextmanager
    def _failing(self, on_event: Listener) -> Iterator[None]:
        try:
            yield
        except ConfigurationError:
            raise
        except Exception as error:
            if self._strict:
                raise
            _warn(on_event, f"{type(error).__name__}: {error}")

    def documents_of(self, passages: Iterable[Passage]) -> list[Document]:
        """Return passages as documents: copies, and new ones for chunks that were cut anew."""
        return [
            self._recut(passage, passage.origin)
            if isinstance(passage.origin, Parent)
            else documents_of([passage])[0]
            for passage in passages
        ]

    def _recut(self, passage: Passage, parent: Parent) -> Document:
        metadata = {
            **parent.document.metadata,
            "start_index": passage.metadata["start"],
            PROVENANCE_KEY: passage.metadata[PROVENANCE_KEY],
        }
        if parent.key is not None:
            metadata[self._id_key] = parent.key
        known = parent.key or parent.document.id
        return Document(id=passage.id if known else None, page_content=passage.text, metadata=metadata)


def place_of(passage: Passage) -> Mapping[str, Any]:
    """Return from which document a chunk was cut anew, and where; nothing for one that was not."""
    if not isinstance(passage.origin, Parent):
        return {}
    return {name: passage.metadata[name] for name in ("document", "start", "end")}


def _given(documents: Any) -> list[Parent]:
    if not isinstance(documents, Sequence) or isinstance(documents, str):
        raise ConfigurationError(
            f"expected the documents behind chunks, found a {type(documents).__name__}",
            hint="let parents return a list of documents",
        )
    return [Parent(_checked(document)) for document in documents]


def _checked(document: Any) -> Document:
    if not isinstance(document, Document):
        raise ConfigurationError(
            f"expected the document behind a chunk, found a {type(document).__name__}",
            hint="give a store of documents; create_kv_docstore makes one of a store of bytes",
        )
    return document


def _passages(found: Sequence[Parent]) -> list[Passage]:
    return [
        Passage(parent.document.page_content, id=parent.key or parent.document.id or "", origin=parent)
        for parent in found
    ]


def _tell_if_none(found: Sequence[Parent], on_event: Listener) -> None:
    if not found:
        _warn(on_event, "no document was found behind the chunks; they are not cut anew")


def _warn(on_event: Listener, reason: str) -> None:
    logger.warning("context_refiner.no_parents: %s", reason)
    on_event(Event("context_refiner.no_parents", {"reason": reason}, warning=True))
