"""Whether documents are still in a retriever's local store as they were when they were summarized."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from langchain_surerag.stores import MemoryStore, Record, SummaryStore, hash_of

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
        if was is None or _is_of(record, now) or not _is_of(record, was):
            return ""
        return "deleted" if now is None else "changed"

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
    if entry is None:
        return False
    return hash_of(entry["text"] if isinstance(entry, Mapping) else entry.page_content) == record.text
