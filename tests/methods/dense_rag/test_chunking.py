"""Algorithm 2: verbatim chunks, where they part, and the maximum that nothing exceeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from surerag import Passage, SemanticChunk, SemanticChunker
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError, ServiceError
from surerag.text import estimated_tokens
from tests.methods.dense_rag.texts import PROSE, TEXTS, byte_pairs, characters


class Vectors:
    """An encoder with the vectors of a list, in order."""

    name = "vectors"
    local = True

    def __init__(self, rows: Sequence[Sequence[float]]) -> None:
        self._rows = np.array(rows, dtype=np.float32)

    def encode(self, texts: Sequence[str], kind: str) -> NDArray[np.float32]:
        return self._rows[: len(texts)]


def check(text: str, chunks: Sequence[SemanticChunk], count: Callable[[str], int], t_max: int) -> None:
    ends, starts = [0, *(chunk.end for chunk in chunks)], [*(chunk.start for chunk in chunks), len(text)]
    assert not any(text[end:start].strip() for end, start in zip(ends, starts, strict=True)), "text is lost"
    assert all(end <= start for end, start in zip(ends, starts, strict=True)), "chunks overlap"
    for chunk in chunks:
        assert chunk.text == text[chunk.start : chunk.end]
        assert chunk.text == chunk.text.strip() != ""
        assert chunk.tokens == count(chunk.text) <= t_max


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(("count", "t_max"), [(None, 12), (characters, 30), (byte_pairs, 25)])
@pytest.mark.parametrize("tau", [-1.0, 0.3])
def test_chunks_are_verbatim_and_never_too_long(
    name: str, count: Callable[[str], int] | None, t_max: int, tau: float
) -> None:
    text, language = TEXTS[name]
    chunker = SemanticChunker(
        HashingEncoder(64), count_tokens=count, similarity_threshold=tau, chunk_size=t_max, language=language
    )
    check(text, chunker.run(text), count or estimated_tokens, t_max)


@given(
    st.text(alphabet="ab é.!?\n。中\u0301\u200d👩", max_size=60),
    st.integers(4, 20),
    st.sampled_from([-1, 0.2, 1]),
)
def test_any_text(text: str, t_max: int, tau: float) -> None:
    chunker = SemanticChunker(
        HashingEncoder(16), count_tokens=byte_pairs, similarity_threshold=tau, chunk_size=t_max
    )
    check(text, chunker.run(text), byte_pairs, t_max)


FOUR = "One is here. Two is here. Three is here. Four is here."


def test_a_sentence_joins_from_tau_on() -> None:
    # Cosines of neighbours: 0.6, 0, 1. The text of the paper says ≥, its algorithm >; we take ≥.
    encoder = Vectors([[1, 0], [0.6, 0.8], [-0.8, 0.6], [-0.8, 0.6]])
    chunks = SemanticChunker(encoder, similarity_threshold=0.6).run(FOUR)
    assert [chunk.text for chunk in chunks] == ["One is here. Two is here.", "Three is here. Four is here."]
    chunks = SemanticChunker(encoder, similarity_threshold=0.61).run(FOUR)
    assert [chunk.text for chunk in chunks] == [
        "One is here.",
        "Two is here.",
        "Three is here. Four is here.",
    ]


def test_a_full_chunk_takes_no_more_and_a_zero_vector_is_like_nothing() -> None:
    chunks = SemanticChunker(Vectors([[1, 0]] * 4), chunk_size=8).run(FOUR)
    assert [chunk.tokens for chunk in chunks] == [8, 8]
    zero = Vectors([[1, 0], [0, 0], [1, 0], [1, 0]])
    assert len(SemanticChunker(zero, similarity_threshold=0.1).run(FOUR)) == 3


def test_a_quantile_of_the_corpus_sets_tau() -> None:
    encoder = Vectors([[1, 0], [0.6, 0.8], [-0.8, 0.6], [-0.8, 0.6]])
    fitted = SemanticChunker(encoder).with_quantile([FOUR], 0.5)
    assert fitted.similarity_threshold == pytest.approx(0.6)
    assert SemanticChunker(encoder).with_quantile([FOUR]).similarity_threshold == pytest.approx(0.8)
    with pytest.raises(ConfigurationError, match="quantile"):
        fitted.with_quantile([FOUR], 1.1)
    with pytest.raises(InputError, match="two sentences"):
        fitted.with_quantile(["One.", ""])


def test_documents_become_passages_with_their_place() -> None:
    document = Passage(PROSE, id="velm", metadata={"year": 1913}, origin=object())
    chunks = SemanticChunker(HashingEncoder(), chunk_size=20).passages([document, Passage("", id="void")])
    assert len(chunks) > 1
    for chunk in chunks:
        start, end = chunk.metadata["start"], chunk.metadata["end"]
        assert (PROSE[start:end], chunk.id, chunk.origin) == (
            chunk.text,
            f"velm@{start}:{end}",
            document.origin,
        )
        assert (chunk.metadata["year"], chunk.metadata["document"]) == (1913, "velm")
    assert document.metadata == {"year": 1913}


def test_what_cannot_work_is_an_error() -> None:
    for change in ({"similarity_threshold": 2}, {"chunk_size": 0}):
        with pytest.raises(ConfigurationError):
            SemanticChunker(HashingEncoder(), **change)
    with pytest.raises(InputError, match="chunk_size"):
        SemanticChunker(HashingEncoder(), chunk_size=1, count_tokens=lambda text: len(text.encode())).run("é")
    with pytest.raises(ServiceError, match="vectors"):
        SemanticChunker(Vectors([[1, 0]])).run(FOUR)
    with pytest.raises(InputError, match="Passage"):
        SemanticChunker(HashingEncoder()).passages([PROSE])  # type: ignore[list-item]
