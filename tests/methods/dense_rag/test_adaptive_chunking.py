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
from tests.languages import PROSE as PROSE_IN
from tests.languages import gpt
from tests.methods.dense_rag.texts import CODE, EMOJI, PROSE, TABLE, TEXTS, byte_pairs, characters


class Vectors:
    """Gives sentences the vectors of a list, in order."""

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
        HashingEncoder(64), count, similarity_threshold=tau, chunk_size=t_max, language=language
    )
    check(text, chunker.run(text), chunker.tokens, t_max)


@given(
    st.text(alphabet="ab é.!?\n。中\u0301\u200d👩", max_size=60),
    st.integers(4, 20),
    st.sampled_from([-1, 0.2, 1]),
)
def test_any_text(text: str, t_max: int, tau: float) -> None:
    chunker = SemanticChunker(HashingEncoder(16), byte_pairs, similarity_threshold=tau, chunk_size=t_max)
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


def test_a_full_chunk_takes_no_more_however_alike() -> None:
    chunks = SemanticChunker(Vectors([[1, 0]] * 4), chunk_size=8).run(FOUR)
    assert [chunk.tokens for chunk in chunks] == [8, 8]


def test_a_vector_of_zeros_is_like_nothing() -> None:
    assert (
        len(SemanticChunker(Vectors([[1, 0], [0, 0], [1, 0], [1, 0]]), similarity_threshold=0.1).run(FOUR))
        == 3
    )


def test_lines_are_kept_whole_where_a_sentence_must_be_cut() -> None:
    chunks = SemanticChunker(HashingEncoder(), chunk_size=60).run(TABLE)
    assert len(chunks) > 1
    assert all(line in TABLE.splitlines() for chunk in chunks for line in chunk.text.splitlines())


@pytest.mark.parametrize("language", ["Chinese", "Japanese", "Thai", "Arabic"])
def test_chunks_are_as_long_in_any_script(language: str) -> None:
    text = " ".join([PROSE_IN[language]] * 40)
    chunks = SemanticChunker(HashingEncoder(), chunk_size=128, similarity_threshold=-1.0).run(text)
    assert "".join(chunk.text for chunk in chunks).replace(" ", "") == text.replace(" ", "")
    assert max(chunk.tokens for chunk in chunks) <= 128
    # By the tokenizers of widespread models they are of that size, and not twenty times as long.
    assert max(gpt("o200k_base")(chunk.text) for chunk in chunks) <= 128 * 1.5
    assert max(gpt("cl100k_base")(chunk.text) for chunk in chunks) <= 128 * 2.2


def test_accents_and_joined_signs_stay_together() -> None:
    chunks = SemanticChunker(HashingEncoder(), chunk_size=7, count_tokens=characters).run(EMOJI)
    assert not any(chunk.text[0] in "\u0301\u200d" or chunk.text[-1] == "\u200d" for chunk in chunks)


def test_a_quantile_of_the_corpus_sets_tau() -> None:
    encoder = Vectors([[1, 0], [0.6, 0.8], [-0.8, 0.6], [-0.8, 0.6]])
    fitted = SemanticChunker(encoder).with_quantile([FOUR], 0.5)
    assert fitted.similarity_threshold == pytest.approx(0.6)
    assert SemanticChunker(encoder).with_quantile([FOUR], 1.0).similarity_threshold == pytest.approx(1.0)
    with pytest.raises(ConfigurationError, match="quantile"):
        fitted.with_quantile([FOUR], 1.1)
    with pytest.raises(InputError, match="two sentences"):
        fitted.with_quantile(["One.", ""])


def test_documents_become_passages_that_know_their_place() -> None:
    document = Passage(PROSE, id="velm", metadata={"year": 1913}, origin=object())
    first, *rest = SemanticChunker(HashingEncoder(), chunk_size=20).passages(
        [document, Passage("", id="void")]
    )
    assert (first.id, first.origin) == (f"velm@0:{len(first.text)}", document.origin)
    end = len(first.text)
    place = {"start": 0, "end": end, "match": "exact", "source": 0, "source_start": 0, "source_end": end}
    assert first.metadata == {
        "year": 1913,
        "document": "velm",
        "start": 0,
        "end": end,
        "provenance": [{**place, "id": "velm"}],
    }
    for chunk in rest:
        [told] = chunk.metadata["provenance"]
        assert PROSE[told["source_start"] : told["source_end"]] == chunk.text
    assert rest
    assert document.metadata == {"year": 1913}


async def test_sync_async_and_many_agree() -> None:
    chunker = SemanticChunker(HashingEncoder(), similarity_threshold=0.2, chunk_size=20)
    texts = [PROSE, "", CODE]
    alone = [chunker.run(text) for text in texts]
    assert chunker.run_many(texts) == alone == await chunker.arun_many(texts)
    assert [await chunker.arun(text) for text in texts] == alone


def test_options_survive_a_dictionary() -> None:
    chunker = SemanticChunker(HashingEncoder(), similarity_threshold=0.25, chunk_size=99, language="ar")
    assert (
        SemanticChunker.from_dict(chunker.to_dict(), encoder=HashingEncoder()).to_dict() == chunker.to_dict()
    )
    with pytest.raises(ConfigurationError, match="unknown"):
        SemanticChunker.from_dict({"colour": 1}, encoder=HashingEncoder())


def test_what_cannot_work_says_so() -> None:
    for change in ({"similarity_threshold": 2}, {"chunk_size": 0}):
        with pytest.raises(ConfigurationError):
            SemanticChunker(HashingEncoder(), **change)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="chunk_size"):
        SemanticChunker(HashingEncoder(), chunk_size=1, count_tokens=lambda text: len(text.encode())).run("é")
    with pytest.raises(ServiceError, match="vectors"):
        SemanticChunker(Vectors([[1, 0]])).run(FOUR)
