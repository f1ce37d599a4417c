"""Gates on the tokens of an answer's beginning: L-RAG's own, on entropy, and one on the margin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from surerag.errors import ConfigurationError, LogprobsError
from surerag.measures import margin_bounds
from surerag.messages import TokenTrace
from surerag.methods.lazy_rag.gate import FirstPass, Gate, Look, Measured

Aggregate = Literal["mean", "max", "first"]
Estimate = Literal["lower", "middle", "upper"]


@dataclass(frozen=True, slots=True)
class EntropyGate(Gate):
    """L-RAG's gate: retrieve iff the aggregated entropy of the first n tokens exceeds τ (Eq. 3 and 4).

    Attributes:
        threshold: τ, in nats, where the option ``threshold`` is not set.
        tokens: n of Eq. 3; the paper does not state it. An answer that is shorter is judged by what
            there is.
        aggregate: ``"mean"`` (Eq. 3), ``"max"`` (section III-A: "at any generation step"; it has to see
            the whole answer), or ``"first"`` (the first token alone).
        estimate: Which point of the interval to decide on, where entropies are bounded, not exact.
    """

    threshold: float = 1.0
    tokens: int = 8
    aggregate: Aggregate = "mean"
    estimate: Estimate = "middle"

    def __post_init__(self) -> None:
        """Check the settings."""
        self.threshold_for(None)
        _check_tokens(self.tokens)
        _check_choice("aggregate", self.aggregate, get_args(Aggregate))
        _check_choice("estimate", self.estimate, get_args(Estimate))

    @property
    def name(self) -> str:
        """What decisions call it."""
        return "entropy"

    @property
    def signal(self) -> str:
        """What is compared with the threshold."""
        what = {
            "mean": f"mean entropy of {self.tokens} tokens",
            "max": "largest entropy",
            "first": "first entropy",
        }
        return f"{what[self.aggregate]}, {self.estimate} estimate"

    @property
    def unit(self) -> str:
        """Of the signal."""
        return "nats"

    @property
    def least(self) -> float:
        """Smallest entropy."""
        return 0.0

    @property
    def default_threshold(self) -> float:
        """The gate's own τ."""
        return self.threshold

    @property
    def look(self) -> Look:
        """The beginning of the answer, with entropies."""
        n_tokens = {"mean": self.tokens, "max": None, "first": 1}[self.aggregate]
        return Look(n_tokens, trace="entropy", needs="entropy")

    def measure(self, seen: FirstPass) -> Measured:
        """Aggregate the entropies of the answer's beginning.

        Raises:
            LogprobsError: If there are none.
        """
        trace = _trace(seen)
        if trace is None or trace.entropy is None:
            raise LogprobsError(
                "the first pass came back without entropies",
                hint="use a reader that promises them, and a server that returns top log-probabilities",
            )
        if len(trace) == 0:
            return Measured(None, exact=trace.entropy.exact)
        ends = (trace.entropy.lower, trace.entropy.middle, trace.entropy.upper)
        return _estimated(self.estimate, *map(self.aggregated, ends), exact=trace.entropy.exact)

    def aggregated(self, entropies: Sequence[float]) -> float:
        """Aggregate entropies of an answer's steps: H̄ = (1/n) Σ H(t) over the first n (Eq. 3).

        Example:
            >>> EntropyGate(tokens=2).aggregated([1.0, 2.0, 9.0])
            1.5
            >>> EntropyGate(aggregate="max").aggregated([1.0, 2.0, 9.0])
            9.0
        """
        seen = np.asarray(entropies[: self.look.n_tokens], dtype=np.float64)
        return float(seen.max() if self.aggregate == "max" else seen.mean())


@dataclass(frozen=True, slots=True)
class MarginGate(Gate):
    """Retrieve iff the two likeliest tokens lie close together, on average over the first n tokens.

    The signal is the want of margin, 1 − (p₁ − p₂). A trace holds the probability of the token that was
    generated, which in a greedy first pass is p₁; of p₂ it follows only where it must lie, so the signal is
    an interval (:func:`surerag.measures.margin_bounds`). It needs no alternatives to the tokens that were
    generated, and so serves where a server lists none.

    Attributes:
        threshold: Where the option ``threshold`` is not set: the likeliest token leads by less than half of
            all probability. It is from no paper; calibrate it.
        tokens: n; an answer that is shorter is judged by what there is.
        estimate: Which point of the interval to decide on; ``"lower"`` is the mean of 1 − p₁.
    """

    threshold: float = 0.5
    tokens: int = 8
    estimate: Estimate = "middle"

    def __post_init__(self) -> None:
        """Check the settings."""
        self.threshold_for(None)
        _check_tokens(self.tokens)
        _check_choice("estimate", self.estimate, get_args(Estimate))

    @property
    def name(self) -> str:
        """What decisions call it."""
        return "margin"

    @property
    def signal(self) -> str:
        """What is compared with the threshold."""
        return f"mean want of margin of {self.tokens} tokens, {self.estimate} estimate"

    @property
    def unit(self) -> str:
        """Of the signal."""
        return "probability"

    @property
    def least(self) -> float:
        """Smallest want of margin."""
        return 0.0

    @property
    def default_threshold(self) -> float:
        """The gate's own."""
        return self.threshold

    @property
    def look(self) -> Look:
        """The beginning of the answer, with log-probabilities."""
        return Look(self.tokens, trace="logprobs", needs="logprobs")

    def measure(self, seen: FirstPass) -> Measured:
        """Average the want of margin over the answer's beginning.

        Raises:
            LogprobsError: If there are no log-probabilities.
        """
        trace = _trace(seen)
        if trace is None:
            raise LogprobsError(
                "the first pass came back without log-probabilities",
                hint="use a reader that promises them",
            )
        if len(trace) == 0:
            return Measured(None)
        lower, upper = np.mean([margin_bounds(value) for value in trace.logprobs[: self.tokens]], axis=0)
        return _estimated(self.estimate, float(lower), float(lower + upper) / 2, float(upper))


def _estimated(
    estimate: Estimate, lower: float, middle: float, upper: float, *, exact: bool = False
) -> Measured:
    signal = {"lower": lower, "middle": middle, "upper": upper}[estimate]
    return Measured(signal, lower, upper, exact)


def _trace(seen: FirstPass) -> TokenTrace | None:
    return None if seen.answer is None else seen.answer.trace


def _check_tokens(tokens: int) -> None:
    if tokens < 1:
        raise ConfigurationError(f"the gate needs at least 1 token, got {tokens!r}")


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
