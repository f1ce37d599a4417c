"""LangChain's documents and surerag's passages: copies either way, nothing lost, nothing changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from langchain_core.documents import Document

from surerag.errors import ServiceError
from surerag.types import Passage

_SCORES = ("score", "relevance_score")


class Decision(dict[str, Any]):
    """How a document came to be chosen. Two of these are equal, for it is no part of what a document is."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decision) or dict.__eq__(self, other)

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
            hint="give a retriever, or a runnable from a question to a list of documents",
        )
    return Passage(
        document.page_content,
        id=document.id or "",
        score=_score(document.metadata),
        metadata=dict(document.metadata),
        origin=document,
    )


def _document(passage: Passage) -> Document:
    metadata = dict(passage.metadata)
    if isinstance(passage.origin, Document):
        return passage.origin.model_copy(update={"page_content": passage.text, "metadata": metadata})
    return Document(id=passage.id or None, page_content=passage.text, metadata=metadata)


def _score(metadata: dict[str, Any]) -> float | None:
    """Return the score that a retriever or reranker left in the metadata; there is no other place for it."""
    found = next((metadata[name] for name in _SCORES if name in metadata), None)
    try:
        # Rerankers leave numpy's numbers as well as Python's.
        return None if found is None or isinstance(found, bool | str) else float(found)
    except (TypeError, ValueError):
        return None
