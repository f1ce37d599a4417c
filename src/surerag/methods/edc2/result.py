"""Results of EDC²-RAG: a shorter context, and what can be made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from surerag.measures import api_cost
from surerag.messages import Generation, Passage, Result
from surerag.methods.edc2.options import Mode
from surerag.provenance import Stretch

Outcome = Literal["asked", "compressed", "passed", "dropped"]
Trouble = Literal["failed", "unsupported", "truncated", "unasked"]
Label = Literal["factual", "nonfactual", "unclear"]

SOURCES_KEY = "compressed_from"
"""Metadata of a compressed passage: its sources, best first, each with ``id``, ``score`` and ``metadata``."""

UNSUPPORTED_KEY = "unsupported"
"""Metadata of a compressed passage whose unsupported sentences were flagged: these sentences."""


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """What became of one cluster.

    Attributes:
        members: Positions of its passages in the input, the root first.
        sources: Their ids.
        outcome: ``"compressed"``; ``"passed"``: its passages are returned as they came; ``"dropped"``:
            nothing of it is returned. (``"asked"`` while the method is at work.)
        reason: Why, in words.
        text: The compression that is returned, if there is one; or the piece of a passage that was cut to
            the token budget.
        tokens_before: Tokens that went in.
        tokens_after: Tokens of it that are returned.
        removed: Sentences that no source supports, and that were taken out.
        flagged: Sentences that no source supports, and that were left in.
        over_budget: Ids of passages that the token budget left no room for.
        generation: The model's last reply, if it was asked and did not fail.
        earlier: Its replies before that, where a cluster that yielded nothing was asked again.
        trouble: What a person should be told: the reader ``"failed"``; all that it said is
            ``"unsupported"``: no source says it; its reply is ``"truncated"``: cut at ``max_tokens``; or it
            is ``"unasked"``: no calls were left to compress it, or to check what was said.
        provenance: Where each character of the text comes from; sources are numbered by their ranks, as
            in ``compressed_from``.
    """

    members: tuple[int, ...]
    sources: tuple[str, ...]
    tokens_before: int
    tokens_after: int
    outcome: Outcome = "asked"
    reason: str = ""
    text: str = ""
    removed: tuple[str, ...] = ()
    flagged: tuple[str, ...] = ()
    over_budget: tuple[str, ...] = ()
    generation: Generation | None = None
    earlier: tuple[Generation, ...] = ()
    trouble: Trouble | None = None
    provenance: tuple[Stretch, ...] = ()


class Dropped(NamedTuple):
    """What is not returned, and why."""

    sources: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class EDC2Result(Result):
    """A shorter context, and how it came about.

    Attributes:
        query: As asked.
        mode: The mode it was made in.
        passages: What to show the reader, ordered by the best member's rank. A compressed passage has its
            best member's id, score, metadata and origin, lists all sources under ``compressed_from`` in its
            metadata, and under ``provenance`` where each of its characters stands in them; others are the
            very passages that went in.
        clusters: What became of each cluster.
        calls: Prompts that the reader was asked, those asked again included.
        prompt_tokens: Tokens of the prompts that were answered; 0 where the reader does not count.
        completion_tokens: Tokens generated; 0 where the reader does not count.
        fell_back: Whether every cluster that was asked about yielded nothing.
        judgements: Pairs that the entailer was asked about, for ``guard="entailment"``.
        out_of_calls: Whether ``max_calls`` left something undone: clusters that were not asked about
            (``unasked``), or not asked again.
        cached_tokens: Prompt tokens that a server had in its cache, where it tells.
    """

    query: str
    mode: Mode
    passages: tuple[Passage, ...]
    clusters: tuple[ClusterReport, ...]
    calls: int
    prompt_tokens: int
    completion_tokens: int
    fell_back: bool
    judgements: int = 0
    out_of_calls: bool = False
    cached_tokens: int = 0

    @property
    def tokens_before(self) -> int:
        """Tokens of the passages that went in."""
        return sum(report.tokens_before for report in self.clusters)

    @property
    def tokens_after(self) -> int:
        """Tokens of the passages that came out."""
        return sum(report.tokens_after for report in self.clusters)

    @property
    def truncated(self) -> int:
        """Clusters whose compression was cut at ``max_tokens``: their passages are returned in its place."""
        return sum(report.trouble == "truncated" for report in self.clusters)

    @property
    def unasked(self) -> int:
        """Clusters whose passages are returned as they came, because no calls were left."""
        return sum(report.trouble == "unasked" for report in self.clusters)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """What is not returned, and why, a cluster each."""
        whole = [Dropped(r.sources, r.reason) for r in self.clusters if r.outcome == "dropped"]
        partly = [
            Dropped(r.over_budget, "over the token budget")
            for r in self.clusters
            if r.over_budget and r.outcome != "dropped"
        ]
        return (*whole, *partly)

    def cost(self, prompt_price: float, completion_price: float, cached_price: float | None = None) -> float:
        """Cost of the compression at prices for a million tokens (Table 8).

        Args:
            prompt_price: Of tokens that go in.
            completion_price: Of tokens that come out.
            cached_price: Of tokens that go in and are in the server's cache; None is no discount.
        """
        return api_cost(
            self.prompt_tokens,
            self.completion_tokens,
            prompt_price,
            completion_price,
            self.cached_tokens,
            cached_price,
        )


@dataclass(frozen=True, slots=True)
class Consensus(Result):
    """An answer that was selected among those of the clusters.

    Attributes:
        question: As asked.
        answer: The selected answer; the whole reply where the model kept to no form.
        reasoning: Why, in the model's words.
        candidates: The clusters' answers with their evidence.
        compression: How they came about.
        generation: The model's reply; with ``consensus="majority"`` the answer that was taken.
        calls: Prompts that the reader was asked, in all.
    """

    question: str
    answer: str
    reasoning: str
    candidates: tuple[str, ...]
    compression: EDC2Result
    generation: Generation
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Judgement(Result):
    """Whether a statement contains factual errors.

    Attributes:
        statement: As given.
        label: ``"factual"``, ``"nonfactual"``, or ``"unclear"`` where the reply says neither.
        reasoning: Why, in the model's words.
        sources: Ids of the passages that the cited evidence was compressed from; of all evidence where the
            model cited none.
        evidence: What the model was shown.
        compression: How the evidence came about.
        generation: The model's reply.
    """

    statement: str
    label: Label
    reasoning: str
    sources: tuple[str, ...]
    evidence: tuple[Passage, ...]
    compression: EDC2Result
    generation: Generation


@dataclass(frozen=True, slots=True)
class Choice(Result):
    """Which of two answers is without errors.

    Attributes:
        question: As asked.
        answers: Both, in the order in which they were given.
        chosen: 0 for the first, 1 for the second; None where the reply names neither, or the replies to both
            orders disagree.
        reasoning: Why, in the model's words.
        sources: Ids of the passages that the evidence was compressed from.
        evidence: What the model was shown.
        compression: How the evidence came about.
        generations: The model's replies, one for each order that was asked.
    """

    question: str
    answers: tuple[str, str]
    chosen: int | None
    reasoning: str
    sources: tuple[str, ...]
    evidence: tuple[Passage, ...]
    compression: EDC2Result
    generations: tuple[Generation, ...]


def merged_passage(report: ClusterReport, passages: Sequence[Passage]) -> Passage:
    """Return a cluster's compression as a passage that stands for its sources."""
    members = [passages[at] for at in sorted(report.members)]
    best = members[0]
    metadata = {**best.metadata, SOURCES_KEY: [source_entry(member) for member in members]}
    if report.flagged:
        metadata[UNSUPPORTED_KEY] = list(report.flagged)
    return replace(best, text=report.text, metadata=metadata, embedding=None)


def source_entry(passage: Passage) -> dict[str, Any]:
    """Return what the metadata of a compressed passage tells of one of its sources."""
    return {"id": passage.id, "score": passage.score, "metadata": dict(passage.metadata)}
