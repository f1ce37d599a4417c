"""Results of DynQR."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from surerag.certainty import Certainty, certainty_of
from surerag.messages import Generation, Passage, Result


@dataclass(frozen=True)
class Attempt:
    """A query, the passages that it retrieved, and the answer from them.

    Attributes:
        query: The query of the search; with the option ``answer="rewrite"`` also the question that was
            answered.
        passages: Passages that the reader saw, best first.
        generation: The answer as the reader returned it.
        uncertainty: Uncertainty of the answer; infinite if the answer is empty or an abstention.
    """

    query: str
    passages: tuple[Passage, ...]
    generation: Generation
    uncertainty: float

    @property
    def answer(self) -> str:
        """Text of the answer."""
        return self.generation.text


@dataclass(frozen=True)
class DynQRResult(Result):
    """An answer, and how it came about.

    Attributes:
        question: The question.
        original: Attempt with the question itself.
        candidates: Attempts with rewrites, in the order of writing.
        chosen: The attempt whose answer is returned.
        acted: Whether the first answer was uncertain enough to rewrite the query.
        reason: Why the query was rewritten or not, and why this answer was chosen, in words.
        threshold: The threshold of the uncertainty (θ).
        abstained: Whether the answer is an abstention (the option ``abstention``).
        usage: Requests, tokens and seconds of the question.
    """

    question: str
    original: Attempt
    candidates: tuple[Attempt, ...]
    chosen: Attempt
    acted: bool
    reason: str
    threshold: float
    abstained: bool = False

    @property
    def answer(self) -> str:
        """Text of the answer."""
        return self.chosen.answer

    @property
    def query(self) -> str:
        """The query of the chosen answer: the better query, for a pipeline that only rewrites."""
        return self.chosen.query

    @property
    def passages(self) -> tuple[Passage, ...]:
        """Passages of the chosen answer."""
        return self.chosen.passages

    @property
    def uncertainty(self) -> float:
        """Uncertainty of the answer."""
        return self.chosen.uncertainty

    @property
    def certainty(self) -> Certainty:
        """How sure the reader was of this answer, by every measure that its log-probabilities allow."""
        generation = self.chosen.generation
        return certainty_of(generation.trace, is_cut=generation.is_cut)

    @property
    def rewritten(self) -> bool:
        """Whether the chosen answer comes from a rewrite."""
        return self.chosen is not self.original

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for events and metadata; an infinite uncertainty becomes None."""
        return {
            "query": self.query,
            "uncertainty": finite(self.uncertainty),
            "original_answer": self.original.answer,
            "original_uncertainty": finite(self.original.uncertainty),
            "threshold": finite(self.threshold),
            "acted": self.acted,
            "rewritten": self.rewritten,
            "candidates": len(self.candidates),
            "abstained": self.abstained,
            "reason": self.reason,
        }


def finite(value: float) -> float | None:
    """Return a number that JSON can hold, or None."""
    return value if math.isfinite(value) else None
