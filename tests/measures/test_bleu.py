"""Sentence BLEU by hand, and against NLTK's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

from surerag.measures import bleu

WORDS = st.lists(st.sampled_from(["orun", "velm", "ada", "tin"]), min_size=4, max_size=9)


@pytest.mark.parametrize(
    ("answer", "golds", "expected"),
    [
        ("Velm.", ["the Velm"], 1.0),
        ("Velm", ["Orun", "velm"], 1.0),
        ("Orun", ["Velm"], 0.0),
        ("Velm", ["Velm on Orun"], math.exp(1 - 3)),  # too short
        ("", ["Velm"], 0.0),
        ("Velm", [], 0.0),
    ],
)
def test_by_hand(answer: str, golds: list[str], expected: float) -> None:
    assert bleu(answer, golds) == pytest.approx(expected)


@given(WORDS, WORDS)
def test_longer_answers_score_as_with_nltk(answer: list[str], gold: list[str]) -> None:
    expected = sentence_bleu([gold], answer, smoothing_function=SmoothingFunction().method2)
    assert bleu(" ".join(answer), [" ".join(gold)]) == pytest.approx(expected)
