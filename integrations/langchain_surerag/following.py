"""Detect that documents in a retriever's local store were deleted or changed after they were summarized."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from langchain_core.documents import Document

from langchain_surerag.stores import MemoryStore, Record, SummaryStore, hash_of, id_of

Change = Literal["", "deleted", "changed"]


def entries_of(store: Any) -> Mapping[str, Any]:
    """Return what a vector store in memory (LangChain's own, or FAISS) holds under each document id."""
    entries: Mapping[str, Any] = store.docstore._dict if hasattr(store, "docstore") else store.store
    return entries


class Snapshot:
    """What a vector store in memory held when the summaries of its documents were last updated."""

    def __init__(self, store: Any, summaries: SummaryStore) -> None:
        self._take(store, summaries)

    def _take(self, store: Any, summaries: SummaryStore) -> None:
        self._before = dict(entries_of(store))
        self._changes = summaries.changes

    def change_of(self, record: Record, store: Any) -> Change:
        """Return whether a summarized document was ``"deleted"`` or ``"changed"`` since the snapshot.

        The result is ``""`` if neither happened, or if the store did not hold the document as one whole.
        """
        was, now = self._before.get(record.id), entries_of(store).get(record.id)
        if was is None or not _is_text_of(record, was):
            return ""
        if now is None:
            return "deleted"
        # New metadata count as a change, because a filter may now exclude the document.
        current, before = _as_document(now), _as_document(was)
        same = current.metadata == before.metadata or id_of(current) == record.metadata
        return "" if same and _is_text_of(record, now) else "changed"

    def has_unknown_changes(self, store: Any, summaries: SummaryStore) -> bool:
        """Whether the store deleted or changed a text that may be a chunk of a document.

        We do not know to which document a chunk belongs. A change of the whole text of a summarized document
        does not count.
        """
        now = entries_of(store)
        # Python compares identical objects by identity: 100,000 comparisons take a few milliseconds.
        if now == self._before:
            return False
        if summaries.changes != self._changes:
            # We assume that an update of the summaries covers all documents that changed.
            self._take(store, summaries)
            return False
        changed = {name for name, value in self._before.items() if now.get(name) != value}
        if not changed:
            self._take(store, summaries)
        whole = {one.id: one for one in _records_of(summaries, changed)}
        return not all(name in whole and _is_text_of(whole[name], self._before[name]) for name in changed)


def _records_of(summaries: SummaryStore, names: Iterable[str]) -> list[Record]:
    found = summaries.inner.get_by_ids([*names]) if isinstance(summaries.inner, MemoryStore) else []
    return [record for one in found if (record := Record.of(one.metadata))]


def _is_text_of(record: Record, entry: Any) -> bool:
    return entry is not None and hash_of(_as_document(entry).page_content) == record.text


def _as_document(entry: Any) -> Document:
    if isinstance(entry, Mapping):
        return Document(page_content=entry["text"], metadata=entry["metadata"])
    document: Document = entry
    return document
