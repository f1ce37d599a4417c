"""Algorithm 2: verbatim chunks, where they part, and the maximum that nothing exceeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from surerag import AdaptiveChunker, Passage
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError, ServiceError
from surerag.methods.adaptive_chunking import SemanticChunk

PROSE = (
    "Velm lies on the Orun, a river that freezes in winter. Dr. Voss measured it twice (cf. p. 12)! "
    "Its mills ground rye; its mills are gone. Ada Thorn was born there in 1913.\n\nShe left for Kest."
)
TABLE = "| City | River | Mills |\n|------|-------|-------|\n" + "\n".join(
    f"| Velm {row} | Orun | {row * 7} |" for row in range(40)
)
CODE = """def flow(river):
    total = 0
    for mill in river.mills:
        total += mill.rate
    return total


class Orun:
    mills = ()
"""
# ruff: noqa: RUF001 - other scripts have commas of their own
CHINESE = "维尔姆位于奥伦河畔。河水在冬天结冰！谁测量过它？阿达于1913年出生在那里，后来她去了凯斯特。" * 5
ARABIC = "تقع فيلم على نهر أورون. يتجمد النهر في الشتاء! هل قاسه أحد؟ وُلِدَت آدا هناك عام ١٩١٣، ثم رحلت." * 5
ENORMOUS = "and the river froze " * 600
NO_SPACES = "orun" * 700
EMOJI = "👩‍🚀é\u0301🇳🇴" * 60
TEXTS = {
    "prose": (PROSE, "en"),
    "table": (TABLE, "en"),
    "code": (CODE * 4, "en"),
    "chinese": (CHINESE, "zh"),
    "chinese, taken for English": (CHINESE.replace("。", "，"), "en"),
    "arabic": (ARABIC, "ar"),
    "one enormous sentence": (ENORMOUS + ".", "en"),
    "no sentence ends": (ENORMOUS, "en"),
    "no white space": (NO_SPACES, "en"),
    "emoji": (EMOJI, "en"),
    "white space only": (" \n\t ", "en"),
    "empty": ("", "en"),
}


def characters(text: str) -> int:
    return len(text)


def byte_pairs(text: str) -> int:
    """As byte-level tokenizers do: two bytes a token, words apart, so that lengths do not add up."""
    return sum(
        (len(word.encode("utf-8", "surrogatepass")) + 1) // 2 for word in re.findall(r"\s*\S+|\s+$", text)
    )


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
    chunker = AdaptiveChunker(HashingEncoder(64), tau, t_max, language, count)
    check(text, chunker.run(text), count or chunker.settings.count, t_max)


@given(
    st.text(alphabet="ab é.!?\n。中\u0301\u200d👩", max_size=60),
    st.integers(4, 20),
    st.sampled_from([-1, 0.2, 1]),
)
def test_any_text(text: str, t_max: int, tau: float) -> None:
    chunker = AdaptiveChunker(HashingEncoder(16), tau, t_max, count_tokens=byte_pairs)
    check(text, chunker.run(text), byte_pairs, t_max)


FOUR = "One is here. Two is here. Three is here. Four is here."


def test_a_sentence_joins_from_tau_on() -> None:
    # Cosines of neighbours: 0.6, 0, 1. The text of the paper says ≥, its algorithm >; we take ≥.
    encoder = Vectors([[1, 0], [0.6, 0.8], [-0.8, 0.6], [-0.8, 0.6]])
    chunks = AdaptiveChunker(encoder, tau=0.6).run(FOUR)
    assert [chunk.text for chunk in chunks] == ["One is here. Two is here.", "Three is here. Four is here."]
    chunks = AdaptiveChunker(encoder, tau=0.61).run(FOUR)
    assert [chunk.text for chunk in chunks] == [
        "One is here.",
        "Two is here.",
        "Three is here. Four is here.",
    ]


def test_a_full_chunk_takes_no_more_however_alike() -> None:
    chunks = AdaptiveChunker(Vectors([[1, 0]] * 4), t_max=8).run(FOUR)
    assert [chunk.tokens for chunk in chunks] == [8, 8]


def test_a_vector_of_zeros_is_like_nothing() -> None:
    assert len(AdaptiveChunker(Vectors([[1, 0], [0, 0], [1, 0], [1, 0]]), tau=0.1).run(FOUR)) == 3


def test_lines_are_kept_whole_where_a_sentence_must_be_cut() -> None:
    chunks = AdaptiveChunker(HashingEncoder(), t_max=60).run(TABLE)
    assert len(chunks) > 1
    assert all(line in TABLE.splitlines() for chunk in chunks for line in chunk.text.splitlines())


def test_accents_and_joined_signs_stay_together() -> None:
    chunks = AdaptiveChunker(HashingEncoder(), t_max=7, count_tokens=characters).run(EMOJI)
    assert not any(chunk.text[0] in "\u0301\u200d" or chunk.text[-1] == "\u200d" for chunk in chunks)


def test_a_quantile_of_the_corpus_sets_tau() -> None:
    encoder = Vectors([[1, 0], [0.6, 0.8], [-0.8, 0.6], [-0.8, 0.6]])
    fitted = AdaptiveChunker(encoder).with_quantile([FOUR], 0.5)
    assert fitted.tau == pytest.approx(0.6)
    assert AdaptiveChunker(encoder).with_quantile([FOUR], 1.0).tau == pytest.approx(1.0)
    with pytest.raises(ConfigurationError, match="quantile"):
        fitted.with_quantile([FOUR], 1.1)
    with pytest.raises(InputError, match="two sentences"):
        fitted.with_quantile(["One.", ""])


def test_documents_become_passages_that_know_their_place() -> None:
    document = Passage(PROSE, id="velm", metadata={"year": 1913}, origin=object())
    first, *rest = AdaptiveChunker(HashingEncoder(), t_max=20).passages([document, Passage("", id="void")])
    assert (first.id, first.origin) == (f"velm@0:{len(first.text)}", document.origin)
    assert first.metadata == {"year": 1913, "document": "velm", "start": 0, "end": len(first.text)}
    assert rest
    assert document.metadata == {"year": 1913}


async def test_sync_async_and_many_agree() -> None:
    chunker = AdaptiveChunker(HashingEncoder(), tau=0.2, t_max=20)
    texts = [PROSE, "", CODE]
    alone = [chunker.run(text) for text in texts]
    assert chunker.run_many(texts) == alone == await chunker.arun_many(texts)
    assert [await chunker.arun(text) for text in texts] == alone


def test_settings_survive_a_dictionary() -> None:
    chunker = AdaptiveChunker(HashingEncoder(), tau=0.25, t_max=99, language="ar")
    assert (
        AdaptiveChunker.from_dict(chunker.to_dict(), encoder=HashingEncoder()).to_dict() == chunker.to_dict()
    )
    with pytest.raises(ConfigurationError, match="unknown"):
        AdaptiveChunker.from_dict({"colour": 1}, encoder=HashingEncoder())


def test_what_cannot_work_says_so() -> None:
    for change in ({"tau": 2}, {"t_max": 0}):
        with pytest.raises(ConfigurationError):
            AdaptiveChunker(HashingEncoder(), **change)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="t_max"):
        AdaptiveChunker(HashingEncoder(), t_max=1, count_tokens=lambda text: len(text.encode())).run("é")
    with pytest.raises(ServiceError, match="vectors"):
        AdaptiveChunker(Vectors([[1, 0]])).run(FOUR)
