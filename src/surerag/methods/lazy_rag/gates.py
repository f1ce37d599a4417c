"""Gates of L-RAG: they score the first pass; a larger score means a less certain reader (section III-C)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from surerag.errors import CapabilityError, ConfigurationError, LogprobsError, check_at_least
from surerag.measures import discrete_semantic_entropy, greatest_entropy, margin_bounds
from surerag.messages import Generation
from surerag.methods.shared import N_SAMPLES, Needs, check_reports, trace_of
from surerag.readers.protocol import Reader

Aggregate = Literal["mean", "max", "greatest_3", "first"]
Estimate = Literal["lower", "middle", "upper"]
Interval = tuple[float, float]

_OF_TEXT = 'gate="abstention"'

N_TOKENS = 8
"""Default number of tokens of the first pass that a gate reads; the paper states no number."""


@dataclass(frozen=True, slots=True)
class FirstPass:
    """The part of the reader's answer from the summaries that a gate reads.

    Attributes:
        answer: The greedy answer or its beginning; if answers were sampled, the most typical sample.
        samples: Sampled answers; empty for a gate that reads the greedy answer.
        clusters: Cluster of each sample by its meaning, numbered from 0.
    """

    answer: Generation
    samples: tuple[Generation, ...] = ()
    clusters: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GateDecision:
    """Decision of a gate, and its reasons.

    Attributes:
        retrieve: Whether to retrieve.
        reason: The reason in words.
        gate: Name of the gate.
        score: The score, larger for a less certain reader; None if the first pass failed, or its answer is
            empty.
        interval: Smallest and largest possible value of the score, if the reader lists only some
            log-probabilities; both are equal to an exact score.
        threshold: The threshold of the score (τ).
    """

    retrieve: bool
    reason: str
    gate: str
    score: float | None
    interval: Interval | None
    threshold: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; an infinite threshold becomes None."""
        return {**asdict(self), "threshold": self.threshold if math.isfinite(self.threshold) else None}


@dataclass(frozen=True, kw_only=True)
class Gate(ABC):
    """Base of all gates: retrieve iff the score of the first pass exceeds a threshold (Eq. 4).

    Your own gate is a frozen dataclass that derives from this class.

    Attributes:
        name: Name in decisions.
        needs: What the reader has to report: ``"text"``, ``"logprobs"`` or ``"entropy"``.
        threshold: Default of the option ``threshold``; None if there is no sensible value.
        n_tokens: Minimum number of tokens of the greedy answer that the gate reads; None is the whole answer.
            If these tokens may be the beginning of the abstention, the gate reads the whole answer.
        n_samples: Number of answers to sample (at temperature 1) in place of the greedy answer; 0 for none.
            If the gate stays closed, the most typical sample is the answer.

    Example:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class LongAnswerGate(Gate):
        ...     name: ClassVar[str] = "long_answer"
        ...     threshold: float | None = 20
        ...     n_tokens: int | None = None
        ...
        ...     def score(self, first_pass: FirstPass) -> float | None:
        ...         return len(first_pass.answer.text.split())
        >>> LongAnswerGate().score(FirstPass(Generation("In Velm")))
        2
    """

    name: ClassVar[str]
    needs: ClassVar[Needs] = "text"

    threshold: float | None = None
    n_tokens: int | None = N_TOKENS
    n_samples: int = 0

    def __post_init__(self) -> None:
        check_at_least(1, n_tokens=self.n_tokens)
        check_at_least(2, n_samples=self.n_samples or None)
        for field, choices in (("aggregate", get_args(Aggregate)), ("estimate", get_args(Estimate))):
            if getattr(self, field, choices[0]) not in choices:
                raise ConfigurationError(
                    f"{field} must be one of {', '.join(choices)}, got {getattr(self, field)!r}"
                )

    @property
    def reads_all(self) -> bool:
        """Whether the gate needs the whole answer to stay closed, while the first tokens can open it."""
        return False

    @abstractmethod
    def score(self, first_pass: FirstPass) -> float | None:
        """Return the score, or None if the first pass has no tokens, which opens the gate.

        Raises:
            LogprobsError: If the trace lacks what the gate needs.
        """

    def interval(self, first_pass: FirstPass) -> Interval | None:
        """Return the smallest and the largest possible value of the score, or None."""
        score = self.score(first_pass)
        return None if score is None else (score, score)

    def decide(
        self, score: float | None, interval: Interval | None, threshold: float, flaw: str = ""
    ) -> GateDecision:
        """Compare a score with the threshold (Eq. 4); a flaw of the first pass opens the gate."""
        flaw = flaw or ("empty first answer" if score is None else "")
        opens = bool(flaw) or (score is not None and score > threshold)
        side = "above" if opens else "at or below"
        reason = flaw or f"{self.name} {score:.3g} {side} threshold {threshold:g}"
        return GateDecision(opens, reason, self.name, score, interval, threshold)

    def to_dict(self) -> dict[str, Any]:
        """Return the name and the settings as plain values."""
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class _BoundedGate(Gate):
    """A gate whose score is the point ``estimate`` of an interval."""

    estimate: Estimate = "middle"

    def score(self, first_pass: FirstPass) -> float | None:
        """Return the estimate."""
        interval = self.interval(first_pass)
        if interval is None:
            return None
        return {"lower": interval[0], "middle": math.fsum(interval) / 2, "upper": interval[1]}[self.estimate]


