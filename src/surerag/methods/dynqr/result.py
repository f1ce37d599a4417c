"""Results of DynQR."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from surerag.messages import Generation, Passage, Result

StepName = Literal["gate", "rewrite", "verify"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A query, what it retrieved, and the answer from that.

    Attributes:
        query: What was searched for.
        passages: What the reader was shown, best first.
        generation: The answer with its log-probabilities.
        uncertainty: Of the answer; infinite if there is no word in it, or it is the option ``refusal``.
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
        outcome: ``"stop"`` or ``"rewrite"``; ``"rewritten"``, ``"unusable"``, ``"same passages"``,
            ``"failed"`` or ``"out of calls"``; ``"original"`` or ``"rewritten"``.
        reason: In words, for people.
        uncertainty: What was compared, if something was.
        threshold: What it was compared with: the option's value at the gate, after it the original answer's
            uncertainty.
        metric: Name of the uncertainty, if one was compared.
    """

    name: StepName
    outcome: str
    reason: str
    uncertainty: float | None = None
    threshold: float | None = None
    metric: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "step": self.name,
            "outcome": self.outcome,
            "reason": self.reason,
            "uncertainty": finite(self.uncertainty),
            "threshold": finite(self.threshold),
            "metric": self.metric,
        }


@dataclass(frozen=True, slots=True)
class RewriteCosts:
    """What an answer cost.

    Attributes:
        retrievals: How often the retriever was asked.
        answers: Answers that were generated.
        samples: Further answers that were sampled, for ``"ln_entropy"`` and ``"disagreement"``.
        rewrites: Rewrites that were generated.
        prompt_tokens: Of all prompts, each counted once however many samples it got; a rewriter's too.
        completion_tokens: Of everything generated.
        judgements: Pairs of sampled answers that an entailer judged, for ``"disagreement"``.
        cached_tokens: Prompt tokens that a server had in its cache, where it tells.
    """

    retrievals: int = 0
    answers: int = 0
    samples: int = 0
    rewrites: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    judgements: int = 0
    cached_tokens: int = 0

    @property
    def calls(self) -> int:
        """Generations that were asked of language models."""
        return self.answers + self.samples + self.rewrites


@dataclass(frozen=True, slots=True)
class DynQRResult(Result):
    """An answer, and how it came about.

    Attributes:
        question: As asked.
        original: What the question itself retrieved, and the answer from that.
        rewritten: The least uncertain attempt with a rewrite; None if there was none.
        candidates: All attempts with rewrites, in the order in which they were written.
        kept: Whose answer this is.
        steps: The decisions, in order.
        costs: Calls and tokens.
        out_of_calls: Whether ``max_calls`` left no rewrite to try, or fewer than ``candidates``.
        abstained: Whether the answer is the option ``refusal``: nothing supports one.
    """

    question: str
    original: Attempt
    rewritten: Attempt | None
    candidates: tuple[Attempt, ...]
    kept: Literal["original", "rewritten"]
    steps: tuple[Step, ...]
    costs: RewriteCosts
    out_of_calls: bool = False
    abstained: bool = False

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
            "abstained": self.abstained,
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
