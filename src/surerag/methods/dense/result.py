"""Results of DENSE, of refinement and of chunking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from surerag.messages import Generation, Passage, Result

Label = Literal["certain", "uncertain", "necessary", "unnecessary", "untested"]
"""``"uncertain"`` stands where nobody asked whether the chunk is necessary, ``"untested"`` where no calls
were left to say it in other words."""

Outcome = Literal["rephrased", "unchanged", "empty", "cut", "untested"]

Stopped = Literal["certain", "satisfied", "chunked", "unchanged", "rounds", "budget", "failed", "empty"]
"""Why it ended: certain at first sight; the stop rule; the documents were cut anew, and that is
all that was wanted; a round that would change nothing; no round or no
calls left; a model failed; nothing to refine."""


class Span(NamedTuple):
    """A stretch of a text, in characters."""

    start: int
    end: int


class SemanticChunk(NamedTuple):
    """A piece of a text as it stands there, ``text[start:end]``, and its length in tokens."""

    text: str
    start: int
    end: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Calls:
    """What was asked of the models; what a cache knew is not in it.

    Attributes:
        rephrasings: Chunks that were rephrased.
        answers: Contexts that were answered from, masked ones included.
        evaluations: Contexts whose sufficiency was judged.
        judgements: Ordered pairs of answers that the entailer judged.
        prompt_tokens: Of the reader's calls, as the reader counts them.
        completion_tokens: Of the reader's calls.
        cached_tokens: Prompt tokens that a server had in its cache, where it tells.
    """

    rephrasings: int = 0
    answers: int = 0
    evaluations: int = 0
    judgements: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    @property
    def total(self) -> int:
        """Calls of reader and entailer, which with a judge of words are both language models."""
        return self.rephrasings + self.answers + self.evaluations + self.judgements

    def __add__(self, other: Calls) -> Calls:
        return self._joined(other, 1)

    def __sub__(self, other: Calls) -> Calls:
        return self._joined(other, -1)

    def _joined(self, other: Calls, sign: int) -> Calls:
        return Calls(
            self.rephrasings + sign * other.rephrasings,
            self.answers + sign * other.answers,
            self.evaluations + sign * other.evaluations,
            self.judgements + sign * other.judgements,
            self.prompt_tokens + sign * other.prompt_tokens,
            self.completion_tokens + sign * other.completion_tokens,
            self.cached_tokens + sign * other.cached_tokens,
        )


@dataclass(frozen=True, slots=True)
class Rephrased:
    """A chunk in other words.

    Attributes:
        text: What stands in the chunk's place: the chunk's own text unless the outcome is ``"rephrased"``.
        outcome: ``"unchanged"`` (the reader gave the text back), ``"empty"`` (it gave nothing), ``"cut"``
            (it ran into its limit, and half a chunk does not mean the same) or ``"untested"`` (it was not
            asked: no calls were left) all leave the chunk as it is.
    """

    text: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ChunkReading:
    """How the answer took to one chunk's being rephrased, and to its being left out.

    Attributes:
        passage: The chunk, as it was given.
        rephrased: What stood in its place.
        answer: r_i, the answer under the context with the chunk rephrased.
        link: w_i0, between that answer and the one under the original context: 0, ½ or 1 (Eq. 5).
        label: What the two say about the chunk (Eq. 8 and 10).
        masked_answer: ar_i, the answer without the chunk (Eq. 9); None where nobody asked.
        masked_link: Between that answer and the one under the original context.
    """

    passage: Passage
    rephrased: Rephrased
    answer: str
    link: float
    label: Label
    masked_answer: str | None = None
    masked_link: float | None = None


@dataclass(frozen=True, slots=True)
class DenseResult(Result):
    """How far a reader understood a context.

    Attributes:
        question: As asked.
        score: Degree-based semantic entropy, in [0, log(k + 1)] nats (Eq. 6).
        certain: Whether the score is within the threshold, and at least one chunk could be rephrased at all.
        answers: r_0 to r_k.
        links: w_ij between them, k + 1 rows (Eq. 5).
        chunks: One reading for each chunk, in the order of the context.
        generation: The answer under the original context.
        calls: What it cost.
        truncated: Answers that were cut at ``max_tokens``, masked ones included. Links between halves of
            answers say little.
        out_of_calls: Whether ``max_calls`` left chunks untested or unlabelled. The score is then of the
            first chunks, as many as could be tested.
    """

    question: str
    score: float
    certain: bool
    answers: tuple[str, ...]
    links: tuple[tuple[float, ...], ...]
    chunks: tuple[ChunkReading, ...]
    generation: Generation
    calls: Calls
    truncated: int = 0
    out_of_calls: bool = False

    @property
    def answer(self) -> str:
        """r_0, the answer under the original context."""
        return self.answers[0]

    @property
    def passages(self) -> tuple[Passage, ...]:
        """The context, as it was given."""
        return tuple(chunk.passage for chunk in self.chunks)

    @property
    def labels(self) -> tuple[Label, ...]:
        """One label for each chunk."""
        return tuple(chunk.label for chunk in self.chunks)

    def to_dict(self) -> Mapping[str, Any]:
        """Return what can be written as JSON: for events, traces and metadata."""
        return {
            "score": self.score,
            "certain": self.certain,
            "answer": self.answer,
            "answers": list(self.answers),
            "labels": list(self.labels),
            "ids": [chunk.passage.id for chunk in self.chunks],
            "calls": self.calls.total,
            "truncated": self.truncated,
            "out_of_calls": self.out_of_calls,
        }


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
class DenseRefinerResult(Result):
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
    def out_of_calls(self) -> bool:
        """Whether it ended because no calls were left."""
        return self.stopped == "budget"

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