@dataclass(frozen=True, kw_only=True)
class EntropyGate(_BoundedGate):
    """The paper's gate: entropy of the first n tokens, in nats (Eq. 2 and 3).

    Attributes:
        aggregate: ``"mean"`` of these entropies (Eq. 3); ``"max"`` of all tokens (section III-A: "at any
            generation step"); ``"greatest_3"``, the mean of the three greatest entropies of all tokens
            (not in the paper; the measure of :class:`surerag.Certainty`); or ``"first"``, the first token's.
            For ``"max"`` and ``"greatest_3"``, the answer is read to its end, unless the score of its first n
            tokens is above the threshold.
        estimate: Point of the interval to compare, if entropies are bounded and not exact.
        threshold: Entropy in nats, above which the gate opens.
        n_tokens: Number of tokens of the first answer that are read (n of Eq. 3).
        n_samples: Always 0: the greedy answer is read.
    """

    name: ClassVar[str] = "entropy"
    needs: ClassVar[Needs] = "entropy"

    threshold: float | None = 0.5
    aggregate: Aggregate = "mean"

    def __post_init__(self) -> None:
        """Check the settings; ``"first"`` reads one token, and ``"greatest_3"`` three or more."""
        super().__post_init__()
        if self.aggregate == "first":
            object.__setattr__(self, "n_tokens", 1)
        elif self.aggregate == "greatest_3" and self.n_tokens is not None:
            # From three tokens on, further tokens cannot lower the score, so that it may open the gate early.
            object.__setattr__(self, "n_tokens", max(3, self.n_tokens))

    @property
    def reads_all(self) -> bool:
        """Whether the gate needs the whole answer to stay closed."""
        return self.aggregate in ("max", "greatest_3")

    def interval(self, first_pass: FirstPass) -> Interval | None:
        """Return the bounds of H̄ (Eq. 3): the aggregated lower and upper bounds of the entropies."""
        trace = trace_of(first_pass.answer, _OF_TEXT)
        if trace.entropy is None:
            raise LogprobsError(
                "the first pass came back without entropies",
                hint="use a reader that reports them, or a server that returns top log-probabilities",
            )
        if len(trace) == 0:
            return None
        return self.aggregated(trace.entropy.lower), self.aggregated(trace.entropy.upper)

    def aggregated(self, entropies: Sequence[float]) -> float:
        """Aggregate the entropies of an answer's steps: H̄ = (1/n) Σ H(t) over the first n (Eq. 3).

        Example:
            >>> EntropyGate(n_tokens=2).aggregated([1.0, 2.0, 9.0])
            1.5
            >>> EntropyGate(aggregate="max").aggregated([1.0, 2.0, 9.0])
            9.0
            >>> EntropyGate(aggregate="greatest_3").aggregated([1.0, 0.0, 2.0, 9.0])
            4.0
        """
        if self.reads_all:
            return greatest_entropy(entropies, count=3 if self.aggregate == "greatest_3" else 1)
        return float(np.mean(entropies[: self.n_tokens]))


