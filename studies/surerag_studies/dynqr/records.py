"""Records of questions: every answer that any setting of the method could give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from surerag.methods.dynqr.metrics import MetricName
from surerag.methods.dynqr.options import Documents

Rewriting = Literal["rewritten", "same passages", "unusable"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What an answer cost.

    Attributes:
        retrievals: Searches.
        calls: Generations.
        prompt_tokens: Tokens read.
        completion_tokens: Tokens written.
    """

    retrievals: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.retrievals + other.retrievals,
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


@dataclass(frozen=True, slots=True)
class Attempted:
    """One greedy answer.

    Attributes:
        answer: Its text.
        correct: Whether it is right.
        gold: Share of the question's gold passages that the reader was shown.
        uncertainty: By metric; infinite for an answer without a word.
        cost: Of this answer alone, its retrieval not counted.
    """

    answer: str
    correct: bool
    gold: float
    uncertainty: Mapping[MetricName, float]
    cost: Cost


@dataclass(frozen=True, slots=True)
class Record:
    """One question, answered once for each context that some setting of the method shows the reader.

    Attributes:
        id: The question's identifier in its world.
        kind: How it is put: under-specified, single-hop or two-hop.
        question: As asked.
        rewrite: What the rewriter made of it; empty if that is no query.
        rewriting: What came of it.
        writing: What the rewrite cost.
        direct: Without any passage.
        original: From what the question itself finds.
        substitute: From what the rewrite finds; None where that is nothing new.
        expand: From both lists in turn; None where that is nothing new.
        golden: As ``original``, one passage at random replaced by a gold one (the paper's Figure 3); None
            where no gold passage is missing.
    """

    id: str
    kind: str
    question: str
    rewrite: str
    rewriting: Rewriting
    writing: Cost
    direct: Attempted
    original: Attempted
    substitute: Attempted | None
    expand: Attempted | None
    golden: Attempted | None

    @property
    def vague(self) -> bool:
        """Whether the question is under-specified."""
        return self.kind == "under-specified"

    def again(self, documents: Documents) -> Attempted | None:
        """Return the answer with the rewrite; None where it brings nothing new."""
        return self.substitute if documents == "substitute" else self.expand


class Outcome(NamedTuple):
    """What a setting of the method makes of one question."""

    attempt: Attempted
    acted: bool
    replaced: bool
    cost: Cost


SEARCH = Cost(retrievals=1)


def outcome_of(
    record: Record,
    threshold: float,
    documents: Documents,
    metric: MetricName = "perplexity",
    *,
    verify: bool = True,
) -> Outcome:
    """Return what the method does at a threshold, from the recorded answers.

    Example:
        >>> def tried(answer, perplexity):
        ...     return Attempted(answer, True, 1.0, {"perplexity": perplexity}, Cost(calls=1))
        >>> record = Record("q", "single-hop", "Where?", "Where was Ada born?", "rewritten", Cost(calls=1),
        ...                 tried("", 9.0), tried("Orun", 2.0), tried("Velm", 1.1), None, None)
        >>> found = outcome_of(record, 1.2, "substitute")
        >>> found.attempt.answer, found.cost.calls, found.cost.retrievals
        ('Velm', 3, 2)
        >>> outcome_of(record, 2.0, "substitute").attempt.answer
        'Orun'
    """
    first = record.original
    cost = SEARCH + first.cost
    if not first.uncertainty[metric] > threshold:
        return Outcome(first, acted=False, replaced=False, cost=cost)
    cost += record.writing + (Cost() if record.rewriting == "unusable" else SEARCH)
    second = record.again(documents)
    if second is None:
        return Outcome(first, acted=True, replaced=False, cost=cost)
    replaced = not verify or second.uncertainty[metric] < first.uncertainty[metric]
    return Outcome(second if replaced else first, True, replaced, cost + second.cost)


def always(record: Record, documents: Documents) -> Outcome:
    """Return what rewriting first, before any answer, gives and costs: what other methods do."""
    second = record.again(documents)
    chosen = record.original if second is None else second
    searched = SEARCH if documents == "substitute" or record.rewriting == "unusable" else SEARCH + SEARCH
    return Outcome(chosen, True, second is not None, record.writing + searched + chosen.cost)


ALWAYS = -math.inf
"""A threshold that every answer exceeds."""
