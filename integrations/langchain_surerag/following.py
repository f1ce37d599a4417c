"""Whether documents are still in a retriever's local store as they were when they were summarized."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from langchain_core.documents import Document

from langchain_surerag.stores import MemoryStore, Record, SummaryStore, hash_of, id_of

Fate = Literal["", "deleted", "changed"]


def entries_of(store: Any) -> Mapping[str, Any]:
    """Return what LangChain's stores in memory, or FAISS, hold by their ids."""
    entries: Mapping[str, Any] = store.docstore._dict if hasattr(store, "docstore") else store.store
    return entries


class Snapshot:
    """What a local store held when the summaries of its documents were last brought up to date."""

    def __init__(self, store: Any, summaries: SummaryStore) -> None:
        self._take(store, summaries)

    def _take(self, store: Any, summaries: SummaryStore) -> None:
        self._before = dict(entries_of(store))
        self._changes = summaries.changes

    def fate_of(self, record: Record, store: Any) -> Fate:
        """Return what has happened to a document that the store holds whole, under the summary's id."""
        was, now = self._before.get(record.id), entries_of(store).get(record.id)
        if was is None or not _is_of(record, was):
            return ""
        if now is None:
            return "deleted"
        # A filter may deny a document by its new metadata.
        current, before = _as_document(now), _as_document(was)
        same = current.metadata == before.metadata or id_of(current) == record.metadata
        return "" if same and _is_of(record, now) else "changed"

    def lacks(self, store: Any, summaries: SummaryStore) -> bool:
        """Whether a part of some document was deleted or changed, and it is not known of which document."""
        now = entries_of(store)
        # Values that are the same objects are not looked into: 100,000 take some milliseconds.
        if now == self._before:
            return False
        if summaries.changes != self._changes:
            # Whoever brings summaries up to date does so for all that has changed.
            self._take(store, summaries)
            return False
        missed = {name for name, value in self._before.items() if now.get(name) != value}
        if not missed:
            self._take(store, summaries)
        whole = {one.id: one for one in _records_of(summaries, missed)}
        return not all(name in whole and _is_of(whole[name], self._before[name]) for name in missed)


def _records_of(summaries: SummaryStore, names: Iterable[str]) -> list[Record]:
    held = summaries.inner.get_by_ids([*names]) if isinstance(summaries.inner, MemoryStore) else []
    return [record for one in held if (record := Record.of(one.metadata))]


def _is_of(record: Record, entry: Any) -> bool:
    """Whether an entry is the whole text that was summarized."""
    return entry is not None and hash_of(_as_document(entry).page_content) == record.text


def _as_document(entry: Any) -> Document:
    if isinstance(entry, Mapping):
        return Document(page_content=entry["text"], metadata=entry["metadata"])
    document: Document = entry
    return document
