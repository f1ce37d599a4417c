"""A summary tier of the user's own, without the summaries of documents that the index has lost."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from llama_index.core.schema import BaseNode, NodeWithScore

from llama_index_surerag._living import Held, StoredNodes
from llama_index_surerag._summary_tier import document_id
from llama_index_surerag.services import Asked, bound_to
from surerag.messages import Passage
from surerag.readers.threads import in_thread
from surerag.services import Retriever


class WithoutDeleted:
    """Finds what a tier of summaries finds, but for documents that were in the index and are there no more.

    A document that the index never knew stays: summaries may well be of more than what is indexed.

    Args:
        summaries: The tier.
        living: Tells what the index holds.
    """

    def __init__(self, summaries: Retriever, living: StoredNodes) -> None:
        self._summaries = summaries
        self._living = living
        self._known = _Known()
        if living.at_hand:
            self._known.update(living, living.held())

    def __repr__(self) -> str:
        return f"WithoutDeleted({self._summaries!r})"

    @property
    def inner(self) -> Retriever:
        """The tier itself."""
        return self._summaries

    def bound_to(self, asked: Asked) -> WithoutDeleted:
        """Return a tier that is asked for this very query."""
        bound = WithoutDeleted.__new__(WithoutDeleted)
        bound.__dict__.update(self.__dict__)
        bound._summaries = bound_to(self._summaries, asked)
        return bound

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        """Return what the tier finds, but for what was deleted."""
        gone = self._known.update(self._living, self._living.held())
        return _but_for(gone, self._summaries.retrieve(query, k))

    async def aretrieve(self, query: str, k: int | None) -> list[Passage]:
        """Like ``retrieve``, without blocking the event loop."""
        held = await self._living.aheld()
        gone = await in_thread(self._known.update, self._living, held)
        theirs = getattr(self._summaries, "aretrieve", None)
        if theirs is None:
            return _but_for(gone, await in_thread(self._summaries.retrieve, query, k))
        return _but_for(gone, await theirs(query, k))


class _Known:
    """The documents that an index holds, and those that it held once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: Held = {}
        self._owners: dict[str, str] = {}
        self._gone: frozenset[str] = frozenset()

    def update(self, living: StoredNodes, held: Held) -> frozenset[str]:
        """Note what an index holds now, and return the documents that it has lost."""
        with self._lock:
            if held is self._held or held == self._held:
                return self._gone
            fresh = [name for name in held if name not in self._owners]
            self._owners |= {node.node_id: document_id(node) for node in living.nodes(fresh)} if fresh else {}
            there = {owner for name, owner in self._owners.items() if name in held}
            self._held, self._gone = held, frozenset(self._owners.values()) - there
            return self._gone


def _but_for(gone: frozenset[str], found: Sequence[Passage]) -> list[Passage]:
    return [passage for passage in found if gone.isdisjoint(_documents_of(passage))]


def _documents_of(passage: Passage) -> set[str]:
    """Return the ids by which a summary may name its document: its own, and that of its source."""
    origin = passage.origin.node if isinstance(passage.origin, NodeWithScore) else passage.origin
    known = {passage.id}
    return known | {document_id(origin)} if isinstance(origin, BaseNode) else known
