"""Semantic chunking: join neighbouring sentences that are similar (DENSE-RAG, Algorithm 2).

A chunk is a verbatim piece of a text. A chunk has at most T_max tokens (the option ``max_tokens``): a longer
sentence is split at white space, or between characters if it has no white space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from surerag.effects import Program
from surerag.errors import ConfigurationError, InputError, kind_of
from surerag.messages import Passage
from surerag.methods.dense.options import SemanticChunkerOptions
from surerag.methods.dense.result import SemanticChunk
from surerag.methods.shared import check_passages, embed_unit
from surerag.text import estimated_tokens, split_sentences

_DECIMALS = 6
"""Number of decimals of similarities; further decimals may depend on the batch size of the encoder."""
Span = tuple[int, int]
Count = Callable[[str], int]


def semantic_chunks(
    texts: Sequence[str], options: SemanticChunkerOptions, count: Count = estimated_tokens
) -> Program[list[list[SemanticChunk]]]:
    """Cut texts into chunks (Algorithm 2); all sentences are embedded in one call.

    The chunks of a text contain the whole text except white space; a blank text has no chunks. ``count``
    counts the tokens of a text. Errors are those of :meth:`surerag.SemanticChunker.program`.
    """
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"expected a text to cut, got {kind_of(text)}", hint="pass a str")
    spans = [_sentences(text, options, count) for text in texts]
    similarities = yield from neighbour_similarities(texts, spans)
    return [_merge(*document, options, count) for document in zip(texts, spans, similarities, strict=True)]


def chunk_passages(documents: Sequence[Passage], options: SemanticChunkerOptions) -> Program[list[Passage]]:
    """Cut documents into passages (Algorithm 2); see :meth:`surerag.SemanticChunker.passages`."""
    check_passages(documents)
    count: Count = getattr(options, "count_tokens", None) or estimated_tokens
    chunked = yield from semantic_chunks([document.text for document in documents], options, count)
    return [
        Passage(
            chunk.text,
            id=f"{document.id}@{chunk.start}:{chunk.end}",
            metadata={**document.metadata, "document": document.id, "start": chunk.start, "end": chunk.end},
            origin=document.origin,
        )
        for document, chunks in zip(documents, chunked, strict=True)
        for chunk in chunks
    ]


def quantile_similarity(
    texts: Sequence[str], options: SemanticChunkerOptions, quantile: float, count: Count = estimated_tokens
) -> Program[float]:
    """Return a quantile of the similarities of neighbouring sentences, for use as the chunker's threshold τ.

    Errors are those of :meth:`surerag.SemanticChunker.with_quantile`.
    """
    if not 0 <= quantile <= 1:
        raise ConfigurationError(f"quantile must be in [0, 1], got {quantile!r}")
    spans = [_sentences(text, options, count) for text in texts]
    similarities = np.concatenate([np.empty(0), *(yield from neighbour_similarities(texts, spans))])
    if not len(similarities):
        raise InputError(
            "no document has two sentences to compare", hint="pass documents of several sentences"
        )
    return float(np.round(np.quantile(similarities, quantile), _DECIMALS))


def _merge(
    text: str,
    spans: Sequence[Span],
    similarities: NDArray[np.float64],
    options: SemanticChunkerOptions,
    count: Count,
) -> list[SemanticChunk]:
    chunks: list[SemanticChunk] = []
    for at, (start, end) in enumerate(spans):
        if chunks and similarities[at - 1] >= options.similarity_threshold:
            joined = text[chunks[-1].start : end]
            if (tokens := count(joined)) <= options.chunk_size:
                chunks[-1] = SemanticChunk(joined, chunks[-1].start, end, tokens)
                continue
        chunks.append(SemanticChunk(text[start:end], start, end, count(text[start:end])))
    return chunks


def neighbour_similarities(
    texts: Sequence[str], spans: Sequence[Sequence[Span]]
) -> Program[list[NDArray[np.float64]]]:
    """Return, for each text, the cosine similarity of each sentence to the next sentence.

    ``spans`` are the positions of each text's sentences. A sentence with a zero vector has the similarity 0.
    """
    sentences = [
        text[start:end]
        for text, pieces in zip(texts, spans, strict=True)
        if len(pieces) > 1
        for start, end in pieces
    ]
    if not sentences:
        return [np.empty(0) for _ in texts]
    unit = yield from embed_unit(sentences, "document")
    similarities = []
    first = 0
    for pieces in spans:
        rows = unit[first : first + len(pieces)] if len(pieces) > 1 else unit[:0]
        first += len(rows)
        similarities.append(np.round((rows[:-1] * rows[1:]).sum(axis=1), _DECIMALS))
    return similarities


def _sentences(text: str, options: SemanticChunkerOptions, count: Count) -> list[Span]:
    return [
        piece
        for sentence in split_sentences(text, options.language)
        for piece in split_span(text, (sentence.start, sentence.end), options.chunk_size, count)
    ]


def split_span(text: str, span: Span, most: int, count: Count) -> Iterator[Span]:
    """Split a span into pieces of at most ``most`` tokens, by halving at the white space next to the middle.

    A span without white space is halved between two characters.

    Example:
        >>> text = "one two three four"
        >>> [text[start:end] for start, end in split_span(text, (0, 18), 2, lambda piece: len(piece.split()))]
        ['one two', 'three four']
    """
    start, end = span
    if count(text[start:end]) <= most:
        yield span
        return
    if end - start == 1:
        raise InputError(
            f"the character {text[start]!r} alone has more than chunk_size={most} tokens",
            hint="pass a larger chunk_size",
        )
    middle = (start + end) // 2
    spaces = [at for at in range(start + 1, end - 1) if text[at].isspace()]
    cut = min(spaces, key=lambda at: abs(at - middle), default=middle)
    for part in ((start, cut), (cut, end)):
        piece = text[slice(*part)]
        left = part[0] + len(piece) - len(piece.lstrip())
        yield from split_span(text, (left, left + len(piece.strip())), most, count)
