"""Engines over an LLM that tells nothing of how sure it is: gated by the disagreement of its answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core import PromptTemplate
from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata
from llama_index.core.schema import QueryBundle
from pydantic import PrivateAttr

from llama_index_surerag import (
    GateDecisionEvent,
    LazyRetrievalQueryEngine,
    UncertaintyRewriteQueryEngine,
    UncertaintyRewriteTransform,
)
from surerag import DisagreementGate, any_of
from surerag.entailment import ExactEntailer
from surerag.errors import CapabilityError, ConfigurationError
from tests.llama_index import corpus
from tests.llama_index.core_parts import core
from tests.llama_index.corpus import KNOWN, UNKNOWN, VAGUE
from tests.llama_index.watching import EVENTS
from tests.methods.disagreeing import Guessing, text_reader

SETTINGS: dict[str, Any] = {"top_n": 2, "n_summaries": 1, "gate": "disagreement"}
TELLING = {"Ada was born in Velm": "In Velm", "lake of Mir": "In Mir"}


class TextLLM(CustomLLM):
    """An LLM of a user's own, as Claude's is: text goes in, text comes out."""

    _say: Guessing = PrivateAttr(default_factory=lambda: Guessing(**TELLING))

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="text")

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text=self._say(prompt))

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        words = self._say(prompt).split(" ")
        pieces = [f"{' ' if at else ''}{word}" for at, word in enumerate(words)]
        return iter(
            [
                CompletionResponse(text="".join(pieces[: at + 1]), delta=piece)
                for at, piece in enumerate(pieces)
            ]
        )


def engine(**settings: Any) -> LazyRetrievalQueryEngine:
    return LazyRetrievalQueryEngine.from_args(corpus.index(), TextLLM(), **{**SETTINGS, **settings})


def expected() -> list[Any]:
    reader = text_reader("text", **TELLING)
    lazy = core(reader, gate="disagreement", gate_tokens=8, max_tokens=256)
    return lazy.run_many([KNOWN, UNKNOWN])


async def test_core_and_engine_agree_sync_async_batched_and_streamed() -> None:
    known, unknown = expected()
    assert (known.answer, known.decision.retrieve, unknown.answer) == ("In Velm", False, "In Mir")
    streaming = engine(streaming=True)
    ways = {
        "alone": [engine().query(KNOWN), engine().query(UNKNOWN)],
        "async": [await engine().aquery(KNOWN), await engine().aquery(UNKNOWN)],
        "at once": await asyncio.gather(engine().aquery(KNOWN), engine().aquery(UNKNOWN)),
        "batched": engine().query_many([KNOWN, UNKNOWN]),
        "streamed": [streaming.query(question).get_response() for question in (KNOWN, UNKNOWN)],
        "streamed, async": [
            await (await streaming.aquery(question)).get_response() for question in (KNOWN, UNKNOWN)
        ],
    }
    for way, responses in ways.items():
        for result, response in zip((known, unknown), responses, strict=True):
            told = response.metadata
            assert response.response == result.answer, way
            for name in ("retrieve", "reason", "gate", "unit", "calls", "threshold"):
                assert told[name] == getattr(result.decision, name), (way, name)
            assert told["signal"] == pytest.approx(result.decision.signal), way
            assert told["passage_ids"] == [passage.id for passage in result.passages], way


def test_a_streamed_answer_knows_its_decision_before_its_one_piece() -> None:
    response = engine(streaming=True).query(KNOWN)
    assert (response.metadata["gate"], response.metadata["retrieve"]) == ("disagreement", False)
    assert list(response.response_gen) == ["In Velm"]
    opened = engine(streaming=True).query(UNKNOWN)
    assert list(opened.response_gen) == ["In", " Mir"]


def test_the_event_names_the_gate_and_what_it_cost(spans: Any) -> None:
    engine(n_samples=3).query(UNKNOWN)
    [gate] = [event for event in EVENTS if isinstance(event, GateDecisionEvent)]
    assert (gate.gate, gate.unit, gate.calls, gate.retrieve) == ("disagreement", "nats", 3, True)


def test_a_user_of_such_an_llm_is_told_of_the_gate_and_the_metric() -> None:
    with pytest.raises(CapabilityError, match='gate="disagreement"'):
        engine(gate="entropy")
    with pytest.raises(CapabilityError, match='metric="disagreement"'):
        UncertaintyRewriteQueryEngine.from_args(corpus.index(), TextLLM())


def test_gates_with_settings_entailers_and_functions_go_through_an_engine() -> None:
    by_words = engine(gate=DisagreementGate(n_samples=3))
    assert by_words.query(KNOWN).metadata["calls"] == 3
    judged = engine(same_meaning="entailment", entailer=ExactEntailer())
    assert judged.query(UNKNOWN).metadata["calls"] == 5 + 5 * 4
    hedging = engine(gate=lambda answer: float("Velm" not in answer.text), threshold=0.5)
    assert [hedging.query(question).metadata["retrieve"] for question in (KNOWN, UNKNOWN)] == [False, True]
    with pytest.raises(CapabilityError, match=r"any of \(entropy, disagreement\)"):
        engine(gate=any_of("entropy", "disagreement"))
    with pytest.raises(ConfigurationError, match="gate_tokens is for the gate entropy or margin"):
        engine(gate_tokens=3)
    assert by_words.to_dict()["gate"]["n_samples"] == 3


async def test_a_query_is_rewritten_where_samples_disagree() -> None:
    llm = TextLLM()
    llm._say = Guessing(**{"Rewrite the query": UNKNOWN, **TELLING})
    settings: dict[str, Any] = {"top_n": 1, "metric": "disagreement", "n_samples": 5}
    prompts = {"rewrite": PromptTemplate("Rewrite the query: {query}")}
    engine = UncertaintyRewriteQueryEngine.from_args(corpus.index(), llm, prompts=prompts, **settings)
    for response in (engine.query(KNOWN), await engine.aquery(KNOWN)):
        steps = response.metadata["steps"]
        assert (response.response, steps[0]["outcome"], steps[0]["metric"]) == (
            "In Velm",
            "stop",
            "disagreement",
        )
        assert response.metadata["calls"] == 1 + 5
    response = engine.query(VAGUE)
    assert (response.metadata["steps"][0]["outcome"], response.response) == ("rewrite", "In Mir")
    transform = UncertaintyRewriteTransform(corpus.index(), llm, prompts=prompts, **settings)
    assert transform.run(QueryBundle(VAGUE)).embedding_strs == [UNKNOWN]
