"""Gates: from a first pass to a score."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag import (
    AbstentionGate,
    DisagreementGate,
    EntropyGate,
    FakeReader,
    FirstPass,
    Gate,
    LazyRAG,
    MarginGate,
)
from surerag.errors import CapabilityError, ConfigurationError, LogprobsError
from surerag.measures import token_entropy
from surerag.messages import EntropyTrace, Generation, TokenTrace
from surerag.methods.shared import meaning_clusters
from surerag.readers.fake import reply
from surerag.readers.protocol import Capabilities
from tests.methods.lazy_rag.corpus import Corpus


def first_pass(*entropies: float, width: float = 0.0, logprob: float = -0.5) -> FirstPass:
    lower = tuple(value - width for value in entropies)
    upper = tuple(value + width for value in entropies)
    entropy = EntropyTrace(lower, upper, exact=width == 0)
    tokens, logprobs = ("t",) * len(entropies), (logprob,) * len(entropies)
    return FirstPass(Generation("t", trace=TokenTrace(tokens, logprobs, entropy)))


def samples(*texts: str) -> FirstPass:
    answers = tuple(map(Generation, texts))
    return FirstPass(answers[0], answers, tuple(meaning_clusters(texts)))


def test_equations_two_and_three_on_distributions() -> None:
    steps = np.array([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3], [1.0, 0.0, 0.0]])
    with np.errstate(divide="ignore"):
        entropies = token_entropy(np.log(steps))
    assert entropies == pytest.approx([1.5 * math.log(2), math.log(3), 0.0])
    score = EntropyGate(n_tokens=2).score(first_pass(*entropies))
    assert score == pytest.approx((1.5 * math.log(2) + math.log(3)) / 2)


@pytest.mark.parametrize(
    ("aggregate", "n_tokens", "score"),
    [("mean", 2, 0.5), ("first", 1, 0.2), ("max", 2, 9), ("greatest_3", 3, 3.4)],
)
def test_each_aggregate_reads_its_tokens(aggregate: Any, n_tokens: int, score: float) -> None:
    gate = EntropyGate(n_tokens=2, aggregate=aggregate)
    assert gate.score(first_pass(0.2, 0.8, 9.0, 0.4)) == pytest.approx(score)
    assert gate.n_tokens == n_tokens


def test_a_short_answer_is_scored_by_what_there_is() -> None:
    assert EntropyGate().score(first_pass(0.2, 0.4)) == pytest.approx(0.3)
    assert EntropyGate().score(first_pass()) is None


@pytest.mark.parametrize(("estimate", "score"), [("lower", 0.4), ("middle", 0.5), ("upper", 0.6)])
def test_an_interval_is_compared_at_the_estimate(estimate: Any, score: float) -> None:
    gate = EntropyGate(estimate=estimate)
    assert gate.score(first_pass(0.5, width=0.1)) == pytest.approx(score)
    assert gate.interval(first_pass(0.5, width=0.1)) == (pytest.approx(0.4), pytest.approx(0.6))


@given(st.floats(-5, -1e-6))
def test_the_margin_lies_within_its_bounds(logprob: float) -> None:
    p = math.exp(logprob)
    lower, upper = MarginGate().interval(first_pass(0.1, 0.1, logprob=logprob)) or (0, 0)
    assert lower == pytest.approx(max(1 - p, 0) if p >= 0.5 else 1 - p)
    assert lower - 1e-12 <= (MarginGate().score(first_pass(0.1, logprob=logprob)) or 0) <= upper + 1e-12


@pytest.mark.parametrize(
    ("texts", "score"),
    [
        (("Velm", "in Velm", "the town of Velm"), 0.0),
        (("Velm", "Velm", "Velm", "Orun", "Orun"), 0.6730),
        (("Velm", "Orun", "Tarn"), math.log(3)),
    ],
)
def test_semantic_entropy_of_samples(texts: tuple[str, ...], score: float) -> None:
    assert DisagreementGate().score(samples(*texts)) == pytest.approx(score, abs=1e-4)


def test_missing_entropies_and_log_probabilities_are_errors() -> None:
    with pytest.raises(LogprobsError, match="without entropies"):
        EntropyGate().score(FirstPass(Generation("a", trace=TokenTrace(("a",), (-1.0,)))))
    for gate in (EntropyGate(), MarginGate()):
        with pytest.raises(LogprobsError, match="without log-probabilities"):
            gate.score(FirstPass(Generation("a")))


@pytest.mark.parametrize(
    "make",
    [
        lambda: EntropyGate(n_tokens=0),
        lambda: EntropyGate(aggregate="median"),  # type: ignore[arg-type]
        lambda: MarginGate(estimate="best"),  # type: ignore[arg-type]
        lambda: DisagreementGate(n_samples=1),
        lambda: DisagreementGate(n_samples=0),
        lambda: EntropyGate(n_samples=3),
        lambda: AbstentionGate(n_samples=3),
        lambda: EntropyGate(n_tokens=True),
        lambda: EntropyGate(threshold=math.nan),
        lambda: LazyRAG(FakeReader(), Corpus(), "Ada.", n_tokens=True),
    ],
)
def test_settings_that_cannot_work_are_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()


def test_a_reader_that_cannot_serve_a_gate_is_refused_with_gates_that_it_can_serve() -> None:
    text = FakeReader(logprob=None, entropy=None)
    for gate in ("entropy", "margin"):
        with pytest.raises(CapabilityError, match=r'no log-probabilities.*gate="abstention"'):
            LazyRAG(text, Corpus(), "Ada.", gate=gate)
    for gate in ("abstention", "semantic_entropy"):
        LazyRAG(text, Corpus(), "Ada.", gate=gate)
    listed = FakeReader(entropy=None, capabilities=Capabilities(logprobs=True, entropy=None))
    with pytest.raises(CapabilityError, match=r'no top log-probabilities.*gate="margin"'):
        LazyRAG(listed, Corpus(), "Ada.")
    LazyRAG(listed, Corpus(), "Ada.", gate="margin")


def test_every_gate_that_an_error_advises_can_be_chosen() -> None:
    bare = FakeReader(logprob=None, entropy=None)
    with pytest.raises(CapabilityError) as refused:
        LazyRAG(bare, Corpus(), "Ada.")
    with pytest.raises(LogprobsError) as missing:
        EntropyGate().score(FirstPass(Generation("a")))
    advised = re.findall(r"""gate=["'](\w+)""", f"{refused.value} {missing.value}")
    assert len(advised) == 2
    for gate in advised:
        LazyRAG(bare, Corpus(), "Ada.", gate=gate)


