"""Passages cut from documents: L-RAG, section III-A, tier 2."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from surerag.documents import Document
from surerag.errors import ConfigurationError, check_items
from surerag.messages import Passage
from surerag.text import UNSPACED

Span = tuple[int, int]
_WHOLE_ROWS = 4
"""A row stays whole up to this multiple of a chunk's length."""

# A long word counts for several tokens, as it would for a model, and so does a run without spaces.
_TOKEN = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]{{1,12}}|[^\w\s]")


class TextChunk(NamedTuple):
    """A verbatim piece of a text: ``text[start:end]``."""

    text: str
    start: int
    end: int


def words_and_marks(text: str) -> list[Span]:
    """Return the offsets of words (at most 12 characters a token) and punctuation marks.

    Of scripts without spaces between words, each character is a token.
    """
    return [match.span() for match in _TOKEN.finditer(text)]


def chunk_text(text: str, tokens: int = 100, overlap: int = 20) -> list[TextChunk]:
    """Cut a text into pieces of ``tokens`` words and marks that overlap by ``overlap``.

    Args:
        text: Any text; one without tokens has no pieces.
        tokens: Length of a piece, the last one may be shorter.
        overlap: Tokens that a piece shares with the one before.

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
    spans = words_and_marks(text)
    # A later piece would only repeat the end of the one before.
    latest = max(len(spans) - overlap, 1) if spans else 0
    chunks = []
    for first in range(0, latest, tokens - overlap):
        last = min(first + tokens, len(spans)) - 1
        start, end = spans[first][0], spans[last][1]
        chunks.append(TextChunk(text[start:end], start, end))
    return chunks


def chunk_documents(documents: Iterable[Document], tokens: int = 100, overlap: int = 20) -> list[Passage]:
    """Cut documents into passages; see :func:`chunk_text`.

    Rows of tables stay whole, up to four times ``tokens``, and do not overlap. Each passage of a Markdown
    table begins with the table's header; a row that :func:`~surerag.documents.load_documents` reads has the
    header in itself.

    Returns:
        Passages with the id ``"<document>#<number>"``. Their metadata is the document's, with the keys
        ``document``, ``title``, ``start`` and ``end`` added.
    """
    documents = list(documents)
    check_items(Document, documents, "make one of a text with surerag.documents.Document(id, text)")
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
        for number, chunk in enumerate(_document_chunks(document, tokens, overlap))
    ]


def is_table_rule(line: str) -> bool:
    """Whether a line is the one under the header of a Markdown table.

    Example:
        >>> is_table_rule("| --- | :-: |"), is_table_rule("----")
        (True, False)
    """
    return "|" in line and "---" in line and not line.strip(" \t\n:|-")


def _document_chunks(document: Document, tokens: int, overlap: int) -> Iterator[TextChunk]:
    text = document.text
    if document.rows:
        yield from _row_chunks(text, _paragraphs(text), "", tokens, overlap)
        return
    end = 0
    for table in _tables(text):
        yield from _shifted(chunk_text(text[end : table[0][0]], tokens, overlap), end)
        (start, _), (_, under_header), *rows = table
        yield from _row_chunks(text, rows, text[start:under_header], tokens, overlap)
        end = table[-1][1]
    yield from _shifted(chunk_text(text[end:], tokens, overlap), end)


def _row_chunks(
    text: str, rows: Sequence[Span], header: str, tokens: int, overlap: int
) -> Iterator[TextChunk]:
    """Put as many rows into each chunk as there is room for."""
    limit = max(tokens - len(words_and_marks(header)), 1)
    begun: list[Span] = []
    length = 0
    for row in [*rows, None]:
        size = len(words_and_marks(text[slice(*row)])) if row else 0
        if begun and (row is None or length + size > limit):
            start, end = begun[0][0], begun[-1][1]
            yield TextChunk(header + text[start:end], start, end)
            begun, length = [], 0
        if row and size > _WHOLE_ROWS * tokens:
            yield from _shifted(chunk_text(text[slice(*row)], tokens, overlap), row[0])
        elif row and size:
            begun.append(row)
            length += size


def _shifted(chunks: Iterable[TextChunk], by: int) -> Iterator[TextChunk]:
    for text, start, end in chunks:
        yield TextChunk(text, start + by, end + by)


def _lines(text: str) -> Iterator[Span]:
    """Yield the offsets of lines, with their ends."""
    start = 0
    for line in text.split("\n"):
        yield start, min(start + len(line) + 1, len(text))
        start += len(line) + 1


def _paragraphs(text: str) -> list[Span]:
    paragraphs, start = [], 0
    for paragraph in text.split("\n\n"):
        paragraphs.append((start, start + len(paragraph)))
        start += len(paragraph) + 2
    return paragraphs


def _tables(text: str) -> Iterator[list[Span]]:
    """Yield the lines of each Markdown table with rows: its header, the rule below it, its rows."""
    table: list[Span] = []
    before: Span = (0, 0)
    for line in _lines(text):
        content = text[slice(*line)]
        if table and "|" in content:
            table.append(line)
        elif not table and is_table_rule(content) and text[slice(*before)].strip():
            table = [before, line]
        elif table:
            if len(table) > 2:
                yield table
            table = []
        before = line
    if len(table) > 2:
        yield table
