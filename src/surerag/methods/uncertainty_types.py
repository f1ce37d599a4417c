"""What steers DynQR's inference, and what it reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from surerag.errors import ConfigurationError
from surerag.methods.uncertainty_metrics import METRICS, Metric
from surerag.prompts import (
    CLOSED_BOOK,
    DYNQR_ANSWER,
    REWRITE,
    REWRITE_IN_CONVERSATION,
    PromptTemplate,
)
from surerag.types import Generation, Passage, Sampling

Documents = Literal["substitute", "expand"]
"""What the second answer is given from: the rewrite's documents, or both lists in turn (section 3.2)."""

OnFailure = Literal["original", "raise"]
StepName = Literal["gate", "rewrite", "verify"]


@dataclass(frozen=True, slots=True)
class RewritePrompts:
    """The method's prompts (appendix C); replace any of them, keeping its slots.

    Attributes:
        answer: Answering with retrieval; slots ``passages`` and ``question``.
        closed_book: Where nothing was retrieved; slot ``question``.
        rewrite: For the rewriter; slot ``query``.
        rewrite_in_conversation: For the rewriter, after the turns of a conversation; slot ``query``.
    """

    answer: PromptTemplate = DYNQR_ANSWER
    closed_book: PromptTemplate = CLOSED_BOOK
    rewrite: PromptTemplate = REWRITE
    rewrite_in_conversation: PromptTemplate = REWRITE_IN_CONVERSATION

    def __post_init__(self) -> None:
        self.answer.require("passages", "question")
        self.closed_book.require("question")
        self.rewrite.require("query")
        self.rewrite_in_conversation.require("query")


@dataclass(frozen=True, slots=True)
class RewriteSettings:
    """Everything that steers the method.

    Attributes:
        theta: Rewrite iff the uncertainty of the first answer exceeds this, θ; −inf always, inf never.
        metric: See :data:`Metric`.
        documents: See :data:`Documents`.
        k: Passages to answer from; None leaves it to the retriever.
        verify: Post-verification: keep the less uncertain answer. Without it, the rewrite's answer is kept.
        answering: How to answer; one greedy answer by default.
        sampling: How to sample the N answers of ``"ln_entropy"``.
        rewriting: How the rewriter generates; ``n`` is the number of candidates.
        max_words: Words of a rewrite at most; what is longer is no query.
        on_failure: What to do when rewriting, or retrieving or answering with a rewrite fails: the
            ``"original"`` answer stands, or ``"raise"``.
        prompts: The prompts.

    Raises:
        ConfigurationError: If a value is out of range.
    """

    theta: float = 1.2
    metric: Metric = "perplexity"
    documents: Documents = "substitute"
    k: int | None = 5
    verify: bool = True
    answering: Sampling = field(default_factory=Sampling)
    sampling: Sampling = field(default_factory=lambda: Sampling(n=10, temperature=1.0))
    rewriting: Sampling = field(default_factory=Sampling)
    max_words: int = 64
    on_failure: OnFailure = "original"
    prompts: RewritePrompts = field(default_factory=RewritePrompts)

    def __post_init__(self) -> None:
        if math.isnan(self.theta):
            raise ConfigurationError("theta must be a number, got nan")
        if not callable(self.metric) and self.metric not in METRICS:
            raise ConfigurationError(
                f"unknown metric {self.metric!r}", hint=f"choose {', '.join(METRICS)}, or pass a function"
            )
        if self.documents not in ("substitute", "expand"):
            raise ConfigurationError(f"documents must be substitute or expand, got {self.documents!r}")
        if self.on_failure not in ("original", "raise"):
            raise ConfigurationError(f"on_failure must be original or raise, got {self.on_failure!r}")
        for name in ("k", "max_words"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {value!r}")
        if self.answering.n != 1:
            raise ConfigurationError(f"one answer a context is needed, got n={self.answering.n}")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A query, what it retrieved, and the answer from that.

    Attributes:
        query: What was searched for.
        passages: What the reader was shown, best first.
        generation: The answer with its log-probabilities.
        uncertainty: Of the answer; infinite if there is no word in it.
    """

    query: str
    passages: tuple[Passage, ...]
    generation: Generation
    uncertainty: float

    @property
    def answer(self) -> str:
        """The answer's text."""
        return self.generation.text


@dataclass(frozen=True, slots=True)
class Step:
    """One decision on the way, and why it fell.

    Attributes:
        name: ``"gate"``: rewrite or not; ``"rewrite"``: what came of it; ``"verify"``: which answer to keep.
        outcome: ``"stop"`` or ``"rewrite"``; ``"rewritten"``, ``"unusable"``, ``"same passages"`` or
            ``"failed"``; ``"original"`` or ``"rewritten"``.
        reason: In words, for people.
        uncertainty: What was compared, if something was.
        threshold: What it was compared with: θ at the gate, the original answer's uncertainty after it.
    """

    name: StepName
    outcome: str
    reason: str
    uncertainty: float | None = None
    threshold: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "step": self.name,
            "outcome": self.outcome,
            "reason": self.reason,
            "uncertainty": finite(self.uncertainty),
            "threshold": finite(self.threshold),
        }


