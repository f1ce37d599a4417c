"""Results of L-RAG."""

from __future__ import annotations

from dataclasses import dataclass

from surerag.certainty import Certainty, certainty_of
from surerag.messages import FinishReason, Generation, Passage, Result
from surerag.methods.lazy_rag.gates import GateDecision


@dataclass(frozen=True)
class LazyRAGPlan:
    """Decision and context, known before the answer's first word; detail of the event ``lazy_rag.answering``.

    Attributes:
        decision: Whether the gate opened, by which score, and why.
        passages: Passages that the reader sees; empty if the gate stays closed.
        summaries: Summaries that the reader sees.
    """

    decision: GateDecision
    passages: tuple[Passage, ...]
    summaries: tuple[Passage, ...]


@dataclass(frozen=True)
class LazyRAGResult(Result):
    """An answer, and how it came about.

    Attributes:
        question: The question.
        answer: The text of the answer.
        decision: Whether the gate opened, by which score, and why.
        passages: Passages that the reader saw; empty if the gate stayed closed.
        summaries: Summaries that the reader saw.
        generation: The answer as the reader returned it.
        abstained: Whether the answer is an abstention.
        usage: Requests, tokens and seconds of the question.
    """

    question: str
    answer: str
    decision: GateDecision
    passages: tuple[Passage, ...]
    summaries: tuple[Passage, ...]
    generation: Generation
    abstained: bool = False

    @property
    def finish(self) -> FinishReason:
        """Why the answer ended: ``"stop"``, ``"length"`` if ``max_tokens`` cut it off, or ``"empty"``."""
        return self.generation.finish

    @property
    def certainty(self) -> Certainty:
        """How sure the reader was of this answer; ``decision.score`` is about the first pass."""
        return certainty_of(self.generation.trace, is_cut=self.generation.is_cut)
