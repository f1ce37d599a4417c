"""What an index, or a store of documents, holds at this moment."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.data_structs import IndexDict, IndexList
from llama_index.core.indices.base import BaseIndex
from llama_index.core.schema import BaseNode
from llama_index.core.storage.docstore import BaseDocumentStore, SimpleDocumentStore
from llama_index.core.storage.docstore.types import RefDocInfo
from llama_index.core.vector_stores.simple import SimpleVectorStore

_CHEAP = 0.002
"""Seconds within which everything may be compared before every question."""

_SELDOM = 20
"""Longer ones are made again after so many times their own length: they take a twentieth of the time."""

Held = Mapping[str, str | None]
"""Ids of nodes, in order, with what changes when their text does; None where the store does not tell."""


class Living(Protocol):
    """Tells what is there, and hands it out.

    Attributes:
        at_hand: Whether asking opens no connection.
    """

    at_hand: bool

    def held(self) -> Held:
        """Return what is there now."""

    async def aheld(self) -> Held:
        """Like ``held``."""

    def nodes(self, ids: Sequence[str]) -> list[BaseNode]:
        """Return nodes by id; those that are gone are left out."""

    async def anodes(self, ids: Sequence[str]) -> list[BaseNode]:
        """Like ``nodes``."""

    def still(self, nodes: Held) -> bool:
        """Whether nodes have the texts that they had; if not, ``held`` looks at everything again."""


class GivenNodes:
    """Documents or nodes that somebody handed over; they do not change."""

    at_hand = True

    def __init__(self, nodes: Iterable[BaseNode]) -> None:
        self._nodes = {node.node_id: node for node in nodes}

    def held(self) -> Held:
        """Return all ids."""
        return dict.fromkeys(self._nodes)

    async def aheld(self) -> Held:
        """Like ``held``."""
        return self.held()

    def nodes(self, ids: Sequence[str]) -> list[BaseNode]:
        """Return nodes by id."""
        return [self._nodes[name] for name in ids]

    async def anodes(self, ids: Sequence[str]) -> list[BaseNode]:
        """Like ``nodes``."""
        return self.nodes(ids)

    def still(self, nodes: Held) -> bool:
        """They are."""
        return True


class StoredNodes:
    """The nodes of an index in its docstore, without those that were deleted from the index alone.

    ``index.delete_ref_doc`` leaves a document's nodes in the docstore unless told otherwise, and
    ``index.delete_nodes`` leaves them in the index' own list besides. Both are gone here.

    What is added and what is deleted is seen at once, by how many there are and which came last. A text that
    takes another's place under the same id in a store so large that comparing takes longer than a blink is
    seen when it is asked for (see ``still``), or with the next comparison of all.

    Args:
        docstore: Where the nodes are.
        index: The index that they belong to; without one, whatever the docstore holds is there.
    """

    def __init__(self, docstore: BaseDocumentStore, index: BaseIndex[Any] | None = None) -> None:
        self._docstore = docstore
        self._index = index
        self._last: _Read | None = None
        self._glanced: object = None
        self._due = 0.0
        self.at_hand = isinstance(docstore, SimpleDocumentStore)

    def held(self) -> Held:
        """Return the ids of nodes that the index would find, with their hashes."""
        if self._last is not None and self._is_as_before():
            return self._last.held
        started = time.monotonic()
        glanced = self._glance()
        listed = _listed(self._index)
        hashes = self._docstore.get_all_document_hashes()
        found = self._held(
            hashes, listed, None if listed is not None else self._docstore.get_all_ref_doc_info()
        )
        self._compared(glanced, started)
        return found

    async def aheld(self) -> Held:
        """Like ``held``, with the store's own async methods."""
        if self.at_hand:
            return self.held()
        listed = _listed(self._index)
        hashes = await self._docstore.aget_all_document_hashes()
        if listed is not None:
            return self._held(hashes, listed, None)
        return self._held(hashes, None, await self._docstore.aget_all_ref_doc_info())

    def _held(self, hashes: Mapping[str, str], listed: list[str] | None, documents: Any) -> Held:
        """Return what was read as ids with hashes; the same object for as long as nothing changes."""
        read = _Read(hashes, listed, documents, {})
        if self._last is not None and self._last[:3] == read[:3]:
            return self._last.held
        self._last = read._replace(held=_held(hashes, listed, documents))
        return self._last.held

    def nodes(self, ids: Sequence[str]) -> list[BaseNode]:
        """Return nodes by id; those that are gone are left out."""
        return self._docstore.get_nodes(list(ids), raise_error=False)

    async def anodes(self, ids: Sequence[str]) -> list[BaseNode]:
        """Like ``nodes``, with the store's own async methods."""
        return await self._docstore.aget_nodes(list(ids), raise_error=False)

    def still(self, nodes: Held) -> bool:
        """Whether nodes have the texts that they had, by their hashes; of a store elsewhere, nobody asks."""
        if not self.at_hand or all(
            digest is None or self._docstore.get_document_hash(name) == digest
            for name, digest in nodes.items()
        ):
            return True
        self._due = 0.0
        return False

    def _is_as_before(self) -> bool:
        """Whether nothing was added or deleted, and no comparison of all is due."""
        return time.monotonic() < self._due and self._glanced == self._glance()

    def _compared(self, glanced: object, started: float) -> None:
        took = time.monotonic() - started
        self._glanced = glanced
        cheap = took < _CHEAP or glanced is None
        self._due = 0.0 if cheap else started + took * (1 + _SELDOM)

    def _glance(self) -> object:
        """Return what changes when something is added or deleted; None where that takes reading it all."""
        if not isinstance(self._docstore, SimpleDocumentStore):
            return None
        struct = None if self._index is None else self._index.index_struct
        listed = getattr(struct, "nodes_dict", None) or getattr(struct, "nodes", None)
        vectors = getattr(getattr(self._index, "_vector_store", None), "data", None)
        tables = (*self._docstore.to_dict().values(), listed, getattr(vectors, "embedding_dict", None))
        return [(len(table), next(reversed(table))) if table else None for table in tables]


