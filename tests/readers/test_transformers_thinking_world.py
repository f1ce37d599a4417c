"""A thinking model on the world: decisions, answers and scores are those of the model that does not think."""

from __future__ import annotations

from itertools import pairwise

import pytest

from surerag import LazyRAG, LazyRAGResult, SePer, TransformersReader
from surerag.entailment import ExactEntailer
from surerag.messages import SamplingParams
from tests.readers.thinking_world import THOUGHT, plain_reader, thinking_reader
from world import World
from world.retrievers import BM25Retriever

WORLD = World(seed=4711)
QUESTIONS = WORLD.questions(20)
TEXTS = [question.text for question in QUESTIONS]
RETRIEVER = BM25Retriever(WORLD.passages)
SUMMARY = " ".join(passage.text for passage in WORLD.passages[:3])


def decide(reader: TransformersReader, threshold: float) -> list[LazyRAGResult]:
    rag = LazyRAG(reader, RETRIEVER, SUMMARY, top_n=3, gate_tokens=4, max_tokens=10, threshold=threshold)
    return rag.run_many(TEXTS)


@pytest.fixture(scope="module")
def threshold() -> float:
    """Some questions pass the gate: those below the widest gap."""
    entropies = sorted(result.decision.signal or 0.0 for result in decide(plain_reader(), 1e9))
    low, high = max(pairwise(entropies), key=lambda pair: pair[1] - pair[0])
    return (low + high) / 2


def test_lazy_rag_decides_and_answers_the_same(threshold: float) -> None:
    plain, thinking = (decide(reader, threshold) for reader in (plain_reader(), thinking_reader()))
    assert {result.decision.retrieve for result in plain} == {True, False}
    for one, other in zip(plain, thinking, strict=True):
        assert one.answer == other.answer
        assert one.decision.retrieve == other.decision.retrieve
        assert one.decision.signal == pytest.approx(other.decision.signal, abs=1e-6)


def test_delta_seper_scores_the_same() -> None:
    cases = [
        (question.text, list(question.answers), RETRIEVER.retrieve(question.text, 3))
        for question in QUESTIONS
    ]
    plain, thinking = (
        SePer(reader, ExactEntailer(), n_samples=4, max_tokens=10).run_many(cases)
        for reader in (plain_reader(), thinking_reader())
    )
    assert len({round(result.delta, 3) for result in plain}) > 5
    for one, other in zip(plain, thinking, strict=True):
        assert one.before.seper == pytest.approx(other.before.seper, abs=1e-6)
        assert one.after.seper == pytest.approx(other.after.seper, abs=1e-6)
        assert one.delta == pytest.approx(other.delta, abs=1e-6)


def test_the_thought_is_really_said_and_counted() -> None:
    (one,), (other,) = (
        reader.generate(TEXTS[:1], SamplingParams(max_tokens=10, stop=("\n", ".")))[0]
        for reader in (plain_reader(), thinking_reader())
    )
    assert (one.text, one.finish, one.completion_tokens) == (
        other.text,
        other.finish,
        other.completion_tokens,
    )
    assert (one.thinking_tokens, other.thinking_tokens) == (0, len(THOUGHT))
    assert thinking_reader().capabilities.thinking == "apart"
