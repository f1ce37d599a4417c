"""Text: estimated tokens, abstentions in several languages, control codes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag.messages import Message
from surerag.prompts import with_abstention
from surerag.text import (
    ABSTENTION,
    begins_abstention,
    estimated_tokens,
    is_abstention,
    printable,
    replace_surrogates,
    split_sentences,
)
from tests.languages import PROSE, gpt

CHINESE, THAI = "我不知道。", "ฉันไม่ทราบ"


@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base"])
@pytest.mark.parametrize("language", PROSE)
def test_the_estimate_of_tokens_is_near_what_models_count(language: str, encoding: str) -> None:
    text = PROSE[language]
    real = gpt(encoding)(text)
    assert real / 2.2 <= estimated_tokens(text) <= real * 2.2


@given(st.text(), st.text())
def test_a_text_has_no_fewer_tokens_than_its_beginning(text: str, more: str) -> None:
    assert 0 <= estimated_tokens(text) <= estimated_tokens(text + " " + more)
    assert estimated_tokens(text) <= len(text)


@pytest.mark.parametrize(
    ("answer", "abstention", "expected"),
    [
        ("I do not know", ABSTENTION, True),
        ("I don’t know.", ABSTENTION, True),
        ("I do not know.", "I don't know.", True),
        ("We can't tell: no passage says so.", "We cannot tell.", True),
        ("i do not know!", ABSTENTION, True),
        ("I do not know. The context says nothing of it.", ABSTENTION, True),
        ("I do not know the man, but he was born in Velm.", ABSTENTION, False),
        ("", ABSTENTION, False),
        ("我 不知道", CHINESE, True),
        ("我不知道。文中没有提到。", CHINESE, True),
        ("我不知道他", CHINESE, False),
        ("ฉันไม่ทราบ เพราะไม่มีข้อมูล", THAI, True),
        ("ฉันไม่ทราบชื่อ แต่เธอเล่นพิณ", THAI, False),
        ("لا أعرف، فلا شيء يقول ذلك", "لا أعرف.", True),
        ("Das wei\u00df ich nicht, scho\u0308n.", "Das weiß ich nicht, schön.", True),
        ("**I do not know.** The context says nothing of it.", ABSTENTION, True),
        ("I do not know \u2014 the context says nothing of it.", ABSTENTION, True),
        ("I do not know-how to mend it.", ABSTENTION, False),
        ('I do not know "Tin Roofs", a book.', ABSTENTION, False),
        ("\u00a1No lo s\u00e9! El texto no lo dice.", "\u00a1No lo s\u00e9!", True),
        ("Sorry, I do not know. The context says nothing of it.", "Sorry, I do not know.", True),
        ("I do not know", None, False),
    ],
)
def test_an_abstention_is_recognised_by_its_letters(
    answer: str, abstention: str | None, expected: bool
) -> None:
    assert is_abstention(answer, abstention) is expected


@pytest.mark.parametrize(
    ("beginning", "abstention", "expected"),
    [
        ("I do no", ABSTENTION, True),
        ("我不知", CHINESE, True),
        ("I", ABSTENTION, False),
        ("I do nothing", ABSTENTION, False),
        ("", ABSTENTION, False),
        ("I do not know", None, False),
    ],
)
def test_half_of_an_abstention_is_one(beginning: str, abstention: str | None, expected: bool) -> None:
    assert begins_abstention(beginning, abstention) is expected


def test_the_request_to_abstain_stands_before_the_last_turn() -> None:
    turns = (Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "Where?"))
    *earlier, last = with_abstention(turns, ABSTENTION)
    assert tuple(earlier) == turns[:2]
    assert last == Message("user", f"Where nothing supports an answer, reply only: {ABSTENTION}\nWhere?")
    assert with_abstention(turns, None) == turns


@given(st.text())
def test_sentences_are_pieces_of_their_text(text: str) -> None:
    for sentence in split_sentences(text):
        assert text[sentence.start : sentence.end] == sentence.text == sentence.text.strip()


@given(st.text(st.characters(categories=["Cc", "Cs", "Lu", "Zs"])))
def test_printable_text_holds_no_control_codes_and_can_be_encoded(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert not set(shown) & set(map(chr, (0x1B, 0x9B, 0x07, 0x0D, 0x7F)))
    replace_surrogates(text).encode()


def test_short_texts_in_cyrillic_are_estimated_between_what_models_count() -> None:
    text = "Капитан Орлов родился в Москве в 1815 году."
    counts = sorted(gpt(name)(text) for name in ("cl100k_base", "o200k_base"))
    assert counts[0] <= estimated_tokens(text) <= 1.25 * counts[1]
