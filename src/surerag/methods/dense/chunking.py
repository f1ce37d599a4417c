"""Adaptive semantic chunking: neighbouring sentences that are alike stay together (DENSE-RAG, Algorithm 2).

A chunk is a stretch of its text, verbatim, and never longer than T_max tokens as the given counter counts
them. A sentence that alone is longer is cut: at line breaks, else at white space, else between characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from surerag.effects import Program, embed
from surerag.errors import ConfigurationError, InputError, ServiceError
from surerag.messages import Passage
from surerag.methods.dense.options import SemanticChunkerOptions
from surerag.methods.dense.result import SemanticChunk, Span
from surerag.methods.inputs import check_cut
from surerag.provenance import PROVENANCE_KEY, Stretch, written

_DECIMALS = 6
"""Similarities are compared to this many decimals, so that an encoder's batch size does not decide."""

_LINE_END = re.compile(r"\n\s*")
_SPACE = re.compile(r"\s+")
_JOINERS = "\u200d\ufe0e\ufe0f"


def adaptive_chunks(
    texts: Sequence[str], options: SemanticChunkerOptions
) -> Program[list[list[SemanticChunk]]]:
    """Algorithm 2 on documents; the encoder is asked once for the sentences of all.

    Args:
        texts: Any texts; one without words has no chunks.
        options: What steers the chunking.

    Returns:
        Chunks of each text in order, verbatim, with offsets in characters. Together they hold all but white
        space.

    Raises:
        InputError: If a single character is longer than T_max, or one of them is no text.
        ServiceError: If the encoder returns something else than one vector a sentence.
    """
    check_cut(texts, str)
    sentences = [_pieces(text, options) for text in texts]
    similarities = yield from _neighbours(texts, sentences)
    return [_merged(*document, options) for document in zip(texts, sentences, similarities, strict=True)]


def chunk_passages(documents: Sequence[Passage], options: SemanticChunkerOptions) -> Program[list[Passage]]:
    """Algorithm 2 on documents that are passages.

    Returns:
        Chunks as passages: the id is ``"<document>@<start>:<end>"``, the metadata is the document's with the
        keys ``document``, ``start``, ``end`` and ``provenance`` added.

    Raises:
        InputError: If one of them is something else.
    """
    check_cut(documents, Passage)
    chunked = yield from adaptive_chunks([document.text for document in documents], options)
    return [
        Passage(
            chunk.text,
            id=f"{document.id}@{chunk.start}:{chunk.end}",
            metadata={
                **document.metadata,
                "document": document.id,
                "start": chunk.start,
                "end": chunk.end,
                PROVENANCE_KEY: written(
                    [Stretch(0, len(chunk.text), "exact", 0, chunk.start, chunk.end)], [document.id]
                ),
            },
            origin=document.origin,
        )
        for document, chunks in zip(documents, chunked, strict=True)
        for chunk in chunks
    ]


def quantile_similarity(
    texts: Sequence[str], options: SemanticChunkerOptions, quantile: float
) -> Program[float]:
    """Find the τ that this share of a corpus' neighbouring sentences lies below: encoders differ in scale.

    Args:
        texts: Documents to look at; some dozen will do.
        options: How to split; its τ is not read.
        quantile: In [0, 1]; 0.5 leaves every other sentence with the one before.

    Raises:
        ConfigurationError: If ``quantile`` is out of range.
        InputError: If no document has two sentences.
    """
    if not 0 <= quantile <= 1:
        raise ConfigurationError(f"quantile must be in [0, 1], got {quantile!r}")
    found = yield from _neighbours(texts, [_pieces(text, options) for text in texts])
    similarities = np.concatenate([np.empty(0), *found])
    if not len(similarities):
        raise InputError(
            "no document has two sentences to compare", hint="give documents of several sentences"
        )
    return float(np.round(np.quantile(similarities, quantile), _DECIMALS))


def _merged(
    text: str, sentences: Sequence[Span], similarities: NDArray[np.float64], options: SemanticChunkerOptions
) -> list[SemanticChunk]:
    """Let each sentence join the chunk before it, if it is alike and there is room (Eq. 7)."""
    chunks: list[SemanticChunk] = []
    for at, (start, end) in enumerate(sentences):
        if chunks and similarities[at - 1] >= options.similarity_threshold:
            # Counted as it stands: the length of two sentences together is not the sum of their lengths.
            joined = _chunk(text, Span(chunks[-1].start, end), options)
            if joined.tokens <= options.chunk_size:
                chunks[-1] = joined
                continue
        chunks.append(_chunk(text, Span(start, end), options))
    return chunks


