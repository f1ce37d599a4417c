"""Gates: from the first tokens of an answer to a decision. Replaceable; L-RAG's is on entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from surerag.errors import ConfigurationError, LogprobsError
from surerag.types import EntropyTrace, TokenTrace

Aggregate = Literal["mean", "max", "first"]
Estimate = Literal["lower", "middle", "upper"]


@dataclass(frozen=True, slots=True)
class GateDecision:
    """What a gate decided, and on what grounds.

    Attributes:
        retrieve: Whether to retrieve.
        reason: In words, for people.
        entropy: The gate's signal in nats (an estimate, where the reader gives an interval); None in
            modes without a gate.
        lower: Smallest value that the signal can have.
        upper: Largest value that the signal can have.
        exact: Whether the reader saw the full vocabulary, so that the three are equal.
        threshold: τ; None in modes without a gate.
    """

    retrieve: bool
    reason: str
    entropy: float | None = None
    lower: float | None = None
    upper: float | None = None
    exact: bool = False
    threshold: float | None = None


class Gate(Protocol):
    """Decides from the first tokens of an answer whether they can be trusted."""

    @property
    def n_tokens(self) -> int | None:
        """Tokens that the gate has to see; None for all of them."""

    def decide(self, trace: TokenTrace | None) -> GateDecision:
        """Decide."""


@dataclass(frozen=True, slots=True)
class EntropyGate:
    """L-RAG's gate: retrieve iff the aggregated entropy of the first n tokens exceeds τ (Eq. 3 and 4).

    Attributes:
        threshold: τ, in nats.
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
        if not self.threshold >= 0:
            raise ConfigurationError(f"threshold must be 0 or more nats, got {self.threshold!r}")
        if self.tokens < 1:
            raise ConfigurationError(f"the gate needs at least 1 token, got {self.tokens!r}")
        if self.aggregate not in ("mean", "max", "first"):
            raise ConfigurationError(f"aggregate must be mean, max or first, got {self.aggregate!r}")
        if self.estimate not in ("lower", "middle", "upper"):
            raise ConfigurationError(f"estimate must be lower, middle or upper, got {self.estimate!r}")

    @property
    def n_tokens(self) -> int | None:
        """Tokens that the gate has to see; None for all of them."""
        return {"mean": self.tokens, "max": None, "first": 1}[self.aggregate]

    def decide(self, trace: TokenTrace | None) -> GateDecision:
        """Decide from the trace of an answer's beginning.

        An answer without a single token tells nothing: the gate opens.

        Raises:
            LogprobsError: If there are no entropies.
        """
        if trace is None or trace.entropy is None:
            raise LogprobsError(
                "the first pass came back without entropies",
                hint="use a reader that promises them, and a server that returns top log-probabilities",
            )
        if len(trace) == 0:
            return GateDecision(
                True, "empty first answer", threshold=self.threshold, exact=trace.entropy.exact
            )
        lower, middle, upper = (self.signal(values) for values in _interval(trace.entropy))
        signal = {"lower": lower, "middle": middle, "upper": upper}[self.estimate]
        retrieve = signal > self.threshold
        reason = "entropy above threshold" if retrieve else "entropy at or below threshold"
        return GateDecision(retrieve, reason, signal, lower, upper, trace.entropy.exact, self.threshold)

    def signal(self, entropies: Sequence[float]) -> float:
        """Aggregate entropies of an answer's steps: H̄ = (1/n) Σ H(t) over the first n (Eq. 3).

        Example:
            >>> EntropyGate(tokens=2).signal([1.0, 2.0, 9.0])
            1.5
            >>> EntropyGate(aggregate="max").signal([1.0, 2.0, 9.0])
            9.0
        """
        seen = np.asarray(entropies[: self.n_tokens], dtype=np.float64)
        return float(seen.max() if self.aggregate == "max" else seen.mean())


def _interval(entropy: EntropyTrace) -> tuple[tuple[float, ...], ...]:
    return entropy.lower, entropy.middle, entropy.upper
