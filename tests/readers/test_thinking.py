"""Thoughts are separated from answers, however the text is cut into pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from surerag.errors import LogprobsError
from surerag.readers.logprobs import answer_tokens, trace_of_answer
from surerag.readers.pieces import ThoughtSplitter, begun_thoughts, mentions_thoughts, split_thoughts

HARMONY = "<|channel|>analysis<|message|>Rhine?<|end|><|start|>assistant<|channel|>final<|message|>"
ANSWERS = st.text(max_size=8).filter(lambda text: "<|" not in text)  # Harmony's marks are single tokens
BEFORE = ["", "<think>Rhine?</think>\n\n", "\n<think></think>", "[THINK]a [1][/THINK]", HARMONY]


@pytest.mark.parametrize("before", BEFORE)
def test_the_answer_begins_after_the_thoughts(before: str) -> None:
    assert split_thoughts(before + "Velm <b>.")[1] == "Velm <b>."


@example("", "<think>", [])
@given(st.sampled_from(BEFORE), ANSWERS, st.lists(st.integers(0, 120), max_size=9))
def test_pieces_make_no_difference(before: str, answer: str, cuts: list[int]) -> None:
    text = before + answer
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    whole, pieces = ThoughtSplitter(), ThoughtSplitter()
    at_once = whole.feed(text) + whole.end()
    shown = "".join(pieces.feed(text[start:end]) for start, end in pairwise(places)) + pieces.end()
    assert (pieces.begins, shown) == (whole.begins, at_once)


@pytest.mark.parametrize(
    "text", ["<think>Rhine? Velm", "<|channel|>analysis<|message|>Rhine?<|end|>", "[THINK]"]
)
def test_a_text_may_end_inside_the_thoughts(text: str) -> None:
    splitter = ThoughtSplitter()
    assert splitter.feed(text) + splitter.end() == ""
    assert (splitter.thinking, splitter.has_thoughts) == (True, True)


@pytest.mark.parametrize("end", ["<|return|>", "<|call|>\n", "<|end|>"])
def test_the_mark_of_harmonys_end_is_no_answer(end: str) -> None:
    for pieces in ([f"<|channel|>final<|message|>Velm{end}"], ["<|channel|>final<|message|>", "Velm", end]):
        splitter = ThoughtSplitter()
        assert "".join(map(splitter.feed, pieces)) + splitter.end() == splitter.answer == "Velm"


def test_a_template_may_begin_the_thoughts() -> None:
    for text, answer in (("Rhine?</think>\nVelm", "Velm"), ("Rhine?", "")):
        splitter = ThoughtSplitter(opening_mark="<think>")
        assert splitter.feed(text) + splitter.end() == answer == splitter.answer
        assert splitter.thoughts == "Rhine?"
    assert begun_thoughts("assistant\n<think>\n") == "<think>"
    assert mentions_thoughts("{{ content.split('</think>')[-1] }}")


@pytest.mark.parametrize("text", ["<thi", "<thirst> is a word", "[T", "<", " ", ""])
def test_what_only_looks_like_a_mark_is_an_answer(text: str) -> None:
    splitter = ThoughtSplitter()
    assert splitter.feed(text) + splitter.end() == text
    assert not splitter.has_thoughts


@pytest.mark.parametrize(
    ("tokens", "answer", "expected"),
    [
        (["Ve", "lm"], "Velm", (0, 2)),
        ([" Velm", ".", "</s>"], "Velm.", (0, 2)),
        (["<think>", "Velm?", "</", "think>", "\n\n", "Velm", "<|im_end|>"], "Velm", (5, 6)),
        (["<|channel|>", "final", "<|message|>", "Velm", "<|return|>"], "Velm", (3, 4)),
        ([" Flu", "\\xc3", "\ufffd"], "Fluß", (0, 3)),
        ([b"\xe2\x80", b"\x9cHi"], "\u201cHi", (0, 2)),
        (["Write", " \\xc3", "."], "Write \\xc3.", (0, 3)),
        (["Velm", ".\nQuestion"], "Velm.", (0, 2)),
        ([], "", (0, 0)),
    ],
)
def test_tokens_of_the_answer_are_those_that_spell_it(
    tokens: list[str | bytes], answer: str, expected: tuple[int, int]
) -> None:
    assert answer_tokens(tokens, answer) == range(*expected)


def test_tokens_of_thoughts_without_marks_are_dropped() -> None:
    assert answer_tokens(["Velm", "?", " Yes", "Velm"], "Velm", thought=True) == range(3, 4)


def test_white_space_between_thoughts_and_answer_is_no_part_of_the_trace_if_a_server_omits_the_thoughts() -> (
    None
):
    entries = [{"token": token, "logprob": -0.5} for token in ("\n\n", "Ve", "lm")]
    assert trace_of_answer(entries, "Velm", thought=True).tokens == ("Ve", "lm")


@pytest.mark.parametrize(("tokens", "answer"), [(["one", " two"], "one two three"), (["Orun"], "Velm")])
def test_refuses_tokens_that_spell_another_text(tokens: list[str], answer: str) -> None:
    with pytest.raises(LogprobsError, match="do not spell"):
        answer_tokens(tokens, answer)
