from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError
from surerag.services import Encoder


@given(st.lists(st.text(), max_size=5), st.integers(1, 64))
def test_every_row_has_length_one(texts: list[str], dimensions: int) -> None:
    vectors = HashingEncoder(dimensions).encode(texts, "document")
    assert vectors.shape == (len(texts), dimensions)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(texts)))


def test_shared_words_make_texts_similar_whatever_their_case_and_order() -> None:
    a, b, c = HashingEncoder().encode(["Velm on the Orun", "the ORUN, on: velm", "a lake elsewhere"], "query")
    assert a @ b == pytest.approx(1.0)
    assert a @ c < 0.5


@pytest.mark.parametrize(
    ("question", "about_it", "about_another"),
    [
        ("艾达弹什么乐器?", "艾达弹竖琴。", "波是渔夫。"),
        ("エイダはどの楽器を弾きますか?", "エイダは竪琴を弾く。", "ボーは漁師だ。"),
        ("เอดาเล่นเครื่องดนตรีอะไร", "เอดาเล่นพิณ", "โบเป็นชาวประมง"),
        ("Wo liegt Ko\u0308ln?", "Köln liegt am Rhein.", "Bonn auch."),
    ],
)
def test_a_question_finds_its_passage_in_scripts_without_spaces_and_in_either_form_of_an_accent(
    question: str, about_it: str, about_another: str
) -> None:
    encoder = HashingEncoder()
    near, far = encoder.encode([about_it, about_another], "document")
    query = encoder.encode([question], "query")[0]
    assert query @ near > query @ far + 0.1


def test_another_process_makes_the_same_vector() -> None:
    code = "from surerag.encoders import *; print(HashingEncoder(8).encode(['Velm'], 'query').tolist())"
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert other == str(HashingEncoder(8).encode(["Velm"], "query").tolist())


def test_it_is_an_encoder_with_a_name_for_its_size() -> None:
    assert isinstance(HashingEncoder(), Encoder)
    assert HashingEncoder(8).name != HashingEncoder(16).name


def test_no_dimensions_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="dimensions"):
        HashingEncoder(0)
