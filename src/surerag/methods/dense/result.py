"""Results of the three components of DENSE-RAG: measurement, refinement and semantic chunking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from surerag.messages import Generation, Passage, Result

Label = Literal["certain", "uncertain", "necessary", "unnecessary", "untested"]
"""Label of a chunk. ``"certain"``: rephrasing the chunk does not change the answer. ``"uncertain"``:
rephrasing changes the answer. ``"necessary"`` or ``"unnecessary"``: rephrasing changes the answer, and the
reader also answered without the chunk. ``"untested"``: no calls were left."""
Rephrasing = Literal["rephrased", "unchanged", "empty", "cut", "untested"]

Stopped = Literal["certain", "satisfied", "unchanged", "rounds", "calls", "failed", "empty"]
"""Why a refinement ended. ``"certain"``: the first context is certain. ``"satisfied"``: the condition of the
option ``stop`` is met. ``"unchanged"``: no chunk was removed or added. ``"rounds"`` or ``"calls"``: the limit
of rounds or calls is reached. ``"failed"``: a model failed. ``"empty"``: no passage has a text."""


@dataclass(frozen=True, slots=True)
class SemanticChunk:
    """A verbatim piece of a document.

    Attributes:
        text: The text of the chunk, ``document[start:end]``.
        start: Position of the chunk's first character in its document.
        end: Position after the chunk's last character in its document.
        tokens: Length of the chunk in tokens.
    """

    text: str
    start: int
    end: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """How the answer changes if one chunk is rephrased.

    Attributes:
        passage: The chunk.
        rephrased: The rephrased text, or the chunk's own text if ``outcome`` is not ``"rephrased"``.
        outcome: Whether the chunk was ``"rephrased"``, or why the rephrased text was not used:
            ``"unchanged"`` (equal except for case and white space), ``"empty"``, ``"cut"`` (truncated), or
            ``"untested"`` (no calls were left).
        answer: The answer with the chunk rephrased (r_i in the paper).
        link: Link between this answer and the original answer (w_i0 in Eq. 5): 1 if they entail each other,
            ½ if only one entails the other, and 0 if neither does.
        label: How the answer depends on the chunk; see :data:`Label` (Eq. 8; Algorithm 3, lines 16 to 27).
        masked_answer: The answer from the context without the chunk (Eq. 9); None if the chunk was not
            labelled.
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
        score: Degree-based semantic entropy of the answers, in [0, log(k + 1)] nats for k chunks (Eq. 6).
        certain: Whether the score is at most the threshold, and is meaningful (see :attr:`conclusive`).
        answers: The original answer r_0, and the answers r_1 to r_k, each with one chunk rephrased.
        links: Matrix of the links w_ij between the answers, with k + 1 rows (Eq. 5).
        chunks: One result for each chunk, in the order of the context.
        generation: The answer from the original context.
        calls: Number of model calls: rephrasings, answers and judgements.
        truncated: Number of answers that were truncated at ``max_tokens``.
        empty: Number of empty answers.
        unusable: Number of the entailer's judgements that could not be used.
        out_of_calls: Whether the limit ``max_calls`` was reached, so that some chunks were not tested, or
            have no label.
        usage: Number of requests and tokens, and seconds, for this question.
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
        """Whether the score is meaningful: a chunk was rephrased, and no answer is empty or truncated.

        Without this condition, equal empty answers would count as perfect understanding (a score of 0).
        """
        rephrased = any(chunk.outcome == "rephrased" for chunk in self.chunks)
        return rephrased and not self.truncated and not self.empty

    @property
    def answer(self) -> str:
        """The answer from the original context (r_0 in the paper)."""
        return self.answers[0]

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The passages of the context that was measured."""
        return tuple(chunk.passage for chunk in self.chunks)

    @property
    def labels(self) -> tuple[Label, ...]:
        """The label of each chunk, in the order of the context."""
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
    """One round of a refinement: a context, its score, and the changes for the next round.

    Attributes:
        measured: The context's score, the answers, and the labels of the chunks.
        sufficient: Whether the reader judges the context to be sufficient; None if the reader was not asked.
        best: Whether the context was the best so far when it was measured. Also True for the context that
            ended the refinement because it met the condition ``stop``.
        removed: Chunks that were removed after this round.
        added: Chunks that were added after this round.
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
    """Return the round with the best context; None if there is no round."""
    return next((entry for entry in reversed(rounds) if entry.best), None)


@dataclass(frozen=True)
class DenseRefinerResult(Result):
    """The best context of a refinement, and the answer from this context.

    Attributes:
        question: The question.
        passages: The best context; the first ``top_n`` passages if no context could be measured.
        answer: The answer from the best context; None if no context could be measured.
        score: The best context's DENSE score in nats; None if no context could be measured.
        rounds: All rounds, in order.
        stopped: Why the refinement ended; see ``Stopped``.
        calls: Number of model calls in all rounds.
        failure: The error that ended the refinement, in words; empty without an error.
        usage: Number of requests and tokens, and seconds, for this question.
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
        """The round with the best context; None if no context could be measured."""
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
