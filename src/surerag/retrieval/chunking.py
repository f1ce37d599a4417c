"""Cut documents into passages, which L-RAG retrieves if summaries are not enough (section III-A)."""

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
"""Maximum length of a table row that is not cut, as a multiple of the length of a chunk."""

# As in a model's tokenizer, a long word counts as several tokens. In scripts without spaces between words,
# each letter is a token.
_TOKEN = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]{{1,12}}|[^\w\s]")


class TextChunk(NamedTuple):
    """A chunk of a text, and the positions where the chunk begins and ends (exclusive) in the text."""

    text: str
    start: int
    end: int


def words_and_marks(text: str) -> list[Span]:
    """Return the start and end of each token of a text: words of up to 12 letters, and punctuation marks.

    Longer words are divided into parts of at most 12 letters. In scripts without spaces between words, each
    character is a token.
    """
    return [match.span() for match in _TOKEN.finditer(text)]


def chunk_text(text: str, tokens: int = 100, overlap: int = 20) -> list[TextChunk]:
    """Cut a text into chunks of a fixed number of tokens; see :func:`words_and_marks` for the tokens.

    Args:
        text: The text; a blank text has no chunks.
        tokens: Number of tokens of a chunk; the last chunk may be shorter.
        overlap: Number of tokens that each chunk repeats from the chunk before.

    Returns:
        Verbatim chunks in order, with their positions in characters.

    Raises:
        ConfigurationError: If ``tokens`` is less than 1, or ``overlap`` is not in [0, tokens).

    Example:
        >>> [chunk.text for chunk in chunk_text("a b c d e", tokens=3, overlap=1)]
        ['a b c', 'c d e']
    """
    if tokens < 1 or not 0 <= overlap < tokens:
        raise ConfigurationError(
            f"chunks of {tokens} tokens cannot overlap by {overlap}", hint="choose 0 <= overlap < tokens"
        )
    spans = words_and_marks(text)
    # A chunk that begins later would only repeat the end of the chunk before.
    latest = max(len(spans) - overlap, 1) if spans else 0
    chunks = []
    for first in range(0, latest, tokens - overlap):
        last = min(first + tokens, len(spans)) - 1
        start, end = spans[first][0], spans[last][1]
        chunks.append(TextChunk(text[start:end], start, end))
    return chunks


def chunk_documents(documents: Iterable[Document], tokens: int = 100, overlap: int = 20) -> list[Passage]:
    """Cut documents into passages of ``tokens`` tokens that share ``overlap`` tokens; see :func:`chunk_text`.

    A row of a table is not cut unless it has more than four times ``tokens`` tokens, and rows do not overlap.
    Each passage of a Markdown table begins with the table's header.

    Returns:
        Passages with ids of the form ``"<document id>#<number>"``. The metadata of a passage are the
        document's metadata, and ``document`` (the document's id), ``title``, ``start`` and ``end``.
    """
    documents = list(documents)
    check_items(Document, documents, "make a Document from a text: surerag.documents.Document(id, text)")
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
    """Return whether a line is the rule below the header of a Markdown table.

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
    limit = max(tokens - len(words_and_marks(header)), 1)
    chunk_rows: list[Span] = []
    length = 0
    for row in [*rows, None]:
        size = len(words_and_marks(text[slice(*row)])) if row else 0
        if chunk_rows and (row is None or length + size > limit):
            start, end = chunk_rows[0][0], chunk_rows[-1][1]
            yield TextChunk(header + text[start:end], start, end)
            chunk_rows, length = [], 0
        if row and size > _WHOLE_ROWS * tokens:
            yield from _shifted(chunk_text(text[slice(*row)], tokens, overlap), row[0])
        elif row and size:
            chunk_rows.append(row)
            length += size


def _shifted(chunks: Iterable[TextChunk], by: int) -> Iterator[TextChunk]:
    for text, start, end in chunks:
        yield TextChunk(text, start + by, end + by)


def _lines(text: str) -> Iterator[Span]:
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
    """Yield the lines of each Markdown table: the header, the rule below the header, and the rows."""
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