@dataclass(frozen=True, slots=True)
class RewriteCosts:
    """What an answer cost.

    Attributes:
        retrievals: How often the retriever was asked.
        answers: Answers that were generated.
        samples: Further answers that were sampled, for ``"ln_entropy"``.
        rewrites: Rewrites that were generated.
        prompt_tokens: Of all prompts, each counted once however many samples it got; a rewriter's too.
        completion_tokens: Of everything generated.
    """

    retrievals: int = 0
    answers: int = 0
    samples: int = 0
    rewrites: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def calls(self) -> int:
        """Generations that were asked of language models."""
        return self.answers + self.samples + self.rewrites


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """An answer, and how it came about.

    Attributes:
        question: As asked.
        original: What the question itself retrieved, and the answer from that.
        rewritten: The least uncertain attempt with a rewrite; None if there was none.
        candidates: All attempts with rewrites, in the order in which they were written.
        kept: Whose answer this is.
        steps: The decisions, in order.
        costs: Calls and tokens.
    """

    question: str
    original: Attempt
    rewritten: Attempt | None
    candidates: tuple[Attempt, ...]
    kept: Literal["original", "rewritten"]
    steps: tuple[Step, ...]
    costs: RewriteCosts

    @property
    def chosen(self) -> Attempt:
        """The attempt that was kept."""
        return self.rewritten if self.kept == "rewritten" and self.rewritten is not None else self.original

    @property
    def answer(self) -> str:
        """The answer that was kept."""
        return self.chosen.answer

    @property
    def query(self) -> str:
        """The query behind that answer."""
        return self.chosen.query

    @property
    def uncertainty(self) -> float:
        """Uncertainty of that answer."""
        return self.chosen.uncertainty

    @property
    def passages(self) -> tuple[Passage, ...]:
        """Passages behind that answer."""
        return self.chosen.passages

    @property
    def acted(self) -> bool:
        """Whether the gate called for a rewrite."""
        return self.steps[0].outcome == "rewrite"

    def to_dict(self) -> Mapping[str, Any]:
        """Return plain values, for events, traces and metadata; what is infinite becomes None."""
        costs, rewritten = self.costs, self.rewritten
        return {
            "kept": self.kept,
            "query": self.query,
            "uncertainty": finite(self.uncertainty),
            "original_answer": self.original.answer,
            "original_uncertainty": finite(self.original.uncertainty),
            "rewritten_query": None if rewritten is None else rewritten.query,
            "rewritten_answer": None if rewritten is None else rewritten.answer,
            "rewritten_uncertainty": None if rewritten is None else finite(rewritten.uncertainty),
            "steps": [step.to_dict() for step in self.steps],
            "retrievals": costs.retrievals,
            "calls": costs.calls,
            "prompt_tokens": costs.prompt_tokens,
            "completion_tokens": costs.completion_tokens,
        }


def finite(value: float | None) -> float | None:
    """Return a number that JSON knows, or None."""
    return value if value is not None and math.isfinite(value) else None
