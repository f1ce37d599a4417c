"""What steers the compression of clusters, and what it reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from surerag.clustering import Order, Root
from surerag.errors import ConfigurationError
from surerag.measures import api_cost
from surerag.methods.faithfulness import Guard
from surerag.methods.refusals import NothingRule
from surerag.prompts import ANSWER_WITH_EVIDENCE, EXTRACT, FACT_CHECK, format_passages
from surerag.types import Generation, Passage, Prompt, Sampling, Template

CompressionMode = Literal["extract", "answer_with_evidence", "fact_check"]
"""What to ask of each cluster: the prompt of section 4.3, of appendix C.2 or of appendix C.1."""

Clustering = Literal["dynamic", "average", "random", "single"]
"""Algorithm 1; the controls of Table 4; each document alone (the baseline "chunk compression")."""

Variant = Literal["default", "paper", "official"]
AllEmpty = Literal["original", "nothing"]
OnFailure = Literal["original", "raise"]
Trouble = Literal["failed", "unsupported"]
Outcome = Literal["asked", "compressed", "passed", "dropped"]

VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "default": {
            "root": "query", "count_root": True, "tau": 3, "cap": 20, "order": "similarity",
            "nothing": "anchored", "all_empty": "original", "pass_below": 32, "refuse_longer": True,
        },
        "paper": {
            "root": "query", "count_root": True, "tau": 3, "cap": 20, "order": "similarity",
            "nothing": "sentinel", "all_empty": "original", "pass_below": 0, "refuse_longer": False,
            "guard": "off",
        },
        "official": {
            "root": "rank", "count_root": False, "tau": "auto", "cap": 20, "order": "rank",
            "nothing": "legacy", "all_empty": "nothing", "pass_below": 0, "refuse_longer": False,
            "guard": "off",
        },
    }
)  # fmt: skip
"""Where the paper and the authors' code differ, and what we take; the one place that knows."""

SOURCES_KEY = "compressed_from"
"""Metadata of a compressed passage: its sources, best first, each with ``id``, ``score`` and ``metadata``."""


UNSUPPORTED_KEY = "unsupported"
"""Metadata of a compressed passage whose unsupported sentences were flagged: these sentences."""


@dataclass(frozen=True, slots=True)
class FewShot:
    """A worked example for the prompt.

    Attributes:
        query: The question or statement.
        passages: Texts of its documents.
        reply: What is to come out.
    """

    query: str
    passages: tuple[str, ...]
    reply: str


@dataclass(frozen=True, slots=True)
class CompressionPrompts:
    """The method's prompts, one a mode; replace any of them, keeping its slots.

    Attributes:
        extract: Slots ``examples``, ``question``, ``passages``.
        answer_with_evidence: Slots ``examples``, ``question``, ``passages``.
        fact_check: Slots ``examples``, ``statement``, ``passages``.
    """

    extract: Template = EXTRACT
    answer_with_evidence: Template = ANSWER_WITH_EVIDENCE
    fact_check: Template = FACT_CHECK

    def __post_init__(self) -> None:
        self.extract.require("examples", "question", "passages")
        self.answer_with_evidence.require("examples", "question", "passages")
        self.fact_check.require("examples", "statement", "passages")


class _Words(NamedTuple):
    """What an example calls its query and its reply, as its mode's prompt does."""

    query: str
    reply: str


_WORDS = {
    "extract": _Words("Question", "Extracted"),
    "answer_with_evidence": _Words("Question", "Answer"),
    "fact_check": _Words("Statement", "Extracted"),
}


_CHOICES: Mapping[str, tuple[str, ...]] = {
    "mode": ("extract", "answer_with_evidence", "fact_check"),
    "clustering": ("dynamic", "average", "random", "single"),
    "root": ("query", "rank"),
    "order": ("similarity", "rank"),
    "nothing": ("anchored", "sentinel", "legacy"),
    "all_empty": ("original", "nothing"),
    "guard": ("overlap", "entailment", "off"),
    "guard_action": ("remove", "flag"),
    "on_failure": ("original", "raise"),
}
_LEAST = {"tau": 1, "cap": 1, "pass_below": 0, "budget": 1, "bridging": 0}


