"""The faithfulness guard: by overlap and by entailment."""

from __future__ import annotations

import pytest

from surerag.methods.faithfulness import overlap_support

SOURCE = "Ada Voss, a painter of the north, was born in Velm in 1815, near the river Orun."


@pytest.mark.parametrize(
    ("sentence", "support"),
    [
        ("Ada Voss was born in Velm in 1815.", 1.0),
        ("ada voss was born in velm", 1.0),
        ("She was born in Velm.", 1.0),
        ("Ada Voss was born in Orun.", 1.0),
        ("Ada Voss was born in Tarn.", 0.0),
        ("Ada Voss was born in Velm in 1816.", 0.0),
        ("The painter sold everything.", pytest.approx(1 / 3)),
        ("It is.", 1.0),
    ],
)
def test_support_by_overlap(sentence: str, support: float) -> None:
    assert overlap_support(sentence, SOURCE) == support


def test_scripts_without_spaces_are_compared_sign_by_sign() -> None:
    assert overlap_support("東京は日本の首都です", "日本の首都は東京です。") == 1.0
    assert overlap_support("京都は古い", "大阪は新しい") < 0.75
