"""What a trace holds of a question: its answer under each condition, and all that was known beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from surerag.decisions.rows import DecisionRow
from surerag.errors import InputError
from surerag.types import FinishReason, TokenTrace

NONE: Final = "none"
"""Answered without any context."""
SUMMARIES: Final = "summaries"
"""Answered from summaries of documents: L-RAG's first pass."""
RETRIEVAL: Final = "retrieval"
"""Answered from retrieved passages."""
STRONG: Final = "strong"
"""Answered from summaries and retrieved passages: what L-RAG answers once its gate is open."""
ORIGINAL: Final = "original"
"""DynQR's first answer, from what the question itself retrieved."""
REWRITTEN: Final = "rewritten"
"""Answered from what the rewritten question retrieved."""
VERIFIED: Final = "verified"
"""The less uncertain one of the two: DynQR's answer where it always rewrites."""
COMPRESSED: Final = "compressed"
"""Answered from retrieved passages after EDC²-RAG compressed them."""


@dataclass(frozen=True, slots=True)
class Found:
    """A passage that was retrieved.

    Attributes:
        id: In its corpus.
        score: The retriever's, if it gave one.
        sha256: Digest of its text.
    """

    id: str
    score: float | None = None
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """A sampled answer to the same prompt.

    Attributes:
        text: The answer; None where only digests are kept.
        sha256: Digest of the text.
        cluster: Number of its meaning among the samples, by their words.
        trace: Log-probabilities and entropies, if the reader gave them.
    """

    text: str | None
    sha256: str
    cluster: int
    trace: TokenTrace | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """A question answered under one condition.

    Attributes:
        condition: Such as ``"none"`` or ``"retrieval"``; a table that was imported may have its own.
        text: The answer; None where only digests are kept.
        sha256: Digest of the answer.
        correct: Score in [0, 1] by the trace's judge; None where there is no gold answer.
        trace: Log-probabilities and entropies of its tokens. Texts of tokens are empty where only digests are
            kept.
        samples: Further answers that were sampled to the same prompt.
        retrieved: What the reader was shown, best first.
        query: What was searched for, where that is not the question.
        signals: Uncertainties and features by name; see :func:`surerag.records.signals.signals_of`.
        finish: How the answer ended.
        calls: Prompts that this condition asks, each counted once.
        prompt_tokens: Tokens of these prompts.
        completion_tokens: Tokens generated for them; the samples are not among them.
        cached_tokens: Of the prompts' tokens, those that a server had in its cache.
        seconds: What the model took to answer them, an equal share of each batch; None if not known.
    """

    condition: str
    text: str | None
    sha256: str
    correct: float | None = None
    trace: TokenTrace | None = None
    samples: tuple[Sample, ...] = ()
    retrieved: tuple[Found, ...] = ()
    query: str | None = None
    signals: Mapping[str, float] = field(default_factory=dict)
    finish: FinishReason = "stop"
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float | None = None
    cached_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens read and generated."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One question of a trace.

    Attributes:
        id: Names it within the trace.
        question: As asked; None where only digests are kept.
        sha256: Digest of the question.
        golds: Gold answers; None where only digests are kept, or there are none.
        passes: The answer under each condition.
        measures: What belongs to no single answer: ``delta_seper``, ``seper_before``, ``seper_after``,
            ``compression_before`` and ``compression_after`` (tokens), ``rewritten_kept``, ``dense_score``.
        error: Why a condition is missing; empty if none is.
    """

    id: str
    question: str | None
    sha256: str
    golds: tuple[str, ...] | None
    passes: tuple[Pass, ...]
    measures: Mapping[str, float] = field(default_factory=dict)
    error: str = ""

    def under(self, condition: str) -> Pass | None:
        """Return the answer under a condition, if it was recorded."""
        return next((one for one in self.passes if one.condition == condition), None)


def decision_rows(rows: Iterable[TraceRow], without: str, with_: str) -> Iterator[DecisionRow]:
    """Yield what a decision is calibrated on, for each question that has both answers.

    Args:
        rows: A trace, or some of its rows.
        without: Condition of the answer that there is before the decision; its signals are the row's.
        with_: Condition of the answer after acting. Its cost is the row's: tokens read and generated, where
            these are known, else calls, else 1.

    Raises:
        InputError: If no row has both, naming the conditions that there are.

    Example:
        >>> row = TraceRow("a", "Where?", "", ("Velm",), (
        ...     Pass("none", "Orun", "", correct=0.0, signals={"perplexity": 2.5}),
        ...     Pass("retrieval", "Velm", "", correct=1.0, prompt_tokens=90, completion_tokens=2)))
        >>> [decided] = decision_rows([row], "none", "retrieval")
        >>> decided.signals, decided.benefit, decided.cost
        ({'perplexity': 2.5}, 1.0, 92.0)
    """
    seen: dict[str, None] = {}
    found = False
    for row in rows:
        seen.update(dict.fromkeys(one.condition for one in row.passes))
        before, after = row.under(without), row.under(with_)
        if before is None or after is None:
            continue
        found = True
        yield DecisionRow(
            before.signals, before.correct, after.correct, float(after.tokens or after.calls or 1), row.id
        )
    if not found:
        raise InputError(
            f"no question was answered under both {without!r} and {with_!r}; there is "
            f"{', '.join(map(repr, seen)) or 'none'}",
            hint="name two conditions that were recorded",
        )