@dataclass(frozen=True, kw_only=True)
class Hedges(Gate):
    """A gate of a user's own."""

    name: ClassVar[str] = "hedges"
    n_tokens: int | None = None
    value: Any = 1.0

    def score(self, first_pass: FirstPass) -> float | None:
        return self.value if "perhaps" in first_pass.answer.text else 0.0


def test_a_gate_of_ones_own() -> None:
    reader = FakeReader(lambda prompt: "Velm" if "details" in prompt else "perhaps Orun", logprob=None)
    with pytest.raises(ConfigurationError, match="hedges has no default threshold"):
        LazyRAG(reader, Corpus("Velm."), "Ada.", gate=Hedges())
    rag = LazyRAG(reader, Corpus("Velm."), "Ada.", gate=Hedges(threshold=0.5))
    assert rag.run("Where?").decision.reason.startswith("hedges ")
    assert rag.with_options(threshold=2).run("Where?").answer == "perhaps Orun"
    with pytest.raises(ConfigurationError, match="the gate hedges returned nan"):
        LazyRAG(reader, Corpus(), "Ada.", gate=Hedges(threshold=0.5, value=math.nan)).run("Where?")


def test_the_option_and_the_gate_of_a_name_have_the_same_settings() -> None:
    def rag(gate: Any) -> LazyRAG:
        return LazyRAG(FakeReader([reply("Velm")]), Corpus(), "Ada.", gate=gate)

    for gate in (EntropyGate(), MarginGate(), DisagreementGate(), AbstentionGate()):
        assert rag(gate.name).resolved_gate == gate
        assert rag(gate.name).resolved_threshold == rag(gate).resolved_threshold


@pytest.mark.parametrize(
    "settings", [{"n_tokens": 2.5}, {"n_tokens": "8"}, {"n_samples": 1}, {"threshold": math.nan}]
)
def test_a_gate_with_settings_that_are_no_numbers_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        LazyRAG(FakeReader(), Corpus(), summaries="Velm", gate=EntropyGate(**settings))
