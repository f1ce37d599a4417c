"""Gates: what each one sees, what it makes of it, and several of them together."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from surerag import (
    CombinedGate,
    DisagreementGate,
    EntropyGate,
    FirstPass,
    FunctionGate,
    Gate,
    GateDecision,
    LazyRAGOptions,
    Look,
    MarginGate,
    Measured,
    all_of,
    any_of,
)
from surerag.errors import ConfigurationError, LogprobsError
from surerag.measures import semantic_entropy
from surerag.messages import EntropyTrace, Generation, TokenTrace
from surerag.options import plain


def trace(*values: float, width: float = 0.0, logprob: float = -0.5) -> TokenTrace:
    low, high = tuple(v - width for v in values), tuple(v + width for v in values)
    return TokenTrace(("t",) * len(values), (logprob,) * len(values), EntropyTrace(low, high, width == 0))


def begun(found: TokenTrace | None) -> FirstPass:
    return FirstPass(Generation("t", trace=found, completion_tokens=0 if found is None else len(found)))


def decided(gate: Gate, seen: FirstPass, threshold: float | None = None) -> GateDecision:
    return gate.decide(seen, gate.threshold_for(threshold))


def sampled(*clusters: int, texts: tuple[str, ...] = ("Velm", "Orun", "Tarn", "Ada", "Bo")) -> FirstPass:
    return FirstPass(
        None, tuple(Generation(texts[at], completion_tokens=1) for at in clusters), tuple(clusters)
    )


def labels(most: int = 10) -> st.SearchStrategy[list[int]]:
    """Clusters as they are numbered: each new one by the next number."""

    def numbered(raw: list[int]) -> list[int]:
        names = {value: place for place, value in enumerate(dict.fromkeys(raw))}
        return [names[value] for value in raw]

    return st.lists(st.integers(0, 4), min_size=2, max_size=most).map(numbered)


@pytest.mark.parametrize(("aggregate", "signal"), [("mean", 0.5), ("first", 0.2), ("max", 9.0)])
def test_aggregates_look_at_what_they_say(aggregate: Any, signal: float) -> None:
    gate = EntropyGate(threshold=0.4, tokens=2, aggregate=aggregate)
    decision = decided(gate, begun(trace(0.2, 0.8, 9.0)))
    assert decision.signal == pytest.approx(signal)
    assert decision.retrieve is (signal > 0.4)
    assert gate.look.n_tokens == {"mean": 2, "first": 1, "max": None}[aggregate]


def test_at_the_threshold_the_gate_stays_shut() -> None:
    assert decided(EntropyGate(), begun(trace(0.5)), 0.5).retrieve is False
    assert decided(EntropyGate(), begun(trace(0.5000001)), 0.5).retrieve is True


def test_a_short_answer_is_judged_by_what_there_is() -> None:
    assert decided(EntropyGate(tokens=8), begun(trace(0.2, 0.4))).signal == pytest.approx(0.3)


@pytest.mark.parametrize("gate", [EntropyGate(), MarginGate(), FunctionGate(len, threshold=0.0)])
def test_an_empty_answer_opens_the_gate_at_any_threshold(gate: Gate) -> None:
    decision = decided(gate, FirstPass(Generation("", trace=trace())), math.inf)
    assert (decision.retrieve, decision.signal, decision.reason) == (True, None, "empty first answer")


@pytest.mark.parametrize(("estimate", "signal"), [("lower", 0.4), ("middle", 0.5), ("upper", 0.6)])
def test_an_interval_is_decided_on_the_estimate_and_reported_whole(estimate: Any, signal: float) -> None:
    gate = EntropyGate(threshold=0.45, estimate=estimate)
    decision = decided(gate, begun(trace(0.5, width=0.1)))
    assert decision.signal == pytest.approx(signal)
    assert (decision.lower, decision.upper) == (pytest.approx(0.4), pytest.approx(0.6))
    assert decision.exact is False
    assert decision.retrieve is (signal > 0.45)


def test_missing_entropies_and_log_probabilities_are_an_error() -> None:
    for found in (None, TokenTrace(("a",), (-1.0,))):
        with pytest.raises(LogprobsError, match="without entropies"):
            EntropyGate().measure(begun(found))
    with pytest.raises(LogprobsError, match="without log-probabilities"):
        MarginGate().measure(begun(None))


@given(st.lists(st.floats(-5.0, 0.0), min_size=1, max_size=12), st.integers(1, 12))
def test_the_want_of_margin_is_an_interval_around_every_margin_that_fits(
    logprobs: list[float], tokens: int
) -> None:
    found = TokenTrace(("t",) * len(logprobs), tuple(logprobs))
    signal, lower, upper, exact = MarginGate(tokens=tokens).measure(begun(found))
    first = np.exp(logprobs[:tokens])
    for second in (np.zeros_like(first), np.minimum(first, 1 - first), np.minimum(first, 1 - first) / 2):
        want = float((1 - (first - second)).mean())
        assert lower is not None and upper is not None and signal is not None
        assert lower - 1e-9 <= want <= upper + 1e-9
    assert signal == pytest.approx((lower + upper) / 2)
    assert not exact
    assert MarginGate().look == Look(8, "logprobs", "logprobs")


@given(labels())
def test_disagreement_is_the_entropy_of_equally_likely_samples(clusters: list[int]) -> None:
    gate = DisagreementGate(n_samples=len(clusters))
    signal, lower, upper, exact = gate.measure(sampled(*clusters))
    shares = [1 / len(clusters)] * len(clusters)
    assert signal == lower == upper == pytest.approx(semantic_entropy(shares, clusters))
    assert exact
    assert signal is not None
    assert 0 <= signal <= math.log(len(clusters)) + 1e-12
    assert (signal == 0) == (len(set(clusters)) == 1)
    assert (signal == pytest.approx(math.log(len(clusters)))) == (len(set(clusters)) == len(clusters))


@given(st.integers(2, 40), st.randoms(use_true_random=False))
def test_samples_that_fall_apart_in_the_same_way_tie_exactly(n: int, random: Any) -> None:
    gate = DisagreementGate(n_samples=n)
    clusters = [random.randrange(4) for _ in range(n)]
    shuffled = random.sample([(7, 2, 5, 0)[label] for label in clusters], n)
    texts = tuple("abcdefgh")
    assert gate.measure(sampled(*clusters, texts=texts)) == gate.measure(sampled(*shuffled, texts=texts))
    assert gate.measure(sampled(*[0] * n)).signal == 0.0


def test_by_default_about_two_thirds_of_the_samples_have_to_agree() -> None:
    shut = [(0, 0, 1), (0, 0, 0, 0, 1), (0, 0, 0, 0, 0, 0, 0, 0, 1, 2)]
    open_ = [(0, 1, 2), (0, 0, 0, 1, 1), (0, 0, 0, 1, 2), (0, 0, 0, 0, 0, 0, 0, 1, 1, 2)]
    for clusters in (*shut, *open_):
        decision = decided(DisagreementGate(n_samples=len(clusters)), sampled(*clusters))
        assert decision.retrieve is (clusters in open_), clusters
        assert (decision.gate, decision.unit, decision.threshold) == ("disagreement", "nats", 0.65)
        assert (decision.calls, decision.tokens) == (len(clusters), len(clusters))


def test_samples_that_mostly_say_nothing_open_the_gate() -> None:
    seen = sampled(0, 0, 1, texts=("", "Velm"))
    assert decided(DisagreementGate(n_samples=3), seen, math.inf).reason == "empty first answer"


@pytest.mark.parametrize(
    ("gate", "settings"),
    [
        (EntropyGate, {"threshold": -1.0}),
        (EntropyGate, {"threshold": float("nan")}),
        (EntropyGate, {"tokens": 0}),
        (EntropyGate, {"aggregate": "median"}),
        (EntropyGate, {"estimate": "best"}),
        (MarginGate, {"tokens": 0}),
        (MarginGate, {"estimate": "best"}),
        (DisagreementGate, {"threshold": -0.1}),
        (DisagreementGate, {"n_samples": 1}),
        (DisagreementGate, {"temperature": 0.0}),
        (DisagreementGate, {"same_meaning": "letters"}),
        (FunctionGate, {"function": "entropy"}),
        (FunctionGate, {"function": len, "n_samples": -1}),
        (CombinedGate, {"rule": "most", "gates": (EntropyGate(), MarginGate())}),
        (CombinedGate, {"rule": "any", "gates": (EntropyGate(),)}),
        (CombinedGate, {"rule": "any", "gates": (EntropyGate(), len)}),
        (CombinedGate, {"rule": "any", "gates": (EntropyGate(), FunctionGate(len))}),
        (CombinedGate, {"rule": "any", "gates": (EntropyGate(), FunctionGate(len, threshold=-1.0))}),
        (CombinedGate, {"rule": "all", "gates": (DisagreementGate(), DisagreementGate(temperature=0.5))}),
    ],
)
def test_settings_that_cannot_work_are_refused(gate: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        gate(**settings)


def test_a_function_sees_the_answer_or_the_samples_and_says_a_number() -> None:
    seen = FirstPass(Generation("in Velm"), (Generation("a"), Generation("b"), Generation("c")), (0, 1, 2))
    assert FunctionGate(lambda answer: len(answer.text)).measure(seen).signal == 7
    assert FunctionGate(len, n_samples=2).measure(seen).signal == 2
    with pytest.raises(ConfigurationError, match="the gate len has no default threshold"):
        FunctionGate(len).threshold_for(None)
    for wrong in ("no number", math.nan, True):
        with pytest.raises(ConfigurationError, match="where a number was expected"):
            FunctionGate(lambda answer, value=wrong: value).measure(seen)


quarters = st.integers(0, 12).map(lambda value: value / 4)


@given(st.lists(st.tuples(quarters, quarters), min_size=2, max_size=4))
def test_any_and_all_open_as_their_members_say(pairs: list[tuple[float, float]]) -> None:
    """Signals and thresholds on a grid, so that a quotient is above 1 iff its parts are in that order."""
    members = tuple(
        FunctionGate(lambda _, value=signal: value, threshold=threshold, n_tokens=4)
        for signal, threshold in pairs
    )
    seen = begun(trace(0.1))
    opened = [decided(member, seen).retrieve for member in members]
    assert opened == [signal > threshold for signal, threshold in pairs]
    assert decided(any_of(*members), seen).retrieve is any(opened)
    assert decided(all_of(*members), seen).retrieve is all(opened)


@pytest.mark.parametrize(
    ("rule", "said", "opens"), [(any_of, False, True), (all_of, True, False), (all_of, False, True)]
)
def test_a_member_to_which_nothing_was_said_is_open(rule: Any, said: bool, opens: bool) -> None:
    gate = rule(EntropyGate(), FunctionGate(lambda samples: 0.0, threshold=1.0, n_samples=2))
    samples = tuple(Generation("Velm" if said else "") for _ in range(2))
    assert decided(gate, FirstPass(Generation("", trace=trace()), samples, (0, 0))).retrieve is opens


def test_gates_that_decide_together_look_once_and_each_sees_what_it_asked_for() -> None:
    gate = any_of("entropy", DisagreementGate(n_samples=3), DisagreementGate(n_samples=5), "margin")
    assert gate.look == Look(8, "entropy", "entropy", 5, 1.0, 0, "words")
    assert gate.name == "any of (entropy, disagreement, disagreement, margin)"
    seen = FirstPass(begun(trace(0.1, logprob=-0.01)).answer, *_parts(sampled(0, 0, 0, 1, 2)))
    # Three samples agree, five do not; above 1 means above a threshold.
    assert DisagreementGate(n_samples=3).measure(seen).signal == 0
    assert decided(gate, seen).signal == pytest.approx(0.9503 / 0.65, abs=1e-3)
    assert decided(gate, seen).calls == 6


def _parts(seen: FirstPass) -> tuple[Any, Any]:
    return seen.samples, seen.clusters


@given(st.floats(0.1, 3.0), st.floats(0.1, 3.0), st.floats(0.1, 3.0))
def test_the_interval_of_several_gates_holds_their_signal(one: float, other: float, width: float) -> None:
    assume(one > width)
    for rule in (any_of, all_of):
        found = rule(EntropyGate(threshold=other), MarginGate()).measure(begun(trace(one, width=width)))
        assert found.lower <= found.signal <= found.upper
        assert not found.exact


class Shortness(Gate):
    """A gate of one's own."""

    name = "shortness"
    signal = "1 / length"
    look = Look(4)

    def measure(self, seen: FirstPass) -> Measured:
        assert seen.answer is not None
        return Measured(1 / len(seen.answer.text))