def _chunk(text: str, span: Span, options: SemanticChunkerOptions) -> SemanticChunk:
    piece = text[span.start : span.end]
    return SemanticChunk(piece, span.start, span.end, options.tokens(piece))


def _neighbours(
    texts: Sequence[str], sentences: Sequence[Sequence[Span]]
) -> Program[list[NDArray[np.float64]]]:
    """Cosine of each sentence with the next one of its text; 0 where a vector is zero."""
    wanted = [
        text[start:end]
        for text, spans in zip(texts, sentences, strict=True)
        if len(spans) > 1
        for start, end in spans
    ]
    if not wanted:
        return [np.empty(0) for _ in texts]
    vectors = np.asarray((yield from embed(wanted, "document")), dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) != len(wanted) or not np.isfinite(vectors).all():
        raise ServiceError(
            f"expected {len(wanted)} vectors of finite numbers, got an array of shape {vectors.shape}",
            hint="let the encoder return one vector for each text",
        )
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    found: list[NDArray[np.float64]] = []
    first = 0
    for spans in sentences:
        rows = unit[first : first + len(spans)] if len(spans) > 1 else unit[:0]
        first += len(rows)
        found.append(np.round((rows[:-1] * rows[1:]).sum(axis=1), _DECIMALS))
    return found


def _pieces(text: str, options: SemanticChunkerOptions) -> list[Span]:
    """Return sentences, and in place of those that are too long the pieces of them."""
    spans: list[Span] = []
    for start, end in options.sentences(text):
        if options.tokens(text[start:end]) <= options.chunk_size:
            spans.append(Span(start, end))
        else:
            spans += _cut(text, Span(start, end), options)
    return spans


def _cut(text: str, sentence: Span, options: SemanticChunkerOptions) -> Iterator[Span]:
    """Cut what is too long into pieces that fit, each as long as it may be."""
    start = sentence.start
    while start < sentence.end:
        longest = _longest(text, Span(start, sentence.end), options)
        end = longest if longest == sentence.end else _boundary(text, Span(start, longest), options)
        stripped = text[start:end].rstrip()
        yield Span(start, start + len(stripped))
        start = end + len(text[end : sentence.end]) - len(text[end : sentence.end].lstrip())


def _longest(text: str, span: Span, options: SemanticChunkerOptions) -> int:
    """Return the end of a beginning that fits and cannot be made longer by a character or by doubling."""

    def fits(end: int) -> bool:
        return options.tokens(text[span.start : end]) <= options.chunk_size

    fitting, step = span.start, 1
    while fitting + step <= span.end and fits(fitting + step):
        fitting, step = fitting + step, 2 * step
    too_long = min(fitting + step, span.end + 1)
    while too_long - fitting > 1:
        middle = (fitting + too_long) // 2
        fitting, too_long = (middle, too_long) if fits(middle) else (fitting, middle)
    if fitting == span.start:
        raise InputError(
            f"the character {text[span.start]!r} alone has more than chunk_size={options.chunk_size} tokens",
            hint="raise chunk_size",
        )
    return fitting


def _boundary(text: str, span: Span, options: SemanticChunkerOptions) -> int:
    """Return where best to cut: after a line (of the second half), else a word, else a character."""
    piece = text[span.start : span.end + 1]
    for gap, earliest in ((_LINE_END, len(piece) // 2), (_SPACE, 1)):
        ends = [span.start + match.start() for match in gap.finditer(piece) if match.start() >= earliest]
        for end in reversed(ends):
            if options.tokens(text[span.start : end]) <= options.chunk_size:
                return end
    for end in range(span.end, span.start, -1):
        # An accent, or what joins two signs into one, stays with what stands before it.
        joined = unicodedata.combining(text[end]) or text[end] in _JOINERS or text[end - 1] == "\u200d"
        if not joined and options.tokens(text[span.start : end]) <= options.chunk_size:
            return end
    return span.end
