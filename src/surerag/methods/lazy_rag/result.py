"""Results of L-RAG."""

from __future__ import annotations

from dataclasses import dataclass

from surerag.certainty import Certainty, certainty_of
from surerag.messages import FinishReason, Generation, Passage, Result
from surerag.methods.lazy_rag.gates import GateDecision


@dataclass(frozen=True)
class LazyRAGPlan:
    """The gate's decision and the context of the prompt, which are known before the answer's first word.

    The event ``lazy_rag.answering`` has this object as its ``detail``.

    Attributes:
        decision: The gate's decision, with its score and reason.
        passages: Retrieved passages; empty if L-RAG does not search.
        summaries: Summaries in the prompt.
    """

    decision: GateDecision
    passages: tuple[Passage, ...]
    summaries: tuple[Passage, ...]


@dataclass(frozen=True)
class LazyRAGResult(Result):
    """The answer of L-RAG to one question, with the gate's decision and the texts that were used.

    Attributes:
        question: The question.
        answer: The text of the answer.
        decision: The gate's decision, with its score and reason.
        passages: Retrieved passages; empty if L-RAG did not search.
        summaries: Summaries in the prompt.
        generation: The answer with its tokens and log-probabilities, as the reader returned it.
        abstained: Whether the answer is an abstention.
        usage: Number of requests and tokens, and seconds, for this question.
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
        """Why the answer ended, such as ``"stop"``, or ``"length"`` if it was truncated at ``max_tokens``."""
        return self.generation.finish

    @property
    def certainty(self) -> Certainty:
        """How sure the reader was of the final answer.

        The score of the first answer is ``decision.score``.
        """
        return certainty_of(self.generation.trace, is_cut=self.generation.is_cut)