def test_a_gate_of_ones_own_decides_once_it_has_a_threshold() -> None:
    gate = Shortness()
    with pytest.raises(ConfigurationError, match="shortness has no default threshold"):
        gate.threshold_for(None)
    assert decided(gate, FirstPass(Generation("Velm")), 0.2).reason == "shortness above threshold"
    assert LazyRAGOptions(gate=gate, threshold=-3).boundary() == -3


def test_a_gate_by_name_takes_its_settings_from_the_options_and_from_no_others() -> None:
    assert LazyRAGOptions(gate_tokens=3, aggregate="max", estimate="upper").gate_in_force == EntropyGate(
        1.0, 3, "max", "upper"
    )
    assert LazyRAGOptions(gate="margin", gate_tokens=3).gate_in_force == MarginGate(tokens=3)
    options = LazyRAGOptions(gate="disagreement", n_samples=3, same_meaning="entailment")
    assert options.gate_in_force == DisagreementGate(n_samples=3, same_meaning="entailment")
    assert LazyRAGOptions(gate=len, threshold=2).gate_in_force == FunctionGate(len)
    for wrong in (
        {"gate": "disagreement", "gate_tokens": 3},
        {"gate": "margin", "aggregate": "max"},
        {"n_samples": 3},
        {"gate": DisagreementGate(), "n_samples": 3},
    ):
        with pytest.raises(ConfigurationError, match="is for the gate"):
            _ = LazyRAGOptions(**wrong).gate_in_force
    with pytest.raises(ConfigurationError, match="gate must be one of entropy, margin, disagreement"):
        LazyRAGOptions(gate="perplexity")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gate", "threshold"),
    [
        ("entropy", 1.0),
        ("margin", 0.5),
        ("disagreement", 0.65),
        (EntropyGate(0.3), 0.3),
        (any_of("entropy", "disagreement"), 1.0),
        (FunctionGate(len, threshold=4), 4),
    ],
)
def test_the_default_threshold_belongs_to_the_gate(gate: Any, threshold: float) -> None:
    assert LazyRAGOptions(gate=gate).boundary() == threshold
    assert LazyRAGOptions(gate=gate, threshold=7).boundary() == 7


@pytest.mark.parametrize(
    "gate",
    [
        "disagreement",
        EntropyGate(0.3, 4, "first", "upper"),
        MarginGate(tokens=2),
        DisagreementGate(n_samples=7, same_meaning="entailment"),
        all_of(any_of("entropy", "margin"), DisagreementGate(n_samples=3)),
    ],
)
def test_gates_are_written_down_and_read_again(gate: Any) -> None:
    written = json.loads(json.dumps(plain(gate)))
    assert LazyRAGOptions.OPTIONS["gate"].checked(written) == gate


@pytest.mark.parametrize("gate", [len, FunctionGate(len), DisagreementGate(same_meaning=str.__eq__)])
def test_a_function_in_a_gate_goes_by_its_name_and_has_to_be_given_again(gate: Any) -> None:
    written = json.loads(json.dumps(plain(gate)))
    assert "len" in str(written) or "__eq__" in str(written)
    with pytest.raises(ConfigurationError):
        LazyRAGOptions.OPTIONS["gate"].checked(written)
