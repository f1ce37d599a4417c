"""BERTScore by hand."""

from __future__ import annotations

import numpy as np
import pytest

from surerag.encoders import packaged_minilm
from surerag.measures import bert_score


def test_each_token_takes_its_nearest() -> None:
    answer, gold = np.eye(3)[:2], np.array([[1, 0, 0], [0.6, 0.8, 0], [0, 0, 1]])
    precision, recall = (1 + 0.8) / 2, (1 + 0.8 + 0) / 3
    assert bert_score(answer, gold) == pytest.approx(2 * precision * recall / (precision + recall))
    assert bert_score(np.zeros((0, 3)), gold) == 0.0


def test_the_packaged_encoder_gives_vectors_of_tokens() -> None:
    encoder = packaged_minilm()
    velm, same, other = encoder.encode_tokens(["Ada was born in Velm", "In Velm, Ada was born", "Tin melts"])
    assert np.linalg.norm(velm, axis=1) == pytest.approx(np.ones(len(velm)), abs=1e-5)
    assert bert_score(velm, velm) == pytest.approx(1.0)
    assert bert_score(velm, same) > bert_score(velm, other) + 0.2
    assert encoder.encode_tokens([]) == []
