"""What a gate is: what it has to see of the first pass, what it makes of it, and the decision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from surerag.decisions.features import SCORES, score_features
from surerag.errors import ConfigurationError
from surerag.messages import Generation, Passage, TokenTrace, TraceKind
from surerag.methods.meanings import SameMeaning

FIRST_TOKENS = 8
"""Tokens of an answer's beginning that its length is counted over."""

LENGTH = f"length_{FIRST_TOKENS}"
AT_HAND = (LENGTH, *SCORES)
"""What a first pass tells at no further call, beside what gates measure: features of a benefit model."""


@dataclass(frozen=True, slots=True)
class GateDecision:
    """What a gate decided, and on what grounds.

    Attributes:
        retrieve: Whether to retrieve.
        reason: In words, for people.
        gate: Name of the gate; empty in modes without one.
        signal: The gate's signal, larger for a less certain reader (an estimate, where only an interval is
            known); None where the first pass said nothing, and in modes without a gate.
        unit: Of the signal: ``"nats"``, ``"probability"`` …
        lower: Smallest value that the signal can have.
        upper: Largest value that the signal can have.
        exact: Whether the three are known to be equal.
        threshold: What the signal was compared with (the paper's τ); None in modes without a gate.
        calls: Answers, or beginnings of one, that were asked for so that the gate could decide, and pairs of
            answers that were judged. A gate that sees the beginning of the answer costs one call, which is no
            loss where it stays shut.
        tokens: Tokens generated until then; 0 where the reader cannot tell.
    """

    retrieve: bool
    reason: str
    gate: str = ""
    signal: float | None = None
    unit: str = ""
    lower: float | None = None
    upper: float | None = None
    exact: bool = False
    threshold: float | None = None
    calls: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """What a gate has to see before it can decide.

    Attributes:
        n_tokens: Tokens of the greedy answer; None for all of them, 0 for a gate that needs no such answer.
        trace: What to ask for of the answer's trace.
        needs: What the trace must hold: a reader that cannot give it is refused.
        n_samples: Answers to sample.
        temperature: Of sampling.
        seed: Of sampling.
        same_meaning: How to tell which samples mean the same; None is as for others, else by their words.
    """

    n_tokens: int | None = 0
    trace: TraceKind = "none"
    needs: TraceKind = "none"
    n_samples: int = 0
    temperature: float = 1.0
    seed: int = 0
    same_meaning: SameMeaning | None = None

    @property
    def answers(self) -> int:
        """Answers, or beginnings of one, that it asks for."""
        return (self.n_tokens != 0) + self.n_samples

    @property
    def judgements(self) -> int:
        """Pairs that it asks an entailer about, at most."""
        return self.n_samples * (self.n_samples - 1) if self.same_meaning == "entailment" else 0


@dataclass(frozen=True, slots=True)
class FirstPass:
    """What a gate gets to see.

    Attributes:
        answer: The greedy answer, or its beginning; None where no gate asked for it.
        samples: Sampled answers to the same prompt.
        clusters: Meaning cluster of each sample. Where there is no greedy answer, and the gate stays shut,
            the first sample of the largest is the answer.
        judgements: Pairs of samples that an entailer judged for it.
        summaries: What the reader was shown, best first.
    """

    answer: Generation | None = None
    samples: tuple[Generation, ...] = ()
    clusters: tuple[int, ...] = ()
    judgements: int = 0
    summaries: tuple[Passage, ...] = ()

    @property
    def at_hand(self) -> dict[str, float]:
        """What is known at no further call: of :data:`AT_HAND`, what the answer and the index tell."""
        return features_at_hand(None if self.answer is None else self.answer.trace, self.summaries)

    @property
    def calls(self) -> int:
        """Answers that were asked for, and pairs that were judged."""
        return (self.answer is not None) + len(self.samples) + self.judgements

    @property
    def tokens(self) -> int:
        """Tokens generated so far."""
        begun = () if self.answer is None else (self.answer,)
        return sum(generation.completion_tokens for generation in (*begun, *self.samples))


class Measured(NamedTuple):
    """A gate's signal, as an interval where no more is known; None where the reader said nothing."""

    signal: float | None
    lower: float | None = None
    upper: float | None = None
    exact: bool = False


