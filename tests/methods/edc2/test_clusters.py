"""Which vectors passages are clustered by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from surerag import ClusterCompressor, FakeReader, Passage
from surerag.encoders import HashingEncoder
from surerag.errors import MissingServiceError
from surerag.messages import Event
from tests.methods.edc2.cases import ADA, BO, QUESTION, RIVER, passages, quoting


class CountingEncoder(HashingEncoder):
    """Remembers what it was asked."""

    def __init__(self, dimensions: int = 64) -> None:
        super().__init__(dimensions)
        self.asked: list[tuple[str, int]] = []

    def encode(self, texts: Sequence[str], kind: Any) -> NDArray[np.float32]:
        self.asked.append((kind, len(texts)))
        return super().encode(texts, kind)


def embedded(dimensions: int = 2) -> list[Passage]:
    vectors = np.eye(3, dimensions).tolist()
    return [
        Passage(text, id=str(at), embedding=tuple(vector))
        for at, (text, vector) in enumerate(zip((ADA, BO, RIVER), vectors, strict=True))
    ]


def test_vectors_that_passages_carry_are_used() -> None:
    encoder = CountingEncoder(2)
    reader = FakeReader(quoting)
    tool = ClusterCompressor(reader, encoder, first_cluster_size=1, pass_below=0)
    result = tool.run(QUESTION, embedded(), query_vector=[0.0, 1.0])
    assert encoder.asked == []
    assert result.clusters[0].sources == ("1",)
    tool.run(QUESTION, embedded())
    assert encoder.asked == [("query", 1)]


def test_vectors_that_do_not_fit_the_query_s_are_made_again_with_a_warning() -> None:
    events: list[Event] = []
    encoder = CountingEncoder(64)
    tool = ClusterCompressor(FakeReader(quoting), encoder, pass_below=0)
    tool.with_options(on_event=events.append).run(QUESTION, embedded())
    assert ("document", 3) in encoder.asked
    assert events[0].name == "cluster_compression.embedded_again"


def test_one_passage_without_a_vector_has_all_embedded_alike() -> None:
    encoder = CountingEncoder()
    tool = ClusterCompressor(FakeReader(quoting), encoder, pass_below=0)
    tool.run(QUESTION, [*embedded(), Passage("more", id="x")])
    assert sorted(encoder.asked) == [("document", 4), ("query", 1)]


def test_vectors_without_an_encoder_are_missed_in_words() -> None:
    with pytest.raises(MissingServiceError, match="encoder"):
        ClusterCompressor(FakeReader()).run(QUESTION, passages(ADA, BO))
