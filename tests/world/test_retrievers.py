"""Retrievers of graded quality are graded."""

from __future__ import annotations

import pytest

from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError
from surerag.types import Passage
from surerag.world import Question, World
from surerag.world.retrievers import BM25Retriever, TruncatedRetriever, graded_retrievers


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=6, size=60)


def _recall(retriever: object, questions: tuple[Question, ...]) -> float:
    found = 0
    for question in questions:
        names = {p.id for p in retriever.retrieve(question.text, 3)}  # type: ignore[attr-defined]  # any of five
        found += question.gold_passages[0] in names
    return found / len(questions)


def test_exact_is_perfect_and_random_is_hopeless(world: World) -> None:
    questions = world.questions(60, ["single-hop"])
    retrievers = graded_retrievers(world, questions, HashingEncoder())
    recall = {name: _recall(retriever, questions) for name, retriever in retrievers.items()}
    assert recall["exact"] == 1.0
    assert recall["random"] < 0.1 < recall["BM25"]
    assert recall["dense, truncated"] <= recall["dense"] + 0.1


def test_the_exact_one_knows_rewrites_too(world: World) -> None:
    questions = world.questions(10, ["under-specified"])
    exact = graded_retrievers(world, questions, HashingEncoder())["exact"]
    for question in questions:
        assert question.rewrite is not None
        for text in (question.text, question.rewrite):
            assert exact.retrieve(text, 2)[0].id == question.gold_passages[0]


def test_bm25_agrees_with_values_worked_by_hand() -> None:
    retriever = BM25Retriever(
        [Passage("red cat", id="a"), Passage("red dog", id="b"), Passage("blue", id="c")]
    )
    best = retriever.retrieve("cat", 3)
    # idf = ln(1 + 2.5 / 1.5); length 2 against a mean of 5/3, so the term weighs 2.2 / (1 + 1.2 * 1.15).
    assert best[0].id == "a"
    assert best[0].score == pytest.approx(0.98083 * 2.2 / 2.38, abs=1e-4)
    assert [p.score for p in best[1:]] == [0.0, 0.0]


def test_truncated_retrieval_returns_whole_passages(world: World) -> None:
    retriever = TruncatedRetriever(world.passages, HashingEncoder(), words=4)
    for passage in retriever.retrieve("anything", 5):
        assert passage.text == world.passage[passage.id].text
    with pytest.raises(ConfigurationError):
        TruncatedRetriever(world.passages, HashingEncoder(), words=0)
