"""What steers DENSE, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from surerag.errors import ConfigurationError
from surerag.methods.dense_cache import DenseCache
from surerag.prompts import (
    CLOSED_BOOK,
    DENSE_ANSWER,
    REPHRASE,
    SUFFICIENT,
    PromptTemplate,
    format_passages,
)
from surerag.types import Generation, Passage, Sampling

Label = Literal["certain", "uncertain", "necessary", "unnecessary"]
"""``"uncertain"`` stands where nobody asked whether the chunk is necessary."""

Half = Literal["necessary", "unnecessary"]
Outcome = Literal["rephrased", "unchanged", "empty", "cut"]


@dataclass(frozen=True, slots=True)
class DensePrompts:
    """The method's prompts (appendix B); replace any of them, keeping its slots.

    Attributes:
        rephrase: Slot ``passage``.
        answer: Slots ``question`` and ``passages``. What comes before the passages is the same for all
            contexts of a question, so that they share their beginnings.
        closed_book: Where the only chunk was masked, and there is nothing to show; slot ``question``.
        sufficient: Self-evaluation; slots ``passages`` and ``question``.
    """

    rephrase: PromptTemplate = REPHRASE
    answer: PromptTemplate = DENSE_ANSWER
    closed_book: PromptTemplate = CLOSED_BOOK
    sufficient: PromptTemplate = SUFFICIENT

    def __post_init__(self) -> None:
        self.rephrase.require("passage")
        self.answer.require("question", "passages")
        self.closed_book.require("question")
        self.sufficient.require("question", "passages")

    def asking(self, question: str, texts: Sequence[str]) -> str:
        """Return the prompt for an answer from a context of texts."""
        if not texts:
            return self.closed_book.render(question=question)
        return self.answer.render(question=question, passages=format_passages(texts))


@dataclass(frozen=True, slots=True)
class DenseSettings:
    """Everything that steers the method; where the paper contradicts itself, the choice is here.

    Attributes:
        threshold: A question is certain up to this score, in nats (section 5).
        half: What an uncertain chunk is when only one direction of entailment holds between the answers
            with and without it: Algorithm 3 says ``"necessary"``, Eq. 10 says ``"unnecessary"``.
        mask: Whether to ask without each uncertain chunk, which tells necessary ones from unnecessary ones.
        entailment: One answer entails another from this probability on; None where it is the likeliest label.
        original_first: Whether to ask about the original context before its edits, on its own. A server
            that caches prefixes then has it in its cache; a local reader shares prefixes inside one call.
        answering: How to answer: greedy, as the measure demands.
        rephrasing: How to rephrase.
        prompts: The prompts.
        cache: Rephrasings and links that are known.
        reader: Name of the reader, a part of the cache's keys.
        entailer: Name of the entailer, likewise.

    Raises:
        ConfigurationError: If a value is out of range, or answers are not greedy.
    """

    threshold: float = 0.2
    half: Half = "necessary"
    mask: bool = True
    entailment: float | None = None
    original_first: bool = False
    answering: Sampling = field(default_factory=lambda: Sampling(max_tokens=64))
    rephrasing: Sampling = field(default_factory=lambda: Sampling(max_tokens=640))
    prompts: DensePrompts = field(default_factory=DensePrompts)
    cache: DenseCache = field(default_factory=DenseCache, compare=False, repr=False)
    reader: str = ""
    entailer: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < float("inf"):
            raise ConfigurationError(f"threshold must be 0 or more, got {self.threshold!r}")
        if self.half not in ("necessary", "unnecessary"):
            raise ConfigurationError(f"half must be necessary or unnecessary, got {self.half!r}")
        if self.entailment is not None and not 0 < self.entailment <= 1:
            raise ConfigurationError(f"entailment must be in (0, 1] or None, got {self.entailment!r}")
        for name in ("answering", "rephrasing"):
            sampling: Sampling = getattr(self, name)
            if sampling.n != 1 or sampling.temperature != 0:
                raise ConfigurationError(
                    f"{name} takes one greedy answer, got n={sampling.n}, temperature={sampling.temperature}",
                    hint="DENSE measures what rephrasing changes; chance must not change anything",
                )


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
    """

    rephrasings: int = 0
    answers: int = 0
    evaluations: int = 0
    judgements: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

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
        )


@dataclass(frozen=True, slots=True)
class Rephrased:
    """A chunk in other words.

    Attributes:
        text: What stands in the chunk's place: the chunk's own text unless the outcome is ``"rephrased"``.
        outcome: ``"unchanged"`` (the reader gave the text back), ``"empty"`` (it gave nothing) or ``"cut"``
            (it ran into its limit, and half a chunk does not mean the same) all leave the chunk as it is.
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
class DenseResult:
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
    """

    question: str
    score: float
    certain: bool
    answers: tuple[str, ...]
    links: tuple[tuple[float, ...], ...]
    chunks: tuple[ChunkReading, ...]
    generation: Generation
    calls: Calls

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
        }
