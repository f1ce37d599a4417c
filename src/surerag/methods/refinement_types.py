"""What steers the refinement of contexts, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from surerag.errors import ConfigurationError
from surerag.methods.adaptive_chunking import ChunkSettings
from surerag.methods.dense_types import Calls, DenseResult, DenseSettings
from surerag.types import Passage

Variant = Literal["default", "paper"]
StopRule = Literal["both", "either"]
Keep = Literal["sufficient", "lowest"]
Refill = Literal["necessary", "certain"]
OnFailure = Literal["original", "raise"]
Stopped = Literal["certain", "satisfied", "unchanged", "rounds", "budget", "failed", "empty"]
"""Why it ended: certain at first sight; the stop rule; a round that would change nothing; no round or no
calls left; a model failed; nothing to refine."""

VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "default": {"stop": "both", "keep": "sufficient", "half": "necessary"},
        "paper": {"stop": "either", "keep": "lowest", "half": "unnecessary"},
    }
)
"""Where Algorithm 3 (our default) and the paper's text differ; the one place that knows."""


@dataclass(frozen=True, slots=True)
class RefinementSettings:
    """Everything that steers the method.

    Attributes:
        dense: What steers the measure; its threshold is the stop rule's.
        k: Chunks of the first context; the others are candidates.
        max_chunks: Chunks of a context, at most. Algorithm 3 lets it grow by one for each necessary chunk.
        rounds: Contexts to measure, at most.
        max_calls: Calls of reader and entailer together, at most; None for what the rounds may cost.
        stop: Stop on a certain *and* sufficient context (``"both"``, Algorithm 3), or on ``"either"``.
        keep: A context with a lower score replaces the best one unless that was judged sufficient and this
            is not (``"sufficient"``, Algorithm 3), or always (``"lowest"``).
        refill: Chunks to whose likeness new ones are taken (Table 4).
        remove_only: Whether nothing is taken in (Table 4).
        self_evaluation: Whether the reader is asked if a context suffices (Table 4).
        only_uncertain: Whether a question that is certain at first keeps its answer (section 5.1).
        more: Passages to ask the retriever for, once, when no candidate is left; 0 asks for none.
        chunking: How to cut the documents behind uncertain chunks anew; None leaves chunks as they are.
        on_failure: If a model fails: the best context so far, or the ``"original"`` one, with a warning; or
            ``"raise"``.

    Raises:
        ConfigurationError: If a value is out of range.
    """

    dense: DenseSettings = field(default_factory=DenseSettings)
    k: int = 5
    max_chunks: int = 10
    rounds: int = 4
    max_calls: int | None = None
    stop: StopRule = "both"
    keep: Keep = "sufficient"
    refill: Refill = "necessary"
    remove_only: bool = False
    self_evaluation: bool = True
    only_uncertain: bool = True
    more: int = 0
    chunking: ChunkSettings | None = None
    on_failure: OnFailure = "original"

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("rounds", 1), ("more", 0), ("max_chunks", self.k)):
            if getattr(self, name) < least:
                raise ConfigurationError(f"{name} must be at least {least}, got {getattr(self, name)!r}")
        if self.max_calls is not None and self.max_calls < 1:
            raise ConfigurationError(f"max_calls must be at least 1 or None, got {self.max_calls!r}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigurationError(f"{name} must be one of {choices}, got {getattr(self, name)!r}")


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "stop": ("both", "either"),
    "keep": ("sufficient", "lowest"),
    "refill": ("necessary", "certain"),
    "on_failure": ("original", "raise"),
}


def worst_case_calls(chunks: int, rounds: int) -> int:
    """Calls of reader and entailer that a refinement can need: r (k² + 6 k + 2) − 3 k.

    A round rephrases k chunks, answers under k + 1 contexts, judges k (k + 1) ordered pairs of answers, and
    asks once whether the context suffices; for the labels it answers under k masked contexts and judges 2 k
    pairs, but the last round needs no labels. It is a bound: identical answers, known rephrasings and links,
    and chunks that are certain cost nothing.

    Args:
        chunks: Chunks of the largest context, k; ``max_chunks`` where contexts may grow.
        rounds: Contexts to measure, r.

    Example:
        >>> worst_case_calls(5, 1), worst_case_calls(5, 3), worst_case_calls(10, 4)
        (42, 156, 618)
    """
    return rounds * (chunks**2 + 6 * chunks + 2) - 3 * chunks


