"""Results of DENSE, of the refinement of contexts, and of semantic chunking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from surerag.messages import Generation, Passage, Result

Label = Literal["certain", "uncertain", "necessary", "unnecessary", "untested"]
"""Without ``label_chunks``, chunks stay ``"uncertain"``; for ``"untested"`` chunks, no calls were left."""
Rephrasing = Literal["rephrased", "unchanged", "empty", "cut", "untested"]

Stopped = Literal["certain", "satisfied", "unchanged", "rounds", "calls", "failed", "empty"]
"""Why a refinement ended: certain at first; the condition ``stop`` is met; a round that changes nothing; no
round or no call left; a model failed; no passage with a text."""


@dataclass(frozen=True, slots=True)
class SemanticChunk:
    """A piece of a document, verbatim.

    Attributes:
        text: The piece, ``document[start:end]``.
        start: Where the piece begins in its document, in characters.
        end: Where the piece ends in its document, in characters.
        tokens: Length of the piece in tokens.
    """

    text: str
    start: int
    end: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """How the answer reacts to one chunk.

    Attributes:
        passage: The chunk.
        rephrased: The text that replaced the chunk; the chunk's own text unless the outcome is
            ``"rephrased"``.
        outcome: Outcome of rephrasing. A rephrasing that is ``"unchanged"`` (except for case and spaces),
            ``"empty"`` or ``"cut"`` is not used.
        answer: r_i, the answer with the chunk rephrased.
        link: w_i0, between r_i and r_0: 0, ½ or 1 (Eq. 5).
        label: Label of the chunk that follows from the link (Eq. 8; Algorithm 3, lines 16 to 27).
        masked_answer: The answer without the chunk (Eq. 9); None if there was no such call.
    """

    passage: Passage
    rephrased: str
    outcome: Rephrasing
    answer: str
    link: float
    label: Label
    masked_answer: str | None = None


@dataclass(frozen=True)
class DenseResult(Result):
    """How well a reader understands a context.

    Attributes:
        question: The question.
        score: Degree-based semantic entropy, in [0, log(k + 1)] nats (Eq. 6).
        certain: Whether the score is conclusive and within the threshold.
        answers: The answers r_0 to r_k.
        links: The links w_ij between the answers, k + 1 rows (Eq. 5).
        chunks: One result for each chunk, in the order of the context.
        generation: The answer under the original context.
        calls: Number of rephrasings, answers and judgements.
        truncated: Number of answers among r_0 to r_k that were cut off at ``max_tokens``.
        empty: Number of answers among r_0 to r_k without a text.
        unusable: Number of judgements that could not be used; more than a tenth are an error.
        out_of_calls: Whether ``max_calls`` left chunks untested or unlabelled.
        usage: Requests, tokens and seconds of the question.
    """

    question: str
    score: float
    certain: bool
    answers: tuple[str, ...]
    links: tuple[tuple[float, ...], ...]
    chunks: tuple[ChunkResult, ...]
    generation: Generation
    calls: int
    truncated: int = 0
    empty: int = 0
    unusable: int = 0
    out_of_calls: bool = False

    @property
    def conclusive(self) -> bool:
        """Whether the score has a meaning: a chunk was rephrased, and no answer is empty or cut off.

        Answers that are equal because all are empty or cut off would have a score of 0.
        """
        rephrased = any(chunk.outcome == "rephrased" for chunk in self.chunks)
        return rephrased and not self.truncated and not self.empty

    @property
    def answer(self) -> str:
        """r_0, the answer under the original context."""
        return self.answers[0]

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The context."""
        return tuple(chunk.passage for chunk in self.chunks)

    @property
    def labels(self) -> tuple[Label, ...]:
        """One label for each chunk."""
        return tuple(chunk.label for chunk in self.chunks)

    def to_dict(self) -> Mapping[str, Any]:
        """Return the result as JSON values, for events and metadata."""
        return {
            "score": self.score,
            "certain": self.certain,
            "answer": self.answer,
            "answers": list(self.answers),
            "labels": list(self.labels),
            "ids": [chunk.passage.id for chunk in self.chunks],
            "calls": self.calls,
            "truncated": self.truncated,
            "empty": self.empty,
            "unusable": self.unusable,
            "out_of_calls": self.out_of_calls,
        }


@dataclass(frozen=True, slots=True)
class Round:
    """One context of a refinement.

    Attributes:
        measured: The context's score, answers and labels.
        sufficient: Whether the reader finds the context sufficient; None if the reader was not asked.
        best: Whether the context became the best context so far.
        removed: Unnecessary chunks, which the next context does not have.
        added: New chunks, which the next context has.
        rechunked: Whether the next context consists of new semantic chunks of the documents.
    """

    measured: DenseResult
    sufficient: bool | None
    best: bool = False
    removed: tuple[Passage, ...] = ()
    added: tuple[Passage, ...] = ()
    rechunked: bool = False

    def to_dict(self) -> Mapping[str, Any]:
        """Return the round as JSON values, for events and metadata."""
        return {
            **self.measured.to_dict(),
            "sufficient": self.sufficient,
            "best": self.best,
            "removed": [passage.id for passage in self.removed],
            "added": [passage.id for passage in self.added],
            "rechunked": self.rechunked,
        }


def best_round(rounds: Sequence[Round]) -> Round | None:
    """Return the last round that was the best when it was measured; None if there is no round."""
    return next((entry for entry in reversed(rounds) if entry.best), None)


@dataclass(frozen=True)
class DenseRefinerResult(Result):
    """The best context of a refinement, and the answer under it.

    Attributes:
        question: The question.
        passages: The best context; the first ``top_n`` passages if no context could be measured.
        answer: The answer from the best context; None if no context could be measured.
        score: The best context's DENSE score; None if no context could be measured.
        rounds: All rounds, in order.
        stopped: Why the refinement ended.
        calls: Number of rephrasings, answers, judgements and self-evaluations of all rounds.
        failure: The error that ended the refinement, in words; empty if there was none.
        usage: Requests, tokens and seconds of the question.
    """

    question: str
    passages: tuple[Passage, ...]
    answer: str | None
    score: float | None
    rounds: tuple[Round, ...]
    stopped: Stopped
    calls: int
    failure: str = ""

    @property
    def best(self) -> Round | None:
        """The round of the best context; None if no context could be measured."""
        return best_round(self.rounds)

    def to_dict(self) -> Mapping[str, Any]:
        """Return the result as JSON values, for events and metadata."""
        return {
            "answer": self.answer,
            "score": self.score,
            "ids": [passage.id for passage in self.passages],
            "stopped": self.stopped,
            "calls": self.calls,
            "failure": self.failure,
            "rounds": [item.to_dict() for item in self.rounds],
        }
