"""Normalised string measures."""

from __future__ import annotations

import pytest

from surerag.measures import exact_match, normalize_answer, token_f1


@pytest.mark.parametrize(
    ("answer", "golds", "match", "f1"),
    [
        ("The Orun!", ["orun"], True, 1.0),
        ("Orun", ["Velm", "the river Orun"], False, 2 / 3),
        ("Velm", ["Orun"], False, 0.0),
        ("", ["Orun"], False, 0.0),
        ("the", ["a"], True, 1.0),
        ("Orun Orun", ["Orun"], False, 2 / 3),
    ],
)
def test_hand_worked(answer: str, golds: list[str], match: bool, f1: float) -> None:
    assert exact_match(answer, golds) is match
    assert token_f1(answer, golds) == pytest.approx(f1)


def test_no_gold_answer_matches_nothing() -> None:
    assert exact_match("Orun", []) is False
    assert token_f1("Orun", []) == 0.0


def test_articles_inside_words_stay() -> None:
    assert normalize_answer("Theatre  a-la\nthe carte") == "theatre ala carte"
