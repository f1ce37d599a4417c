"""L-RAG with gates that see samples: what is asked, what it costs, and what comes of it."""

from __future__ import annotations

import asyncio
import json
import math
import warnings
from typing import Any

import numpy as np
import pytest

from surerag import (
    DisagreementGate,
    FakeReader,
    FunctionGate,
    LazyRAG,
    any_of,
)
from surerag.decisions.calibrating import calibrate
from surerag.decisions.policy import CalibrationWarning
from surerag.entailment import ExactEntailer
from surerag.errors import CapabilityError, ConfigurationError, MissingServiceError
from surerag.messages import Event, Generation
from surerag.readers.fake import reply
from surerag.readers.protocol import Capabilities
from tests.methods.disagreeing import text_reader
from tests.methods.lazy_rag.corpus import Corpus

KNOWN, UNKNOWN = "Where was Ada born?", "Where was Bo born?"


def pipeline(reader: Any = None, **settings: Any) -> LazyRAG:
    if reader is None:
        reader = text_reader(Ada="Velm", details="in Tarn by the river")
    return LazyRAG(
        reader, Corpus("Bo was born in Tarn."), "A summary.", **{"gate": "disagreement"} | settings
    )


def test_samples_that_agree_are_the_answer_and_nothing_more_is_asked() -> None:
    rag = pipeline()
    result = rag.run(KNOWN)
    decision = result.decision
    assert (result.answer, decision.retrieve, decision.gate, decision.unit) == (
        "Velm",
        False,
        "disagreement",
        "nats",
    )
    assert decision.signal == decision.lower == decision.upper == pytest.approx(0.5004, abs=1e-4)
    assert (decision.calls, decision.tokens, decision.threshold) == (5, 5, 0.65)
    assert (result.completion_tokens, result.retrievals) == (5, 0)
    [call] = rag.reader.history  # type: ignore[attr-defined]
    assert (call.verb, call.sampling.n, call.sampling.temperature, call.sampling.trace) == (
        "generate",
        5,
        1.0,
        "none",
    )
    # The prompt was read once for all samples.
    assert result.prompt_tokens == result.generation.prompt_tokens


def test_samples_that_disagree_open_the_gate_and_their_cost_stands_in_the_decision() -> None:
    events: list[Event] = []
    rag = pipeline(on_event=events.append)
    result = rag.run(UNKNOWN)
    assert (result.answer, result.decision.retrieve, result.retrievals) == ("in Tarn by the river", True, 1)
    assert result.decision.signal == pytest.approx(math.log(5))
    assert (result.decision.calls, result.decision.tokens, result.completion_tokens) == (5, 5, 5 + 5)
    gate = json.loads(json.dumps(dict(events[0].data)))
    assert (gate["gate"], gate["calls"], gate["reason"]) == (
        "disagreement",
        5,
        "disagreement above threshold",
    )


@pytest.mark.parametrize("question", [KNOWN, UNKNOWN])
@pytest.mark.parametrize(
    "gate", ["disagreement", DisagreementGate(n_samples=3), any_of("disagreement", "entropy")]
)
def test_every_way_of_running_gives_the_same(question: str, gate: Any) -> None:
    def rag() -> LazyRAG:
        if gate in ("disagreement", DisagreementGate(n_samples=3)):
            return pipeline(gate=gate)
        return pipeline(FakeReader(text_reader(Ada="Velm")._default), gate=gate)  # type: ignore[arg-type]

    def key(result: Any) -> tuple[Any, ...]:
        return result.answer, result.decision, result.passages, result.prompt_tokens, result.completion_tokens

    alone = key(rag().run(question))
    assert key(asyncio.run(rag().arun(question))) == alone
    assert [key(result) for result in rag().run_many([question])] == [alone]
    assert [key(result) for result in asyncio.run(rag().arun_many([question]))] == [alone]
    stream = rag().stream(question)
    assert stream.announced.decision == alone[1]
    assert "".join(stream) == alone[0]
    assert key(stream.result) == alone

    async def streamed() -> tuple[str, Any]:
        stream = await rag().astream(question)
        assert stream.announced.decision == alone[1]
        return "".join([piece async for piece in stream]), stream.result

    text, result = asyncio.run(streamed())
    assert (text, key(result)) == (alone[0], alone)


def test_an_answer_that_is_there_already_is_streamed_as_one_piece_and_may_be_dropped() -> None:
    reader = text_reader(Ada="in the old town of Velm")
    assert list(pipeline(reader).stream(KNOWN)) == ["in the old town of Velm"]
    dropped = pipeline(reader).stream(KNOWN)
    dropped.close()
    assert list(dropped) == []


def test_samples_that_fail_free_what_was_begun() -> None:
    class Failing(FakeReader):
        def generate(self, prompts: Any, sampling: Any) -> Any:
            raise TimeoutError("no samples today")

    reader = Failing(["a b c d e f g h i j k"] * 2)
    with pytest.raises(TimeoutError):
        pipeline(reader, gate=any_of("entropy", "disagreement")).run(KNOWN)
    assert reader.open_handles == 0


def test_a_reader_without_log_probabilities_is_told_of_the_gate_that_needs_none() -> None:
    for gate in ("entropy", "margin"):
        with pytest.raises(CapabilityError, match='Pass gate="disagreement", which needs text only'):
            pipeline(text_reader(), gate=gate)
    with pytest.raises(CapabilityError, match="any of"):
        pipeline(text_reader(), gate=any_of("disagreement", "entropy"))
    # Modes without a gate need nothing.
    pipeline(text_reader(), gate="entropy", mode="strong")


