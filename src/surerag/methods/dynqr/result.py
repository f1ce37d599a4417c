"""Results of DynQR."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from surerag.certainty import Certainty, certainty_of
from surerag.messages import Generation, Passage, Result


@dataclass(frozen=True)
class Attempt:
    """A query, its retrieved passages, and the answer that the reader generated from the passages.

    Attributes:
        query: The query that was sent to the retriever. With the option ``answer="rewrite"``, it is also the
            question in the answer's prompt.
        passages: Passages in the prompt, best first.
        generation: The answer with its tokens and log-probabilities, as the reader returned it.
        uncertainty: Uncertainty of the answer; infinite if the answer is empty or an abstention.
    """

    query: str
    passages: tuple[Passage, ...]
    generation: Generation
    uncertainty: float

    @property
    def answer(self) -> str:
        """The text of this attempt's answer."""
        return self.generation.text


@dataclass(frozen=True)
class DynQRResult(Result):
    """The answer of DynQR to one question, with all attempts and the decision between them.

    Attributes:
        question: The question.
        original: The attempt with the question as the query.
        candidates: The attempts with rewritten queries, in the order of the rewrites.
        chosen: The attempt whose answer is returned.
        acted: Whether the uncertainty of the first answer exceeded the threshold.
        reason: Why the query was rewritten or not, and why this answer was chosen, in words.
        threshold: The threshold of the uncertainty (θ).
        abstained: Whether the returned answer is the sentence of the option ``abstention``.
        usage: Number of requests and tokens, and seconds, for this question.
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
        """The text of the returned answer."""
        return self.chosen.answer

    @property
    def query(self) -> str:
        """The query of the returned answer: the question, or a rewritten query."""
        return self.chosen.query

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The passages in the prompt of the returned answer."""
        return self.chosen.passages

    @property
    def uncertainty(self) -> float:
        """The uncertainty of the returned answer."""
        return self.chosen.uncertainty

    @property
    def certainty(self) -> Certainty:
        """How sure the reader was of the returned answer: all measures from its log-probabilities."""
        generation = self.chosen.generation
        return certainty_of(generation.trace, is_cut=generation.is_cut)

    @property
    def rewritten(self) -> bool:
        """Whether the returned answer comes from a rewritten query."""
        return self.chosen is not self.original

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for events and metadata; an infinite number becomes None."""
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
    """Return a finite number unchanged, and None for infinity or NaN, which JSON cannot hold."""
    return value if math.isfinite(value) else None
