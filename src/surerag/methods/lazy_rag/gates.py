"""Gates of L-RAG (section III-C): each gate scores how uncertain the reader is, and decides on retrieval."""

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
"""Default number of an answer's first tokens from which a score is computed; the paper states no number."""


@dataclass(frozen=True, slots=True)
class FirstPass:
    """The reader's first answer, generated from the summaries, as the input of a gate.

    Attributes:
        answer: The greedy answer or its beginning. If answers were sampled, a sample with the most frequent
            meaning.
        samples: Sampled answers; empty for a gate that uses the greedy answer.
        clusters: Index of each sample's meaning cluster, from 0.
    """

    answer: Generation
    samples: tuple[Generation, ...] = ()
    clusters: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GateDecision:
    """A gate's decision whether to retrieve passages, and the reason for the decision.

    Attributes:
        retrieve: Whether to retrieve passages.
        reason: The reason in words.
        gate: Name of the gate.
        score: The gate's score; larger means a less certain reader. None if L-RAG searches without a score:
            the first pass failed, or its answer is empty, cut off or an abstention. ``reason`` says which.
        interval: Smallest and largest possible value of the score. They differ if the reader returns only the
            top log-probabilities. None if there is no score.
        threshold: The threshold τ: passages are retrieved if the score is above it.
    """

    retrieve: bool
    reason: str
    gate: str
    score: float | None
    interval: Interval | None
    threshold: float

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as plain values; an infinite threshold becomes None."""
        return {**asdict(self), "threshold": self.threshold if math.isfinite(self.threshold) else None}


@dataclass(frozen=True, kw_only=True)
class Gate(ABC):
    """Base class of gates: passages are retrieved if the score of the first pass exceeds a threshold (Eq. 4).

    To write a gate of your own, derive a frozen dataclass from this class.

    Attributes:
        name: Name of the gate in decisions.
        needs: The output that the reader must report: ``"text"``, ``"logprobs"`` or ``"entropy"``.
        threshold: Default of the option ``threshold``; None if there is no sensible default.
        n_tokens: Number of tokens of the greedy answer to generate before the score is computed; None means
            the whole answer. If these tokens may begin an abstention, the whole answer is generated.
        n_samples: Number of answers to sample at temperature 1 in place of the greedy answer; 0 for none. If
            L-RAG does not search, a sample with the most frequent meaning becomes the answer.

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
        check_at_least(-math.inf, threshold=self.threshold)
        check_at_least(1, n_tokens=self.n_tokens)
        check_at_least(2, n_samples=self.n_samples or None)
        for field, choices in (("aggregate", get_args(Aggregate)), ("estimate", get_args(Estimate))):
            if getattr(self, field, choices[0]) not in choices:
                raise ConfigurationError(
                    f"{field} must be one of {', '.join(choices)}, got {getattr(self, field)!r}"
                )

    @property
    def reads_all(self) -> bool:
        """Whether the whole answer must be generated before the gate can decide against retrieval."""
        return False

    @abstractmethod
    def score(self, first_pass: FirstPass) -> float | None:
        """Return how uncertain the reader is, or None if the first answer has no tokens; L-RAG then searches.

        Raises:
            LogprobsError: If the first answer lacks the log-probabilities or entropies that the gate needs.
        """

    def interval(self, first_pass: FirstPass) -> Interval | None:
        """Return the smallest and largest value that the score can have; None if there is no score."""
        score = self.score(first_pass)
        return None if score is None else (score, score)

    def decide(
        self, score: float | None, interval: Interval | None, threshold: float, flaw: str = ""
    ) -> GateDecision:
        """Return the decision for a score (Eq. 4).

        Args:
            score: The score; None means that L-RAG searches.
            interval: Smallest and largest possible value of the score, for the record.
            threshold: L-RAG searches if the score is above this number.
            flaw: The reason why the first answer cannot be used; L-RAG then searches. Empty if the first
                answer can be used.
        """
        flaw = flaw or ("empty first answer" if score is None else "")
        searches = bool(flaw) or (score is not None and score > threshold)
        side = f" {'above' if searches else 'at or below'} threshold {threshold:g}"
        if math.isinf(threshold):
            when = "always searches" if threshold < 0 else "searches only after an abstention"
            side = f"; with this threshold, L-RAG {when}"
        reason = flaw or f"{self.name} {score:.3g}{side}"
        return GateDecision(searches, reason, self.name, score, interval, threshold)

    def to_dict(self) -> dict[str, Any]:
        """Return the gate's name and settings as plain values."""
        return {"name": self.name, **asdict(self)}