@dataclass(frozen=True, slots=True)
class CompressionSettings:
    """Everything that steers the method; the public class fills it in.

    What is not named here is the setting of that name in
    :class:`~surerag.methods.compression_options.CompressorOptions`, the variant's value filled in.

    Attributes:
        sampling: How to generate.
        measure: Tokens of a passage, as the pipeline will show it.
        split: Sentences of a text.
        cap: Largest size of a cluster; None for no bound.
        prompts: The prompts.
    """

    sampling: Sampling
    measure: Callable[[Passage], int]
    split: Callable[[str], list[str]]
    mode: CompressionMode = "extract"
    clustering: Clustering = "dynamic"
    root: Root = "query"
    count_root: bool = True
    tau: int | Literal["auto"] = 3
    cap: int | None = 20
    order: Order = "similarity"
    nothing: NothingRule = "anchored"
    all_empty: AllEmpty = "original"
    pass_below: int = 32
    refuse_longer: bool = True
    guard: Guard = "overlap"
    guard_action: Literal["remove", "flag"] = "remove"
    support: float = 0.6
    on_failure: OnFailure = "original"
    budget: int | None = None
    bridging: int = 0
    examples: tuple[FewShot, ...] = ()
    prompts: CompressionPrompts = field(default_factory=CompressionPrompts)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ConfigurationError(
                    f"unknown {name} {getattr(self, name)!r}", hint=f"choose one of {', '.join(allowed)}"
                )
        for name, bound in _LEAST.items():
            value = getattr(self, name)
            if value not in (None, "auto") and not (isinstance(value, int) and value >= bound):
                raise ConfigurationError(f"{name} must be at least {bound}, got {value!r}")
        if not 0 < self.support <= 1:
            raise ConfigurationError(f"support must be in (0, 1], got {self.support!r}")

    def tau_for(self, documents: int) -> int:
        """Return τ for a number of documents."""
        if self.tau == "auto":
            return 1 if documents <= 10 else 3
        return self.tau

    def render(self, query: str, passages: str) -> Prompt:
        """Return the prompt of this mode."""
        template: Template = getattr(self.prompts, self.mode)
        words = _WORDS[self.mode]
        examples = "".join(
            f"{words.query}: {example.query}\nDocuments:\n{format_passages(example.passages)}\n"
            f"{words.reply}: {example.reply}\n\n"
            for example in self.examples
        )
        return template.render(examples=examples, passages=passages, **{words.query.lower(): query})


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """What became of one cluster.

    Attributes:
        members: Positions of its passages in the input, the root first.
        sources: Their ids.
        outcome: ``"compressed"``; ``"passed"``: its passages are returned as they came; ``"dropped"``:
            nothing of it is returned. (``"asked"`` while the method is at work.)
        reason: Why, in words.
        text: The compression that is returned, if there is one.
        tokens_before: Tokens that went in.
        tokens_after: Tokens of it that are returned.
        removed: Sentences that no source supports, and that were taken out.
        flagged: Sentences that no source supports, and that were left in.
        over_budget: Ids of passages that the token budget left no room for.
        generation: The model's last reply, if it was asked and did not fail.
        earlier: Its replies before that, where a cluster that yielded nothing was asked again.
        trouble: What a person should be told: the reader ``"failed"``, or all that it said is
            ``"unsupported"``: no source says it.
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


class Dropped(NamedTuple):
    """What is not returned, and why."""

    sources: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class CompressionResult:
    """A shorter context, and how it came about.

    Attributes:
        query: As asked.
        mode: The mode it was made in.
        passages: What to show the reader, ordered by the best member's rank. A compressed passage has its
            best member's id, score, metadata and origin, and lists all sources under ``compressed_from`` in
            its metadata; others are the very passages that went in.
        clusters: What became of each cluster.
        calls: Prompts that the reader was asked, those asked again included.
        prompt_tokens: Tokens of the prompts that were answered; 0 where the reader does not count.
        completion_tokens: Tokens generated; 0 where the reader does not count.
        fell_back: Whether every cluster that was asked about yielded nothing.
    """

    query: str
    mode: CompressionMode
    passages: tuple[Passage, ...]
    clusters: tuple[ClusterReport, ...]
    calls: int
    prompt_tokens: int
    completion_tokens: int
    fell_back: bool

    @property
    def tokens_before(self) -> int:
        """Tokens of the passages that went in."""
        return sum(report.tokens_before for report in self.clusters)

    @property
    def tokens_after(self) -> int:
        """Tokens of the passages that came out."""
        return sum(report.tokens_after for report in self.clusters)

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

    def cost(self, prompt_price: float, completion_price: float) -> float:
        """Cost of the compression at prices for a million tokens (Table 8)."""
        return api_cost(self.prompt_tokens, self.completion_tokens, prompt_price, completion_price)


def merged_passage(report: ClusterReport, passages: Sequence[Passage]) -> Passage:
    """Return a cluster's compression as a passage that stands for its sources."""
    members = [passages[at] for at in sorted(report.members)]
    best = members[0]
    sources = [
        {"id": member.id, "score": member.score, "metadata": dict(member.metadata)} for member in members
    ]
    metadata = {**best.metadata, SOURCES_KEY: sources}
    if report.flagged:
        metadata[UNSUPPORTED_KEY] = list(report.flagged)
    return replace(best, text=report.text, metadata=metadata, embedding=None)


_TOKEN = re.compile(r"\w+|[^\w\s]")


def words_and_marks(text: str) -> int:
    """Count words and punctuation marks: a rough measure of tokens that needs no tokenizer.

    Example:
        >>> words_and_marks("Ada was born in Velm.")
        6
    """
    return len(_TOKEN.findall(text))
