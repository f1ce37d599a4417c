from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from surerag.documents import Document
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError, ServiceError
from surerag.messages import Passage
from surerag.retrieval import PassageIndex, SummaryIndex
from surerag.retrieval import index as index_module
from surerag.retrieval.index import top_places
from surerag.services import Retriever

CORPUS = [
    Passage("Ada was born in Velm.", id="ada", metadata={"page": 3}),
    Passage("Velm lies on the Orun.", id="velm"),
    Passage("Copper melts at high temperatures.", id="copper"),
]


class Counting(HashingEncoder):
    """An encoder that records its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def encode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> NDArray[np.float32]:
        self.calls.append((kind, len(texts)))
        return super().encode(texts, kind)


class Broken(HashingEncoder):
    """An encoder with fixed vectors."""

    def __init__(self, vectors: NDArray[np.float32]) -> None:
        super().__init__()
        self._vectors = vectors

    def encode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> NDArray[np.float32]:
        return self._vectors


def test_the_best_come_first_with_score_id_and_metadata() -> None:
    index = PassageIndex.from_passages(CORPUS, HashingEncoder())
    first, second = index.retrieve("Where was Ada born?", 2)
    assert (first.id, first.text, first.metadata) == ("ada", "Ada was born in Velm.", {"page": 3})
    assert first.score is not None
    assert second.score is not None
    assert first.score > second.score
    assert CORPUS[0].score is None, "the corpus itself stays as it was"
    assert isinstance(index, Retriever)


def test_it_finds_what_a_full_sort_finds() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(500, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = PassageIndex([Passage(str(i), id=str(i)) for i in range(500)], vectors, Broken(vectors[:1]))
    expected = np.argsort(-(vectors @ vectors[0]))[:7]
    assert [passage.id for passage in index.retrieve("any", 7)] == [str(place) for place in expected]


@given(st.lists(st.sampled_from([0.1, 0.25, 0.5]), min_size=1, max_size=30), st.integers(1, 40))
def test_equal_scores_keep_the_order_of_the_corpus(scores: list[float], k: int) -> None:
    expected = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:k]
    assert top_places(np.array(scores, dtype=np.float32), k).tolist() == expected


def test_float_noise_does_not_decide_between_equal_passages() -> None:
    scores = np.array([0.5, 0.5 + 1e-7, 0.7], dtype=np.float32)
    assert top_places(scores, 2).tolist() == [2, 0]


def test_more_than_there_is_gives_all_there_is() -> None:
    assert len(PassageIndex.from_passages(CORPUS, HashingEncoder()).retrieve("Velm", 99)) == len(CORPUS)


def test_many_queries_are_encoded_at_once_and_found_as_one_by_one() -> None:
    encoder = Counting()
    index = PassageIndex.from_passages(CORPUS, encoder, batch_size=2)
    assert encoder.calls == [("document", 2), ("document", 1)]
    queries = ["Where was Ada born?", "What melts?"]
    together = index.retrieve_many(queries, 2)
    assert encoder.calls[2:] == [("query", 2)]
    assert together == [index.retrieve(query, 2) for query in queries]
    assert index.retrieve_many([], 2) == []


def test_an_empty_corpus_passage_or_query_is_refused() -> None:
    with pytest.raises(InputError, match="no passage to index"):
        PassageIndex.from_passages([], HashingEncoder())
    with pytest.raises(InputError, match="'blank'"):
        PassageIndex.from_passages([*CORPUS, Passage(" \n", id="blank")], HashingEncoder())
    with pytest.raises(InputError, match="expected a query that is not empty"):
        PassageIndex.from_passages(CORPUS, HashingEncoder()).retrieve("  ", 1)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="k must be a whole number"):
        PassageIndex.from_passages(CORPUS, HashingEncoder()).retrieve("Velm", 0)
    with pytest.raises(ConfigurationError, match="batch_size"):
        PassageIndex.from_passages(CORPUS, HashingEncoder(), batch_size=0)


@pytest.mark.parametrize(
    "vectors",
    [np.zeros((2, 4)), np.zeros(3), np.full((3, 4), np.nan)],
    ids=["too few", "one dimension", "not a number"],
)
def test_an_encoder_that_gives_no_vectors_is_named(vectors: NDArray[np.float64]) -> None:
    with pytest.raises(ServiceError, match="expected 3 vectors"):
        PassageIndex.from_passages(CORPUS, Broken(vectors.astype(np.float32)))


def test_another_encoder_for_the_query_is_refused() -> None:
    vectors = HashingEncoder(8).encode([passage.text for passage in CORPUS], "document")
    with pytest.raises(ServiceError, match="16 dimensions, but passages have 8"):
        PassageIndex(CORPUS, vectors, HashingEncoder(16)).retrieve("Velm", 1)


DOCUMENTS = [
    Document("ada", "Ada was born in Velm. She paints. She sings.", "Ada", {"source": "book"}),
    Document("copper", "Copper melts. It is red. It bends.", "Copper"),
]


def test_summaries_are_found_under_their_documents_id() -> None:
    index = SummaryIndex.from_documents(DOCUMENTS, HashingEncoder())
    (found,) = index.retrieve("Where was Ada born?", 1)
    assert (found.id, found.text) == ("ada", "Ada was born in Velm. She paints.")
    assert found.metadata == {"source": "book", "title": "Ada"}


def test_summaries_can_be_made_by_a_function() -> None:
    index = SummaryIndex.from_documents(
        DOCUMENTS, HashingEncoder(), summarize=lambda documents: [one.title for one in documents]
    )
    assert [passage.text for passage in index.passages] == ["Ada", "Copper"]


def test_a_summary_too_few_is_refused() -> None:
    with pytest.raises(ServiceError, match="a summary of each of 2 documents, got 1"):
        SummaryIndex.from_documents(DOCUMENTS, HashingEncoder(), summarize=lambda documents: ["one"])
    with pytest.raises(InputError, match="no passage to index"):
        SummaryIndex.from_documents([], HashingEncoder())


def test_too_many_summaries_are_refused_before_any_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MAX_IN_MEMORY", 1)
    encoder = Counting()
    with pytest.raises(ConfigurationError, match=r"at most 1 documents.*vector store"):
        SummaryIndex.from_documents(DOCUMENTS, encoder)
    assert encoder.calls == []


async def test_an_encoder_that_awaits_is_awaited() -> None:
    class Awaited(HashingEncoder):
        async def aencode(self, texts: Sequence[str], kind: Any) -> Any:
            asked.append(kind)
            return self.encode(texts, kind)

    asked: list[str] = []
    passages = [Passage("Ada was born in Velm.", id="ada"), Passage("Bo came later.", id="bo")]
    awaited = PassageIndex.from_passages(passages, Awaited())
    assert await awaited.aretrieve("Ada", 1) == awaited.retrieve("Ada", 1)
    assert asked == ["query"]
    plain = PassageIndex.from_passages(passages, HashingEncoder())
    assert await plain.aretrieve("Ada", 1) == plain.retrieve("Ada", 1)
    for index in (awaited, plain):
        with pytest.raises(InputError, match="expected a query that is not empty"):
            await index.aretrieve(" ")


def test_one_query_in_the_place_of_several_is_refused() -> None:
    with pytest.raises(InputError, match="expected a list of queries, got a text"):
        PassageIndex.from_passages(CORPUS, HashingEncoder()).retrieve_many("Velm")
