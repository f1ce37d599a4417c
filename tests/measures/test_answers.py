"""Normalised string measures."""

from __future__ import annotations

import pytest

from surerag.measures import exact_match, normalize_answer, same_answer, token_f1


@pytest.mark.parametrize(
    ("answer", "golds", "match", "f1"),
    [
        ("The Orun!", ["orun"], True, 1.0),
        ("Orun", ["Velm", "the river Orun"], False, 2 / 3),
        ("Velm", ["Orun"], False, 0.0),
        ("", ["Orun"], False, 0.0),
        ("the", ["a"], True, 1.0),
        ("Orun Orun", ["Orun"], False, 2 / 3),
        ("维尔姆。", ["维尔姆"], True, 1.0),
        ("维尔姆市", ["维尔姆"], False, 6 / 7),
        ("สงขลา", ["เมืองสงขลา"], False, 2 / 3),
        ("¿Velm?", ["«Velm»"], True, 1.0),
        ("القيثارة؟", ["القيثارة"], True, 1.0),
        ("वीणा।", ["वीणा"], True, 1.0),
        ("Ko\u0308ln…", ["Köln"], True, 1.0),
    ],
)
def test_hand_worked(answer: str, golds: list[str], match: bool, f1: float) -> None:
    assert exact_match(answer, golds) is match
    assert token_f1(answer, golds) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("维尔姆", "在维尔姆市。", True),
        ("维尔姆", "在奥伦市。", False),
        ("ベルム", "「ベルム」で生まれた", True),
        ("สงขลา", "เกิดที่สงขลา", True),
        ("វែលម៍", "នៅវែលម៍", True),
        ("서울", "서울.", True),
    ],
)
def test_where_words_are_not_spaced_letters_in_a_row_are_the_same(
    first: str, second: str, same: bool
) -> None:
    assert same_answer(first, second) is same is same_answer(second, first)


def test_no_gold_answer_matches_nothing() -> None:
    assert exact_match("Orun", []) is False
    assert token_f1("Orun", []) == 0.0


def test_articles_inside_words_stay() -> None:
    assert normalize_answer("Theatre  a-la\nthe carte") == "theatre ala carte"