class Gate(ABC):
    """Decides from a first pass whether to retrieve: iff its signal exceeds the threshold.

    A gate of your own derives from this. Make it a frozen dataclass, and its settings are written down with
    the rest.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What decisions call it."""

    @property
    @abstractmethod
    def signal(self) -> str:
        """What is compared with the threshold, with all that changes its scale; calibrations belong to it."""

    @property
    def unit(self) -> str:
        """Of the signal; empty for a scale of its own."""
        return ""

    @property
    def least(self) -> float:
        """Smallest value that the signal can have; a threshold below it is refused."""
        return float("-inf")

    @property
    def default_threshold(self) -> float | None:
        """What is compared with where the user sets nothing; None where there is no sensible value."""
        return None

    @property
    @abstractmethod
    def look(self) -> Look:
        """What it has to see."""

    @abstractmethod
    def measure(self, seen: FirstPass) -> Measured:
        """Measure what was seen.

        Raises:
            LogprobsError: If a trace lacks what it needs.
        """

    def decide(self, seen: FirstPass, threshold: float) -> GateDecision:
        """Decide. A reader that says nothing tells nothing: the gate opens.

        Args:
            seen: What the look asked for.
            threshold: What to compare with, in the gate's unit.

        Raises:
            LogprobsError: If a trace lacks what the gate needs.
        """
        found = self.measure(seen)
        retrieve = found.signal is None or found.signal > threshold
        reason = f"{self.name} {'above' if retrieve else 'at or below'} threshold"
        return GateDecision(
            retrieve,
            "empty first answer" if found.signal is None else reason,
            self.name,
            found.signal,
            self.unit,
            found.lower,
            found.upper,
            found.exact,
            threshold,
            seen.calls,
            seen.tokens,
        )

    def threshold_for(self, wanted: float | None) -> float:
        """Return the threshold in force: what is wanted, or the gate's own.

        Raises:
            ConfigurationError: If there is none, or it lies below all signals.
        """
        found = self.default_threshold if wanted is None else wanted
        if found is None:
            raise ConfigurationError(
                f"the gate {self.name} has no default threshold",
                hint="pass threshold=…; calibrate() finds one, and may start from any, such as 0",
            )
        if not found >= self.least:
            unit = f" {self.unit}".rstrip()
            raise ConfigurationError(f"threshold must be at least {self.least:g}{unit}, got {found!r}")
        return found


def features_at_hand(trace: TokenTrace | None, summaries: Sequence[Passage]) -> dict[str, float]:
    """Return what is known before retrieving, beside what gates measure.

    Args:
        trace: Of the greedy answer, or of its beginning; None where nobody asked for one.
        summaries: What the reader was shown, best first.

    Returns:
        ``length_8``, tokens of the answer's first eight; and, of the summaries, ``top_score`` (how similar to
        the question their index finds the best one) and ``score_gap`` (how far the next lies below it).

    Example:
        >>> features_at_hand(TokenTrace(("Velm",), (-0.1,)), [Passage("Velm is a town.", score=0.5)])
        {'length_8': 1.0, 'top_score': 0.5}
    """
    length = {} if trace is None else {LENGTH: float(min(len(trace), FIRST_TOKENS))}
    return {**length, **score_features([summary.score for summary in summaries])}


def combined_look(looks: Sequence[Look]) -> Look:
    """Return a look at all that several gates have to see.

    Raises:
        ConfigurationError: If they want samples of different kinds: one set of samples serves all.

    Example:
        >>> both = combined_look([Look(8, "entropy", "entropy"), Look(n_samples=5), Look(n_samples=3)])
        >>> both.n_tokens, both.trace, both.n_samples
        (8, 'entropy', 5)
    """
    kinds: tuple[TraceKind, ...] = ("none", "logprobs", "entropy")
    sampling = [look for look in looks if look.n_samples]
    meanings = {look.same_meaning for look in sampling if look.same_meaning is not None}
    if len({(look.temperature, look.seed) for look in sampling}) > 1 or len(meanings) > 1:
        raise ConfigurationError(
            "gates that decide together read the same samples, and theirs differ",
            hint="give them one temperature, one seed and one same_meaning",
        )
    return Look(
        None if any(look.n_tokens is None for look in looks) else max(look.n_tokens or 0 for look in looks),
        max((look.trace for look in looks), key=kinds.index),
        max((look.needs for look in looks), key=kinds.index),
        max(look.n_samples for look in looks),
        sampling[0].temperature if sampling else 1.0,
        sampling[0].seed if sampling else 0,
        next(iter(meanings), None),
    )