def _check_samples_nothing(gate: Gate) -> None:
    if gate.n_samples != 0:
        raise ConfigurationError(
            f"the gate {gate.name} samples no answers, got n_samples={gate.n_samples!r}",
            hint='leave n_samples out, or use the gate "semantic_entropy"',
        )


@dataclass(frozen=True, kw_only=True)
class _BoundedGate(Gate):
    """A gate whose score is sometimes known only as an interval.

    ``estimate`` selects the point of the interval that is compared with the threshold.
    """

    estimate: Estimate = "middle"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_samples_nothing(self)

    def score(self, first_pass: FirstPass) -> float | None:
        interval = self.interval(first_pass)
        if interval is None:
            return None
        return {"lower": interval[0], "middle": math.fsum(interval) / 2, "upper": interval[1]}[self.estimate]


@dataclass(frozen=True, kw_only=True)
class EntropyGate(_BoundedGate):
    """The paper's gate: its score is the mean entropy of the answer's first n tokens, in nats (Eq. 2 and 3).

    Attributes:
        aggregate: How the tokens' entropies become a score. ``"mean"``: the mean of the first n tokens
            (Eq. 3). ``"first"``: the first token. ``"max"``: the greatest entropy of all tokens (section
            III-A). ``"greatest_3"``: the mean of the three greatest entropies of all tokens, as in
            :class:`surerag.Certainty`, but not in the paper. ``"max"`` and ``"greatest_3"`` need the whole
            answer, unless the score of its first n tokens is above the threshold.
        estimate: If an entropy is only known as an interval, the point of the interval that is compared with
            the threshold: ``"lower"``, ``"middle"`` or ``"upper"``.
        threshold: Entropy in nats, above which L-RAG searches.
        n_tokens: Number n of tokens at the beginning of the first answer (Eq. 3).
        n_samples: Number of sampled answers; leave it at 0, because the score needs a greedy answer.
    """

    name: ClassVar[str] = "entropy"
    needs: ClassVar[Needs] = "entropy"

    threshold: float | None = 0.5
    aggregate: Aggregate = "mean"

    def __post_init__(self) -> None:
        """Check the settings, and adapt ``n_tokens`` to ``aggregate``.

        With ``aggregate="first"``, ``n_tokens`` becomes 1; with ``"greatest_3"``, it becomes at least 3.
        """
        super().__post_init__()
        if self.aggregate == "first":
            object.__setattr__(self, "n_tokens", 1)
        elif self.aggregate == "greatest_3" and self.n_tokens is not None:
            # From the third token on, the mean of the three greatest entropies cannot fall. Once the mean
            # exceeds the threshold, L-RAG can search before the answer ends.
            object.__setattr__(self, "n_tokens", max(3, self.n_tokens))

    @property
    def reads_all(self) -> bool:
        """Whether the whole answer must be generated before the gate can decide against retrieval."""
        return self.aggregate in ("max", "greatest_3")

    def interval(self, first_pass: FirstPass) -> Interval | None:
        """Return the bounds of the score (H̄ in Eq. 3), from the bounds of the tokens' entropies."""
        trace = trace_of(first_pass.answer, _OF_TEXT)
        if trace.entropy is None:
            raise LogprobsError(
                "the first answer came without entropies",
                hint="use a reader that reports entropies, or a server that returns top log-probabilities",
            )
        if len(trace) == 0:
            return None
        return self.aggregated(trace.entropy.lower), self.aggregated(trace.entropy.upper)

    def aggregated(self, entropies: Sequence[float]) -> float:
        """Return the score of an answer from its tokens' entropies.

        By default, the score is the mean of the first ``n_tokens`` entropies (Eq. 3).

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
    """A gate for servers without top log-probabilities: its score is the mean of 1 − margin.

    The margin of a token is p₁ − p₂, the difference of the two largest probabilities. A greedy answer's
    log-probabilities give p₁. They only give bounds of p₂ (:func:`surerag.measures.margin_bounds`), so the
    score is known as an interval.

    Attributes:
        estimate: The point of the interval that is compared with the threshold: ``"lower"`` (the mean of
            1 − p₁), ``"middle"`` or ``"upper"``.
        threshold: Mean of 1 − margin, in [0, 1], above which L-RAG searches.
        n_tokens: Number of tokens of the first answer over which the mean is taken.
        n_samples: Number of sampled answers; leave it at 0, because the score needs a greedy answer.
    """

    name: ClassVar[str] = "margin"
    needs: ClassVar[Needs] = "logprobs"

    threshold: float | None = 0.2

    def interval(self, first_pass: FirstPass) -> Interval | None:
        """Return the smallest and largest possible score; None for an answer without tokens."""
        trace = trace_of(first_pass.answer, _OF_TEXT)
        if len(trace) == 0:
            return None
        bounds = [margin_bounds(logprob) for logprob in trace.logprobs[: self.n_tokens]]
        lower, upper = np.mean(bounds, axis=0)
        return float(lower), float(upper)


@dataclass(frozen=True, kw_only=True)
class DisagreementGate(Gate):
    """A gate for readers without log-probabilities: its score is a discrete semantic entropy, in nats.

    The reader samples ``n_samples`` answers to each question. The answers are grouped by meaning: two short
    answers have the same meaning if one answer contains the words of the other answer. The score is the
    entropy of the groups' shares (Farquhar et al., Nature 630, 2024). With the default threshold and up to
    ten samples, L-RAG answers without a search only if all samples agree.

    Attributes:
        threshold: Semantic entropy in nats, above which L-RAG searches.
        n_tokens: Not used: samples are generated to their end.
        n_samples: Number of answers to sample at temperature 1.
    """

    name: ClassVar[str] = "semantic_entropy"

    threshold: float | None = 0.3
    n_samples: int = N_SAMPLES

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(2, n_samples=self.n_samples)

    def score(self, first_pass: FirstPass) -> float | None:
        """Return the discrete semantic entropy of the samples, in nats."""
        return discrete_semantic_entropy(first_pass.clusters)


@dataclass(frozen=True, kw_only=True)
class AbstentionGate(Gate):
    """A gate with which L-RAG searches only if the first answer is an abstention, or is unusable.

    The prompt tells the reader to abstain if the summaries lack the answer (the option ``abstention``). The
    gate needs only the text of one answer. Leave ``threshold`` and ``n_tokens`` at their defaults;
    ``n_samples`` is always 0.
    """

    name: ClassVar[str] = "abstention"

    threshold: float | None = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_samples_nothing(self)

    def score(self, first_pass: FirstPass) -> float | None:
        """Return 0, so that only an unusable first answer, such as an abstention, leads to a search."""
        return 0.0

    def decide(
        self, score: float | None, interval: Interval | None, threshold: float, flaw: str = ""
    ) -> GateDecision:
        """Return the decision for a score; see :meth:`Gate.decide`.

        If L-RAG does not search, the decision's ``reason`` is "the first answer does not abstain".
        """
        decision = super().decide(score, interval, threshold, flaw)
        return (
            decision if decision.retrieve else replace(decision, reason="the first answer does not abstain")
        )


GATES: dict[str, type[EntropyGate | MarginGate | DisagreementGate | AbstentionGate]] = {
    gate.name: gate for gate in (EntropyGate, MarginGate, DisagreementGate, AbstentionGate)
}
"""The gates by the names that the option ``gate`` accepts."""


def gate_of_text(gate: Gate, abstention: str | None) -> AbstentionGate:
    """Return the abstention gate, which replaces ``gate`` if the reader returns no log-probabilities.

    Raises:
        CapabilityError: If ``abstention`` is None, so that no prompt tells the reader to abstain.
    """
    if abstention is None:
        raise CapabilityError(
            f"the gate {gate.name} needs log-probabilities, but an answer came without them",
            hint="leave out abstention=False, so that the method retrieves if the reader abstains; or use a "
            "reader that returns log-probabilities",
        )
    return AbstentionGate()


def check_gate(gate: Gate, reader: Reader) -> None:
    """Raise CapabilityError unless a reader reports what a gate needs, such as log-probabilities."""
    check_reports(reader, gate.needs, f"the gate {gate.name}", _OF_TEXT, 'gate="margin"')
