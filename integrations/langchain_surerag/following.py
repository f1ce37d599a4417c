"""Tells whether documents in a retriever's local store were deleted or changed since their summaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from langchain_core.documents import Document

from langchain_surerag.stores import MemoryStore, Record, SummaryStore, hash_of, id_of

Change = Literal["", "deleted", "changed"]


def entries_of(store: Any) -> Mapping[str, Any]:
    """Return the entries of an in-memory store of LangChain, or of FAISS, by their ids."""
    entries: Mapping[str, Any] = store.docstore._dict if hasattr(store, "docstore") else store.store
    return entries


class Snapshot:
    """The entries of a local store at the last update of its documents' summaries."""

    def __init__(self, store: Any, summaries: SummaryStore) -> None:
        self._take(store, summaries)

    def _take(self, store: Any, summaries: SummaryStore) -> None:
        self._before = dict(entries_of(store))
        self._changes = summaries.changes

    def change_of(self, record: Record, store: Any) -> Change:
        """Return whether a document was deleted or changed, if the store holds it whole under the same id."""
        was, now = self._before.get(record.id), entries_of(store).get(record.id)
        if was is None or not _is_text_of(record, was):
            return ""
        if now is None:
            return "deleted"
        # New metadata count as a change: a filter may deny the document because of them.
        current, before = _as_document(now), _as_document(was)
        same = current.metadata == before.metadata or id_of(current) == record.metadata
        return "" if same and _is_text_of(record, now) else "changed"

    def has_unknown_changes(self, store: Any, summaries: SummaryStore) -> bool:
        """Whether an entry was deleted or changed, and we cannot tell to which document it belongs."""
        now = entries_of(store)
        # Python does not look into identical objects: comparing 100,000 takes a few milliseconds.
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
    held = summaries.inner.get_by_ids([*names]) if isinstance(summaries.inner, MemoryStore) else []
    return [record for one in held if (record := Record.of(one.metadata))]


def _is_text_of(record: Record, entry: Any) -> bool:
    """Whether an entry is the whole text that was summarized."""
    return entry is not None and hash_of(_as_document(entry).page_content) == record.text


def _as_document(entry: Any) -> Document:
    if isinstance(entry, Mapping):
        return Document(page_content=entry["text"], metadata=entry["metadata"])
    document: Document = entry
    return document
