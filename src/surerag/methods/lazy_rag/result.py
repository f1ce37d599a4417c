"""Results of L-RAG."""

from __future__ import annotations

from dataclasses import dataclass

from surerag.certainty import Certainty, certainty_of
from surerag.messages import FinishReason, Generation, Passage, Result
from surerag.methods.lazy_rag.gates import GateDecision


@dataclass(frozen=True)
class LazyRAGPlan:
    """What is settled before the first word of the answer; the detail of the event ``lazy_rag.answering``.

    Attributes:
        decision: Whether the gate opened, by which score, and why.
        passages: Passages that the reader sees; empty where the gate stays shut.
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
        passages: Passages that the reader saw; empty where the gate stayed shut.
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
        """How sure the reader was of this answer, whereas ``decision.score`` is of the first pass."""
        return certainty_of(self.generation.trace, is_cut=self.generation.is_cut)
