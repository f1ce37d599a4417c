"""Thoughts are told from answers, however the text is cut into pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag.readers.thinking import Thoughts, answer_begins

HARMONY = "<|channel|>analysis<|message|>Rhine?<|end|><|start|>assistant<|channel|>final<|message|>"
BEFORE = ["", "<think>Rhine?</think>\n\n", "\n<think></think>", "[THINK]a [1][/THINK]", HARMONY]


@pytest.mark.parametrize("before", BEFORE)
def test_the_answer_begins_after_the_thoughts(before: str) -> None:
    said = before + "Velm <b>."
    at = answer_begins(said)
    assert at is not None
    assert said[at:] == "Velm <b>."


@given(st.sampled_from(BEFORE), st.text(max_size=8), st.lists(st.integers(0, 120), max_size=9))
def test_pieces_make_no_difference(before: str, answer: str, cuts: list[int]) -> None:
    said = before + answer
    places = sorted({0, len(said), *(cut for cut in cuts if cut < len(said))})
    thoughts = Thoughts()
    shown = "".join(thoughts.feed(said[start:end]) for start, end in pairwise(places))
    shown += thoughts.end()
    at = answer_begins(said)
    assert thoughts.begins == at
    assert at is not None
    assert shown == said[at:]


@pytest.mark.parametrize(
    "said", ["<think>Rhine? Velm", "<|channel|>analysis<|message|>Rhine?<|end|>", "[THINK]"]
)
def test_a_text_may_end_inside_the_thoughts(said: str) -> None:
    thoughts = Thoughts()
    assert thoughts.feed(said) + thoughts.end() == ""
    assert thoughts.thinking
    assert thoughts.thought


def test_a_template_may_have_opened_them() -> None:
    assert answer_begins("Rhine?</think>\nVelm", opened=True) == 15
    assert answer_begins("Rhine?", opened=True) is None


@pytest.mark.parametrize("said", ["<thi", "<thirst> is a word", "[T", "<", " ", ""])
def test_what_only_looks_like_a_mark_is_an_answer(said: str) -> None:
    thoughts = Thoughts()
    assert thoughts.feed(said) + thoughts.end() == said
    assert not thoughts.thought
