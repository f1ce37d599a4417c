"""L-RAG: answer from a summary, and retrieve only when entropy says that the reader is unsure.

Voloshyn, "L-RAG: Balancing Context and Retrieval with Entropy-Based Lazy Loading", section III.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

from surerag.effects import Program, begin, cancel, emit, finish, generate, retrieve
from surerag.errors import InputError
from surerag.methods.gating import EntropyGate, Gate, GateDecision
from surerag.prompts import CLOSED_BOOK, FROM_CONTEXT, FROM_CONTEXT_AND_DETAILS, format_passages
from surerag.types import Generation, Passage, Prompt, Sampling, Template

Mode = Literal["none", "standard", "strong", "lazy", "oracle"]
"""The rows of Table I: no retrieval; chunks always; summary and chunks always; gated; gold passages."""


@dataclass(frozen=True, slots=True)
class LazyRAGPrompts:
    """The method's prompts (section III-D); replace any of them, keeping its slots.

    Attributes:
        closed_book: Where there is nothing to show: mode ``"none"``, or nothing was found; slot ``question``.
        first: From one context: the summary, or in modes ``"standard"`` and ``"oracle"`` the passages;
            slots ``context`` and ``question``.
        second: From summary and retrieved passages; slots ``context``, ``details``, ``question``.
    """

    closed_book: Template = CLOSED_BOOK
    first: Template = FROM_CONTEXT
    second: Template = FROM_CONTEXT_AND_DETAILS

    def __post_init__(self) -> None:
        self.closed_book.require("question")
        self.first.require("context", "question")
        self.second.require("context", "details", "question")


@dataclass(frozen=True, slots=True)
class LazyRAGSettings:
    """Everything that steers the method.

    Attributes:
        mode: See :data:`Mode`.
        gate: Decides from the first tokens; None in modes other than ``"lazy"`` changes nothing.
        k: Passages to retrieve.
        m: Document summaries to join for the first pass.
        sampling: How to generate; one sample, greedy by default.
        prompts: The prompts.
    """

    mode: Mode = "lazy"
    gate: Gate = field(default_factory=EntropyGate)
    k: int = 3
    m: int = 3
    sampling: Sampling = field(default_factory=Sampling)
    prompts: LazyRAGPrompts = field(default_factory=LazyRAGPrompts)


@dataclass(frozen=True, slots=True)
class LazyRAGResult:
    """An answer, and how it came about.

    Attributes:
        question: As asked.
        answer: The answer's text.
        decision: What the gate decided and why.
        passages: Retrieved (or gold) passages that the reader was shown; empty where the gate stayed shut.
        summaries: Document summaries that the reader was shown.
        generation: The answer with its log-probabilities and entropies.
        mode: The mode it was made in.
        prompt_tokens: Tokens of all prompts that were read for it, a first pass included.
        completion_tokens: Tokens generated for it, those of an abandoned first pass included.
        retrievals: How often the retriever was asked.
        timings: Seconds by stage: ``summaries``, ``first_pass``, ``retrieval``, ``answer``. Where many
            questions run together, a stage includes the wait for the others.
    """

    question: str
    answer: str
    decision: GateDecision
    passages: tuple[Passage, ...]
    summaries: tuple[Passage, ...]
    generation: Generation
    mode: Mode
    prompt_tokens: int
    completion_tokens: int
    retrievals: int
    timings: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LazyRAGPlan:
    """What is settled before the answer flows; the detail of the event ``lazy_rag.answering``.

    Attributes:
        decision: What the gate decided and why.
        passages: Passages that the reader will be shown.
        summaries: Document summaries that the reader will be shown.
        prompt_tokens: Tokens read so far: those of a first pass, if there was one.
    """

    decision: GateDecision
    passages: tuple[Passage, ...]
    summaries: tuple[Passage, ...]
    prompt_tokens: int


def lazy_rag(
    question: str, settings: LazyRAGSettings, oracle: Sequence[Passage] | None = None
) -> Program[LazyRAGResult]:
    """The two-pass inference of section III.

    Args:
        question: A question, not empty.
        settings: What steers the method.
        oracle: Gold passages; for mode ``"oracle"``, and only there.

    Raises:
        InputError: If the question is empty, or gold passages are missing or out of place.
    """
    if not question.strip():
        raise InputError("the question is empty", hint="ask something")
    if (settings.mode == "oracle") != (oracle is not None):
        raise InputError(
            f"mode {settings.mode!r} with{'' if oracle is not None else 'out'} gold passages",
            hint='pass oracle=… in mode "oracle", and only there',
        )
    watch = _Stopwatch()
    passages: list[Passage] = list(oracle or [])
    summaries: list[Passage] = []
    spent: list[Generation] = []
    decision = GateDecision(settings.mode in ("standard", "strong"), f"mode {settings.mode}")

    if settings.mode in ("lazy", "strong"):
        summaries = yield from retrieve(question, settings.m, tier="summaries")
        watch.lap("summaries")
    context = "\n".join(summary.text for summary in summaries)

    if settings.mode == "lazy":
        n_tokens = settings.gate.n_tokens or settings.sampling.max_tokens
        [begun] = yield from begin([_prompt(settings, question, context)], n_tokens, settings.sampling)
        watch.lap("first_pass")
        decision = settings.gate.decide(begun.partial.trace)
        yield from emit("lazy_rag.gate", question=question, **asdict(decision))
        if not decision.retrieve:
            yield from _announce(LazyRAGPlan(decision, (), tuple(summaries), begun.partial.prompt_tokens))
            [answer] = yield from finish([begun], answer=True)
            watch.lap("answer")
            return _result(question, settings, decision, [], summaries, answer, spent, watch)
        yield from cancel([begun])
        spent.append(begun.partial)

    if decision.retrieve:
        passages = yield from retrieve(question, settings.k)
        watch.lap("retrieval")
        if not passages:
            yield from emit("lazy_rag.nothing_retrieved", warning=True, question=question)

    details = format_passages(passage.text for passage in passages)
    prompt = _prompt(settings, question, context, details)
    read = sum(generation.prompt_tokens for generation in spent)
    yield from _announce(LazyRAGPlan(decision, tuple(passages), tuple(summaries), read))
    [[answer]] = yield from generate([prompt], settings.sampling, answer=True)
    watch.lap("answer")
    return _result(question, settings, decision, passages, summaries, answer, spent, watch)


def _announce(plan: LazyRAGPlan) -> Program[None]:
    """Make known what is settled, so that a stream's reader has it before the first word."""
    yield from emit(
        "lazy_rag.answering",
        detail=plan,
        retrieve=plan.decision.retrieve,
        reason=plan.decision.reason,
        passages=[passage.id for passage in plan.passages],
        summaries=[summary.id for summary in plan.summaries],
    )


def _prompt(settings: LazyRAGSettings, question: str, context: str, details: str = "") -> Prompt:
    """Choose by what there is to show: nothing, one context, or a summary and details (section III-D)."""
    prompts = settings.prompts
    if context and details:
        return prompts.second.render(context=context, details=details, question=question)
    if context or details:
        return prompts.first.render(context=context or details, question=question)
    return prompts.closed_book.render(question=question)


def _result(
    question: str,
    settings: LazyRAGSettings,
    decision: GateDecision,
    passages: Sequence[Passage],
    summaries: Sequence[Passage],
    answer: Generation,
    spent: Sequence[Generation],
    watch: _Stopwatch,
) -> LazyRAGResult:
    passes = [*spent, answer]
    return LazyRAGResult(
        question=question,
        answer=answer.text,
        decision=decision,
        passages=tuple(passages),
        summaries=tuple(summaries),
        generation=answer,
        mode=settings.mode,
        prompt_tokens=sum(generation.prompt_tokens for generation in passes),
        completion_tokens=sum(generation.completion_tokens for generation in passes),
        retrievals=int(decision.retrieve),
        timings=dict(watch.laps),
    )


class _Stopwatch:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = now - self._last
        self._last = now
