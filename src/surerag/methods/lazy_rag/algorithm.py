"""L-RAG: answer from a summary, and retrieve only when entropy says that the reader is unsure.

Voloshyn, "L-RAG: Balancing Context and Retrieval with Entropy-Based Lazy Loading", section III.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from surerag.effects import Program, begin, cancel, emit, finish, generate, retrieve
from surerag.errors import InputError
from surerag.methods.lazy_rag.gate import GateDecision
from surerag.methods.lazy_rag.options import LazyRAGOptions
from surerag.methods.lazy_rag.result import LazyRAGPlan, LazyRAGResult
from surerag.prompts import format_passages
from surerag.types import Generation, Passage, Prompt, Template


def lazy_rag(
    question: str, options: LazyRAGOptions, oracle: Sequence[Passage] | None = None
) -> Program[LazyRAGResult]:
    """The two-pass inference of section III.

    Args:
        question: A question, not empty.
        options: What steers the method.
        oracle: Gold passages; for mode ``"oracle"``, and only there.

    Raises:
        InputError: If the question is empty, or gold passages are missing or out of place.
    """
    if not question.strip():
        raise InputError("the question is empty", hint="ask something")
    if (options.mode == "oracle") != (oracle is not None):
        raise InputError(
            f"mode {options.mode!r} with{'' if oracle is not None else 'out'} gold passages",
            hint='pass oracle=… in mode "oracle", and only there',
        )
    gate, watch = options.gate, _Stopwatch()
    passages: list[Passage] = list(oracle or [])
    summaries: list[Passage] = []
    spent: list[Generation] = []
    decision = GateDecision(options.mode in ("standard", "strong"), f"mode {options.mode}")

    if options.mode in ("lazy", "strong"):
        summaries = yield from retrieve(question, options.n_summaries, tier="summaries")
        watch.lap("summaries")
    context = "\n".join(summary.text for summary in summaries)

    if options.mode == "lazy":
        n_tokens = gate.n_tokens or options.answer_tokens
        [begun] = yield from begin([_prompt(options, question, context)], n_tokens, options.first_pass)
        watch.lap("first_pass")
        decision = gate.decide(begun.partial.trace)
        yield from emit("lazy_rag.gate", question=question, **asdict(decision))
        if not decision.retrieve:
            yield from _announce(LazyRAGPlan(decision, (), tuple(summaries), begun.partial.prompt_tokens))
            [answer] = yield from finish([begun], answer=True)
            watch.lap("answer")
            return _result(question, options, decision, [], summaries, answer, spent, watch)
        yield from cancel([begun])
        spent.append(begun.partial)

    if decision.retrieve:
        passages = yield from retrieve(question, options.top_n)
        watch.lap("retrieval")
        if not passages:
            yield from emit("lazy_rag.nothing_retrieved", warning=True, question=question)

    details = format_passages(passage.text for passage in passages)
    prompt = _prompt(options, question, context, details)
    read = sum(generation.prompt_tokens for generation in spent)
    yield from _announce(LazyRAGPlan(decision, tuple(passages), tuple(summaries), read))
    [[answer]] = yield from generate([prompt], options.answering, answer=True)
    watch.lap("answer")
    return _result(question, options, decision, passages, summaries, answer, spent, watch)


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


def _prompt(options: LazyRAGOptions, question: str, context: str, details: str = "") -> Prompt:
    """Choose by what there is to show: nothing, one context, or a summary and details (section III-D)."""
    prompts: Mapping[str, Template] = options.prompts
    if context and details:
        return prompts["from_context_and_details"].render(context=context, details=details, question=question)
    if context or details:
        return prompts["from_context"].render(context=context or details, question=question)
    return prompts["closed_book"].render(question=question)


def _result(
    question: str,
    options: LazyRAGOptions,
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
        mode=options.mode,
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