def test_a_server_that_lists_no_alternatives_serves_the_margin() -> None:
    can = Capabilities(logprobs=True, entropy=None, begin="native", stream=True)
    reader = FakeReader([reply("Velm", logprobs=-0.01)], entropy=None, capabilities=can)
    with pytest.raises(CapabilityError, match=r'lists no alternatives.*gate="margin"'):
        pipeline(reader, gate="entropy")
    result = pipeline(reader, gate="margin").run(KNOWN)
    assert (result.answer, result.decision.retrieve, result.decision.unit) == ("Velm", False, "probability")
    lower, upper = 1 - math.exp(-0.01), 2 * (1 - math.exp(-0.01))
    assert (result.decision.lower, result.decision.upper) == (pytest.approx(lower), pytest.approx(upper))


def test_by_entailment_an_entailer_is_needed_and_asked_and_counted() -> None:
    settings: dict[str, Any] = {"same_meaning": "entailment", "n_samples": 3}
    with pytest.raises(MissingServiceError, match="needs an entailer"):
        pipeline(**settings)
    with pytest.raises(ConfigurationError, match="asks no entailer"):
        pipeline(entailer=ExactEntailer())
    result = pipeline(entailer=ExactEntailer(), **settings).run(UNKNOWN)
    assert result.decision.calls == 3 + 6
    rag = pipeline(entailer=ExactEntailer(), **settings)
    assert rag.to_dict()["entailer"] == "exact"


def test_a_function_gates_by_what_the_reader_says() -> None:
    def hedges(answer: Generation) -> float:
        return float("perhaps" in answer.text)

    rag = pipeline(FakeReader(["perhaps Orun", "Velm"], logprob=None), gate=hedges, threshold=0.5)
    decision = rag.run(KNOWN).decision
    assert (decision.retrieve, decision.gate, decision.reason) == (True, "hedges", "hedges above threshold")
    assert rag.signal == "hedges of the answer (3 summaries)"
    with pytest.raises(ConfigurationError, match="hedges has no default threshold"):
        pipeline(gate=hedges)
    several = FunctionGate(lambda samples: len({s.text for s in samples}), threshold=1, n_samples=2)
    assert pipeline(gate=several).run(UNKNOWN).decision.signal == 2
    assert pipeline(gate=several).run(KNOWN).answer == "Velm"


def test_calibration_on_disagreement_meets_its_budget_in_steps_and_belongs_to_the_gate() -> None:
    def reader() -> FakeReader:
        # Of ten questions, the i-th splits its five samples in i % 3 + 1 ways, most of them one.
        def say(prompt: str) -> str:
            ways = int(prompt.split("case ")[1][0]) % 3 + 1
            said[prompt] = said.get(prompt, -1) + 1
            return ("Velm", "Orun", "Tarn")[min(said[prompt] % 5, ways - 1)]

        said: dict[str, int] = {}
        return FakeReader(say, logprob=None, name="one")

    questions = [f"case {at}" for at in range(9)]
    rag = pipeline(reader())
    signals = [result.decision.signal for result in rag.with_options(threshold=math.inf).run_many(questions)]
    levels = sorted({value for value in signals if value is not None})
    assert levels == pytest.approx([0.0, 0.5004, 0.9503], abs=1e-4)
    rows = rag.rows(questions)
    for budget in np.linspace(0, 1, 11):
        found = calibrate(rag, rows, target="budget", budget=float(budget), confidence=0.6)
        assert found.rate <= budget + 1e-9
        # The very number that was measured: what ties with it stays shut.
        assert found.threshold in levels or found.rate in (0, 1)
        again = pipeline(reader(), threshold=found).run_many(questions)
        assert np.mean([result.decision.retrieve for result in again]) == pytest.approx(found.rate)
    half = calibrate(rag, rows, target="budget", budget=0.5, confidence=0.6)
    assert half.rate == pytest.approx(1 / 3)
    with pytest.raises(ConfigurationError, match="5 samples at temperature 1, same words"):
        pipeline(reader(), threshold=half, n_samples=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipeline(reader(), threshold=half)


def test_where_every_threshold_loses_too_much_all_retrieve_though_most_samples_agree() -> None:
    """Signals of exactly 0 are no rarity here: a threshold of 0 would leave the gate shut for them."""
    rag = pipeline(FakeReader(lambda prompt: "Velm" if "details" in prompt else "Orun", logprob=None))
    with pytest.warns(CalibrationWarning, match="agree on all 2 questions"):
        found = calibrate(rag, rag.rows([KNOWN, UNKNOWN], [["Velm"]] * 2))
    assert (found.rate, found.loss, found.verdict) == (1.0, 0.0, "infeasible")
    assert found.threshold < 0
    assert all(result.decision.retrieve for result in rag.with_options(threshold=found).run_many([KNOWN]))
    with pytest.raises(ConfigurationError, match="threshold must be at least 0 nats, got -1"):
        rag.with_options(threshold=-1.0)


@pytest.mark.parametrize(
    "gate", ["disagreement", DisagreementGate(n_samples=7), any_of("margin", "disagreement")]
)
def test_settings_survive_a_round_trip(gate: Any) -> None:
    rag = pipeline(FakeReader(["Velm"]), gate=gate)
    plain = json.loads(json.dumps(rag.to_dict()))
    again = LazyRAG.from_dict(plain, reader=rag.reader, retriever=rag.retriever, summaries=rag.summaries)
    assert again.gate == rag.gate
    assert again.identity == rag.identity