@dataclass(frozen=True, slots=True)
class Addition:
    """A chunk that came into the context.

    Attributes:
        passage: The chunk.
        near: The chunk that it was taken for.
        similarity: Cosine of the two.
    """

    passage: Passage
    near: Passage
    similarity: float


@dataclass(frozen=True, slots=True)
class Round:
    """One context: what was measured, and what was done about it.

    Attributes:
        measured: Score, answers, links and labels of the context.
        sufficient: What the reader said about it; None where it was not asked.
        best: Whether it became the best context so far.
        removed: Chunks that left, because they are unnecessary.
        added: Chunks that came.
        rechunked: Whether the documents were cut anew after this round, in place of removing and adding.
        note: What came next, and why.
        calls: What the round cost.
        seconds: How long it took; where many questions run together, the wait for others included.
    """

    measured: DenseResult
    sufficient: bool | None
    best: bool = False
    removed: tuple[Passage, ...] = ()
    added: tuple[Addition, ...] = ()
    rechunked: bool = False
    note: str = ""
    calls: Calls = field(default_factory=Calls)
    seconds: float = 0.0

    def to_dict(self) -> Mapping[str, Any]:
        """Return what can be written as JSON: for events, traces and metadata."""
        return {
            **self.measured.to_dict(),
            "sufficient": self.sufficient,
            "best": self.best,
            "removed": [passage.id for passage in self.removed],
            "added": [
                {"id": one.passage.id, "near": one.near.id, "similarity": one.similarity}
                for one in self.added
            ],
            "rechunked": self.rechunked,
            "note": self.note,
            "calls": self.calls.total,
        }


@dataclass(frozen=True, slots=True)
class RefinementResult:
    """The best context that was found, and the answer that it gave.

    Attributes:
        question: As asked.
        passages: The context; passages as they were given, unless their documents were cut anew.
        answer: The answer under it; None where no context could be measured.
        best: The round that gave both; None likewise.
        rounds: Every round, in order.
        stopped: Why it ended.
        calls: What all rounds cost, one that failed included.
        failure: What failed, where something did.
        retrievals: How often the retriever was asked.
    """

    question: str
    passages: tuple[Passage, ...]
    answer: str | None
    best: Round | None
    rounds: tuple[Round, ...]
    stopped: Stopped
    calls: Calls = field(default_factory=Calls)
    failure: str = ""
    retrievals: int = 0

    @property
    def score(self) -> float | None:
        """DENSE of the context; None where it could not be measured."""
        return None if self.best is None else self.best.measured.score

    def to_dict(self) -> Mapping[str, Any]:
        """Return what can be written as JSON: for events, traces and metadata."""
        return {
            "answer": self.answer,
            "score": self.score,
            "ids": [passage.id for passage in self.passages],
            "stopped": self.stopped,
            "failure": self.failure,
            "calls": self.calls.total,
            "retrievals": self.retrievals,
            "rounds": [one.to_dict() for one in self.rounds],
        }


def satisfied(measured: DenseResult, sufficient: bool | None, settings: RefinementSettings) -> bool:
    """Return whether a context meets the stop rule; without self-evaluation, certainty alone decides."""
    if sufficient is None:
        return measured.certain
    met: Sequence[bool] = (measured.certain, sufficient)
    return all(met) if settings.stop == "both" else any(met)


def improves(round_: Round, best: Round | None, settings: RefinementSettings) -> bool:
    """Return whether a context replaces the best one so far (Algorithm 3, lines 7 to 12).

    Beyond the paper, of two equal scores that of a context judged sufficient wins.
    """
    if best is None:
        return True
    score, lowest = round_.measured.score, best.measured.score
    if settings.keep == "lowest":
        return score < lowest
    if best.sufficient and not round_.sufficient:
        return False
    newly = bool(round_.sufficient) and not best.sufficient
    return score < lowest or (score == lowest and newly)
