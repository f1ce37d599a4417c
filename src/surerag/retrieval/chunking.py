"""Passages cut from documents: L-RAG, section III-A, tier 2."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from surerag.documents import Document
from surerag.errors import ConfigurationError
from surerag.messages import Passage
from surerag.text import UNSPACED

Span = tuple[int, int]
Tokenize = Callable[[str], Sequence[Span]]
"""Returns the offsets (start, end) of a text's tokens, in order."""

# A long word counts for several tokens, as it would for a model, and so does a run without spaces.
_TOKEN = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]{{1,12}}|[^\w\s]")


class TextChunk(NamedTuple):
    """A piece of a text as it stands there: ``text[start:end]``."""

    text: str
    start: int
    end: int


def words_and_marks(text: str) -> list[Span]:
    """Return the offsets of words (at most 12 characters a token) and punctuation marks.

    Of scripts without spaces between words, each character is a token.
    """
    return [match.span() for match in _TOKEN.finditer(text)]


def chunk_text(
    text: str, tokens: int = 100, overlap: int = 20, *, tokenize: Tokenize = words_and_marks
) -> list[TextChunk]:
    """Cut a text into pieces of ``tokens`` tokens that overlap by ``overlap``.

    Args:
        text: Any text; one without tokens has no pieces.
        tokens: Length of a piece, the last one may be shorter.
        overlap: Tokens that a piece shares with the one before.
        tokenize: How to count, if not in words and marks: a model's own tokenizer, for instance.

    Returns:
        Pieces in order, verbatim, with offsets in characters. Together they hold every token.

    Raises:
        ConfigurationError: If ``tokens`` is less than 1, or ``overlap`` not in [0, tokens).

    Example:
        >>> [chunk.text for chunk in chunk_text("a b c d e", tokens=3, overlap=1)]
        ['a b c', 'c d e']
    """
    if tokens < 1 or not 0 <= overlap < tokens:
        raise ConfigurationError(
            f"chunks of {tokens} tokens cannot overlap by {overlap}", hint="choose 0 <= overlap < tokens"
        )
    spans = [(start, end) for start, end in tokenize(text) if text[start:end].strip()]
    # A later piece would only repeat the end of the one before.
    latest = max(len(spans) - overlap, 1) if spans else 0
    chunks = []
    for first in range(0, latest, tokens - overlap):
        last = min(first + tokens, len(spans)) - 1
        start, end = spans[first][0], spans[last][1]
        chunks.append(TextChunk(text[start:end], start, end))
    return chunks


def chunk_documents(
    documents: Iterable[Document],
    tokens: int = 100,
    overlap: int = 20,
    *,
    tokenize: Tokenize = words_and_marks,
) -> list[Passage]:
    """Cut documents into passages; see :func:`chunk_text`.

    Returns:
        Passages with the id ``"<document>#<number>"``. Their metadata is the document's, with the keys
        ``document``, ``title``, ``start`` and ``end`` added.
    """
    return [
        Passage(
            chunk.text,
            id=f"{document.id}#{number}",
            metadata={
                **document.metadata,
                "document": document.id,
                "title": document.title,
                "start": chunk.start,
                "end": chunk.end,
            },
        )
        for document in documents
        for number, chunk in enumerate(chunk_text(document.text, tokens, overlap, tokenize=tokenize))
    ]