def living_behind(source: BaseRetriever | BaseIndex[Any] | None) -> StoredNodes | None:
    """Return what tells which documents an index, or that of a retriever, still holds.

    Returns:
        None where nothing can be told: without a docstore, or where the texts are in the vector store alone.
    """
    index = source if isinstance(source, BaseIndex) else getattr(source, "_index", None)
    if isinstance(index, BaseIndex):
        store = getattr(index, "_vector_store", None)
        alone = getattr(store, "stores_text", False) and not getattr(index, "_store_nodes_override", False)
        return None if alone else StoredNodes(index.docstore, index)
    docstore = getattr(source, "docstore", None) or getattr(source, "_docstore", None)
    return StoredNodes(docstore) if isinstance(docstore, BaseDocumentStore) else None


def _listed(index: BaseIndex[Any] | None) -> list[str] | None:
    """Return the nodes that an index lists as its own, in order; None where it keeps no such list."""
    struct = None if index is None else index.index_struct
    if isinstance(struct, IndexList):
        return list(struct.nodes)
    if not isinstance(struct, IndexDict):
        return None
    found = list(struct.nodes_dict.values())
    store = getattr(index, "_vector_store", None)
    if isinstance(store, SimpleVectorStore):
        # ``delete_nodes`` takes a node's vector away, and leaves it in the list.
        return [name for name in found if name in store.data.embedding_dict]
    return found


class _Read(NamedTuple):
    """What was read of a store and an index, and what it comes to."""

    hashes: Mapping[str, str]
    listed: list[str] | None
    documents: Any
    held: Held


def _held(
    hashes: Mapping[str, str], listed: Sequence[str] | None, documents: Mapping[str, RefDocInfo] | None
) -> dict[str, str | None]:
    known = {name: digest for digest, name in hashes.items()}
    if listed is not None:
        return {name: known.get(name) for name in listed}
    # Of nodes with one text, the store names one by its hash; the others are named by their documents.
    others = [name for info in (documents or {}).values() for name in info.node_ids]
    return {**dict.fromkeys(others), **known}
