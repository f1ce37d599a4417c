"""The entropy gate."""

from __future__ import annotations

from typing import Any

import pytest

from surerag.errors import ConfigurationError, LogprobsError
from surerag.methods.lazy_rag.gate import EntropyGate
from surerag.types import EntropyTrace, TokenTrace


def trace(*values: float, width: float = 0.0) -> TokenTrace:
    low, high = tuple(v - width for v in values), tuple(v + width for v in values)
    return TokenTrace(("t",) * len(values), (-0.5,) * len(values), EntropyTrace(low, high, exact=width == 0))


@pytest.mark.parametrize(("aggregate", "signal"), [("mean", 0.5), ("first", 0.2), ("max", 9.0)])
def test_aggregates_look_at_what_they_say(aggregate: Any, signal: float) -> None:
    gate = EntropyGate(threshold=0.4, tokens=2, aggregate=aggregate)
    decision = gate.decide(trace(0.2, 0.8, 9.0))
    assert decision.entropy == pytest.approx(signal)
    assert decision.retrieve is (signal > 0.4)


def test_at_the_threshold_the_gate_stays_shut() -> None:
    assert EntropyGate(threshold=0.5).decide(trace(0.5)).retrieve is False
    assert EntropyGate(threshold=0.5).decide(trace(0.5000001)).retrieve is True


def test_a_short_answer_is_judged_by_what_there_is() -> None:
    assert EntropyGate(tokens=8).decide(trace(0.2, 0.4)).entropy == pytest.approx(0.3)


def test_an_empty_answer_opens_the_gate() -> None:
    decision = EntropyGate().decide(trace())
    assert (decision.retrieve, decision.entropy) == (True, None)


@pytest.mark.parametrize(("estimate", "signal"), [("lower", 0.4), ("middle", 0.5), ("upper", 0.6)])
def test_an_interval_is_decided_on_the_estimate_and_reported_whole(estimate: Any, signal: float) -> None:
    decision = EntropyGate(threshold=0.45, estimate=estimate).decide(trace(0.5, width=0.1))
    assert decision.entropy == pytest.approx(signal)
    assert (decision.lower, decision.upper) == (pytest.approx(0.4), pytest.approx(0.6))
    assert decision.exact is False
    assert decision.retrieve is (signal > 0.45)


def test_missing_entropies_are_an_error() -> None:
    with pytest.raises(LogprobsError, match="without entropies"):
        EntropyGate().decide(None)
    with pytest.raises(LogprobsError, match="without entropies"):
        EntropyGate().decide(TokenTrace(("a",), (-1.0,)))


@pytest.mark.parametrize(
    "settings",
    [
        {"threshold": -1.0},
        {"threshold": float("nan")},
        {"tokens": 0},
        {"aggregate": "median"},
        {"estimate": "best"},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        EntropyGate(**settings)
