"""A thinking model behind a server: decisions, answers and scores are those without its thoughts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from surerag import LazyRAG, LazyRAGResult, OpenAIReader, SePer
from surerag.entailment import ExactEntailer
from surerag.world import World
from surerag.world.retrievers import BM25Retriever
from tests.servers.fake_openai import FakeOpenAI, Wire
from tests.servers.thinking_world import THOUGHT, WorldModel, reasoning_parser

pytestmark = pytest.mark.skipif(
    "thinking" not in inspect.signature(OpenAIReader).parameters,
    reason="this OpenAIReader does not tell thoughts from answers",
)

WORLD = World(seed=4711)
QUESTIONS = WORLD.questions(20)
RETRIEVER = BM25Retriever(WORLD.passages)
SUMMARY = " ".join(passage.text for passage in WORLD.passages[:3])
CASES = [(asked.text, asked.answers, RETRIEVER.retrieve(asked.text, 3)) for asked in QUESTIONS]
SERVERS: dict[str, Callable[[Wire], None] | None] = {
    "marks in the content": None,
    "a reasoning parser": reasoning_parser,
}


@contextmanager
def reader_of(*, thinks: bool, parser: Callable[[Wire], None] | None = None) -> Iterator[OpenAIReader]:
    # The option that is tried here; an older reader has none.
    settings: dict[str, Any] = {"thinking": True, "thinking_tokens": 32} if thinks else {}
    with FakeOpenAI(WorldModel(thinks=thinks)) as server:
        server.fault = parser
        yield OpenAIReader(
            "embedded", base_url=server.base_url, vocabulary_size=WorldModel.vocabulary_size, **settings
        )


def decide(reader: OpenAIReader, threshold: float) -> list[LazyRAGResult]:
    rag = LazyRAG(reader, RETRIEVER, SUMMARY, top_n=3, gate_tokens=4, max_tokens=10, threshold=threshold)
    return rag.run_many([asked.text for asked in QUESTIONS])


@pytest.fixture(scope="module")
def threshold() -> float:
    """Some questions pass the gate: those below the widest gap."""
    with reader_of(thinks=False) as reader:
        entropies = sorted(result.decision.signal or 0.0 for result in decide(reader, 1e9))
    low, high = max(pairwise(entropies), key=lambda pair: pair[1] - pair[0])
    return (low + high) / 2


@pytest.fixture(scope="module")
def decided(threshold: float) -> list[LazyRAGResult]:
    with reader_of(thinks=False) as reader:
        return decide(reader, threshold)


@pytest.fixture(scope="module")
def scored() -> list[tuple[float, float]]:
    with reader_of(thinks=False) as reader:
        return scores(reader)


def scores(reader: OpenAIReader) -> list[tuple[float, float]]:
    seper = SePer(reader, ExactEntailer(), n_samples=4, max_tokens=10)
    return [(result.before.seper, result.after.seper) for result in seper.run_many(CASES)]


@pytest.mark.parametrize("server", SERVERS)
def test_lazy_rag_decides_and_answers_the_same(
    server: str, threshold: float, decided: list[LazyRAGResult]
) -> None:
    assert {result.decision.retrieve for result in decided} == {True, False}
    with reader_of(thinks=True, parser=SERVERS[server]) as reader:
        thinking = decide(reader, threshold)
        assert reader.usage.thinking_tokens >= len(QUESTIONS) * (len(THOUGHT) - 3)
    for one, other in zip(decided, thinking, strict=True):
        assert one.answer == other.answer
        assert one.decision.retrieve == other.decision.retrieve
        assert one.decision.signal == pytest.approx(other.decision.signal, abs=1e-6)


@pytest.mark.parametrize("server", SERVERS)
def test_delta_seper_scores_the_same(server: str, scored: list[tuple[float, float]]) -> None:
    with reader_of(thinks=True, parser=SERVERS[server]) as reader:
        for one, other in zip(scored, scores(reader), strict=True):
            assert one == pytest.approx(other, abs=1e-6)