@dataclass(frozen=True, kw_only=True)
class MarginGate(_BoundedGate):
    """Mean of 1 − margin over the first n tokens; for servers that list no alternatives to a token.

    The margin is p₁ − p₂, the lead of the likeliest token. The trace of a greedy answer has p₁; p₂ lies
    between bounds that follow from p₁ (:func:`surerag.measures.margin_bounds`), and so does the score.

    Attributes:
        estimate: Point of the interval to compare; ``"lower"`` is the mean of 1 − p₁.
        threshold: 1 − margin, in [0, 1], above which the gate opens.
        n_tokens: Tokens of the first answer that are read.
        n_samples: Always 0: the greedy answer is read.
    """

    name: ClassVar[str] = "margin"
    needs: ClassVar[Needs] = "logprobs"

    threshold: float | None = 0.2

    def interval(self, first_pass: FirstPass) -> Interval | None:
        """Average the bounds of 1 − margin."""
        trace = trace_of(first_pass.answer, _OF_TEXT)
        if len(trace) == 0:
            return None
        bounds = [margin_bounds(logprob) for logprob in trace.logprobs[: self.n_tokens]]
        lower, upper = np.mean(bounds, axis=0)
        return float(lower), float(upper)


@dataclass(frozen=True, kw_only=True)
class DisagreementGate(Gate):
    """Discrete semantic entropy of sampled answers, in nats; for readers without log-probabilities.

    It is the entropy of the shares of the answers' meanings (Farquhar et al., Nature 630, 2024); two short
    answers mean the same if one contains the words of the other. It costs ``n_samples`` answers for each
    question.

    By default the gate stays closed if all samples agree (up to ten; ``docs/defaults.md``); calibrate it.

    Attributes:
        threshold: Entropy of the meanings in nats, above which the gate opens.
        n_tokens: Of no use here: samples are read whole.
        n_samples: Answers to sample, at temperature 1.
    """

    name: ClassVar[str] = "semantic_entropy"

    threshold: float | None = 0.3
    n_samples: int = N_SAMPLES

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(2, n_samples=self.n_samples)

    def score(self, first_pass: FirstPass) -> float | None:
        """Return the entropy of the shares of the clusters."""
        return discrete_semantic_entropy(first_pass.clusters)


@dataclass(frozen=True, kw_only=True)
class AbstentionGate(Gate):
    """Opens only if the first answer abstains; needs one call, and only its text.

    The reader is asked to abstain if the summaries do not have the answer (the option ``abstention``). This
    gate has no use for ``threshold``, ``n_tokens`` and ``n_samples``, which every :class:`Gate` has.
    """

    name: ClassVar[str] = "abstention"

    threshold: float | None = 0.0

    def score(self, first_pass: FirstPass) -> float | None:
        """Return 0: an abstention opens every gate before its score is computed."""
        return 0.0

    def decide(
        self, score: float | None, interval: Interval | None, threshold: float, flaw: str = ""
    ) -> GateDecision:
        """Open the gate for a flaw of the first pass, as every gate does."""
        decision = super().decide(score, interval, threshold, flaw)
        return (
            decision if decision.retrieve else replace(decision, reason="the first answer does not abstain")
        )


GATES: dict[str, type[EntropyGate | MarginGate | DisagreementGate | AbstentionGate]] = {
    gate.name: gate for gate in (EntropyGate, MarginGate, DisagreementGate, AbstentionGate)
}
"""The gates that the option ``gate`` knows by name."""


def gate_of_text(gate: Gate, abstention: str | None) -> AbstentionGate:
    """Return the abstention gate, to replace a gate whose reader gives no log-probabilities.

    Raises:
        CapabilityError: If the reader is not asked to abstain, so that this gate is not possible.
    """
    if abstention is None:
        raise CapabilityError(
            f"the gate {gate.name} needs log-probabilities, but an answer came without them",
            hint="set abstention to None, so that the gate abstention can decide; or use another reader",
        )
    return AbstentionGate()


def check_gate(gate: Gate, reader: Reader) -> None:
    """Check that a reader reports what a gate needs, or raise CapabilityError."""
    check_reports(reader, gate.needs, f"the gate {gate.name}", _OF_TEXT, 'gate="margin"')
