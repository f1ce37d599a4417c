"""Convert LangChain's documents to surerag's passages and back, as copies that keep ids and metadata."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any

from langchain_core.documents import Document

from surerag import SENTENCES_KEY, SOURCES_KEY, Passage
from surerag.errors import ServiceError, kind_of

_HINT = "pass LangChain documents; a retriever or a runnable must return a list of LangChain documents"


class Decision(dict[str, Any]):
    """A method's decision in a document's metadata.

    Decisions with the same keys are equal, whatever their values. So a retriever that merges results still
    recognises equal documents.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and self.keys() == other.keys()

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


def passages_of(documents: Iterable[Document] | object) -> list[Passage]:
    """Convert documents to passages; each passage keeps its document as ``origin``."""
    if isinstance(documents, str) or not isinstance(documents, Iterable):
        raise ServiceError(f"expected a list of documents, got {kind_of(documents)}", hint=_HINT)
    return [passage_of(document) for document in documents]


def passage_of(document: Document) -> Passage:
    """Convert a document to a passage, which keeps the document as ``origin``."""
    if not isinstance(document, Document):
        raise ServiceError(f"expected documents, got {kind_of(document)}", hint=_HINT)
    return Passage(
        document.page_content,
        id=document.id or "",
        score=_score(document.metadata),
        metadata=dict(document.metadata),
        origin=document,
    )


def documents_of(passages: Sequence[Passage]) -> list[Document]:
    """Convert passages to documents: copies of their original documents, or else new documents."""
    return [_document(passage) for passage in passages]


def _document(passage: Passage) -> Document:
    metadata = copied_metadata(passage.metadata)
    for key, name in ((SOURCES_KEY, "id"), (SENTENCES_KEY, "source")):
        if metadata.get(key):
            metadata[key] = [_with_none(entry, name) for entry in metadata[key]]
    origin = passage.origin
    if not isinstance(origin, Document):
        return Document(id=passage.id or None, page_content=passage.text, metadata=metadata)
    if origin.page_content == passage.text:
        return origin.model_copy(update={"metadata": metadata})
    # The text has changed: further fields of a subclass, such as an embedding, no longer fit the text.
    return Document(id=origin.id, page_content=passage.text, metadata=metadata)


def _with_none(entry: Any, name: str) -> Any:
    return {**entry, name: entry.get(name) or None} if isinstance(entry, Mapping) else entry


def copied_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy of metadata; values that cannot be copied (a lock, an open file) are shared."""
    copied = dict(metadata)
    for name, value in metadata.items():
        with suppress(Exception):
            copied[name] = copy.deepcopy(value)
    return copied


def _score(metadata: Mapping[str, Any]) -> float | None:
    scores = (metadata.get(name) for name in ("score", "relevance_score"))
    return next((float(one) for one in scores if not isinstance(one, bool) and isinstance(one, Real)), None)
