"""A gate's decisions and a measure's scores are those of the answer, whatever was thought before it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.servers.providers import ProviderServer, provider
from tests.servers.toy_model import ToyModel

from surerag import LazyRAG, Passage, SePer
from surerag.entailment import ExactEntailer
from surerag.methods.lazy_rag.component import FixedSummary
from surerag.readers.hosted import OpenAIReader

QUESTIONS = ["Where is Velm?", "Who was Ada?", "Which river?", "Is Tarn old?"]
TOGETHER = ["vllm-qwen3", "vllm-qwen3-raw", "gpt-oss-raw"]


def reader_of(server: ProviderServer) -> OpenAIReader:
    return OpenAIReader(
        server.personality.model, base_url=server.url, vocabulary_size=ToyModel.vocabulary_size
    )


def decisions(name: str, *, streamed: bool = False) -> list[tuple[str, Any]]:
    with provider(name) as server:
        rag = LazyRAG(
            reader_of(server),
            FixedSummary("Velm lies on the Orun."),
            "Ada was born.",
            threshold=2.25,
            max_tokens=20,
        )
        if streamed:
            return [(asyncio.run(rag.arun(question)).answer, "") for question in QUESTIONS]
        return [(result.answer, result.decision) for result in map(rag.run, QUESTIONS)]


@pytest.mark.parametrize("name", [*TOGETHER, "cerebras", "ollama"])
def test_a_gate_decides_as_without_thoughts(name: str) -> None:
    expected = decisions("gpt-4o")
    assert {decision.retrieve for _, decision in expected} == {True, False}
    assert decisions(name) == expected
    assert [answer for answer, _ in decisions(name, streamed=True)] == [answer for answer, _ in expected]


def scores(name: str) -> list[Any]:
    with provider(name) as server:
        seper = SePer(reader_of(server), ExactEntailer(), n_samples=4, max_tokens=5)
        found = [seper.run(question, ["Velm"], [Passage("Velm is old.")]) for question in QUESTIONS]
    return [(result.delta, result.before, result.after) for result in found]


@pytest.mark.parametrize("name", TOGETHER)
def test_a_measure_scores_as_without_thoughts(name: str) -> None:
    assert scores(name) == scores("gpt-4o")
