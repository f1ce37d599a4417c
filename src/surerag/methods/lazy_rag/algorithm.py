"""L-RAG: answer from a summary, and retrieve only when a gate says that the reader is unsure.

Voloshyn, "L-RAG: Balancing Context and Retrieval with Entropy-Based Lazy Loading", section III.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from surerag.effects import Program, begin, cancel, emit, finish, generate, give, retrieve
from surerag.errors import InputError
from surerag.methods.lazy_rag.gate import FirstPass, GateDecision
from surerag.methods.lazy_rag.options import LazyRAGOptions
from surerag.methods.lazy_rag.result import LazyRAGPlan, LazyRAGResult
from surerag.methods.meanings import Meanings, meanings_of, typical
from surerag.prompts import format_passages
from surerag.refusal import begins_to_refuse, refuses, worded
from surerag.types import Begun, Generation, Passage, Prompt, Template


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
    watch = _Stopwatch()
    passages: list[Passage] = list(oracle or [])
    summaries: list[Passage] = []
    spent = _Spent()
    decision = GateDecision(options.mode in ("standard", "strong"), f"mode {options.mode}")

    if options.mode in ("lazy", "strong"):
        summaries = yield from retrieve(question, options.rules.n_summaries, tier="summaries")
        watch.lap("summaries")
    context = "\n".join(summary.text for summary in summaries)

    if options.mode == "lazy":
        begun, seen = yield from _first_pass(
            question, options, _prompt(options, question, context), tuple(summaries)
        )
        watch.lap("first_pass")
        spent.calls += seen.calls
        if seen.samples and not seen.clusters:
            spent.short = True
            decision = _undecided(seen, options)
            yield from emit(
                "lazy_rag.out_of_calls",
                warning=True,
                question=question,
                max_calls=options.max_calls,
                calls=seen.calls,
            )
        else:
            decision = _known(options.gate_in_force.decide(seen, options.boundary()), begun, seen, options)
        yield from emit("lazy_rag.gate", question=question, **asdict(decision))
        spent.add(seen.samples)
        if not decision.retrieve:
            read = spent.prompt_tokens + sum(one.partial.prompt_tokens for one in begun)
            yield from _announce(LazyRAGPlan(decision, (), tuple(summaries), read))
            if begun:
                [answer] = yield from finish(begun, answer=True)
                spent.add([answer])
            else:
                answer = yield from give(typical(seen.samples, seen.clusters))
            watch.lap("answer")
            return _result(question, options, decision, [], summaries, answer, spent, watch)
        if begun:
            yield from cancel(begun)
            spent.add([one.partial for one in begun])

    if decision.retrieve:
        passages = yield from retrieve(question, options.rules.top_n)
        watch.lap("retrieval")
        if not passages:
            yield from emit("lazy_rag.nothing_retrieved", warning=True, question=question)

    details = format_passages(passage.text for passage in passages)
    prompt = _prompt(options, question, context, details)
    yield from _announce(LazyRAGPlan(decision, tuple(passages), tuple(summaries), spent.prompt_tokens))
    [[answer]] = yield from generate([prompt], options.answering, answer=True)
    spent.add([answer])
    spent.calls += 1
    watch.lap("answer")
    return _result(question, options, decision, passages, summaries, answer, spent, watch)


def _first_pass(
    question: str, options: LazyRAGOptions, prompt: Prompt, summaries: tuple[Passage, ...]
) -> Program[tuple[list[Begun], FirstPass]]:
    """Ask for what the gate has to see: the beginning of the greedy answer, samples, or both.

    Returns:
        What was begun, to be finished or cancelled, and what the gate gets to see.
    """
    look = options.gate_in_force.look
    begun: list[Begun] = []
    samples: list[Generation] = []
    if look.n_tokens != 0:
        begun = yield from begin([prompt], look.n_tokens or options.answer_tokens, options.first_pass)
    if look.n_samples:
        [samples] = yield from generate([prompt], options.sampling)
    found = Meanings(())
    if samples:
        # One call is kept for the answer after retrieval.
        left = math.inf if options.max_calls is None else options.max_calls - look.answers - 1
        found = yield from meanings_of(question, samples, look.same_meaning or "words", left)
    answer = begun[0].partial if begun else None
    return begun, FirstPass(answer, tuple(samples), found.clusters, found.judgements, summaries)


def _known(
    decision: GateDecision, begun: Sequence[Begun], seen: FirstPass, options: LazyRAGOptions
) -> GateDecision:
    """Retrieve, however sure the reader is, where what it is sure of is that it does not know."""
    if decision.retrieve or options.refusal is None or options.boundary() == math.inf:
        return decision
    said = begun[0].partial if begun else typical(seen.samples, seen.clusters)
    if not begins_to_refuse(said.text, options.refusal):
        return decision
    return replace(decision, retrieve=True, reason="the first pass says that it does not know")


def _undecided(seen: FirstPass, options: LazyRAGOptions) -> GateDecision:
    """Retrieve, where no calls are left to judge which of the sampled answers mean the same."""
    gate = options.gate_in_force
    return GateDecision(
        True,
        "no calls were left to judge the samples",
        gate.name,
        unit=gate.unit,
        threshold=options.boundary(),
        calls=seen.calls,
        tokens=seen.tokens,
    )


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
        prompt = prompts["from_context_and_details"].render(
            context=context, details=details, question=question
        )
    elif context or details:
        prompt = prompts["from_context"].render(context=context or details, question=question)
    else:
        prompt = prompts["closed_book"].render(question=question)
    return worded(prompt, options)


def _result(
    question: str,
    options: LazyRAGOptions,
    decision: GateDecision,
    passages: Sequence[Passage],
    summaries: Sequence[Passage],
    answer: Generation,
    spent: _Spent,
    watch: _Stopwatch,
) -> LazyRAGResult:
    return LazyRAGResult(
        question=question,
        answer=answer.text,
        decision=decision,
        passages=tuple(passages),
        summaries=tuple(summaries),
        generation=answer,
        mode=options.mode,
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
        retrievals=int(decision.retrieve),
        timings=dict(watch.laps),
        calls=spent.calls,
        out_of_calls=spent.short,
        abstained=refuses(answer.text, options.refusal),
        cached_tokens=spent.cached_tokens,
    )


class _Spent:
    """Calls that were made, and tokens that were read and generated."""

    def __init__(self) -> None:
        self.calls = 0
        self.short = False
        self.cached_tokens = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0

    def add(self, answers: Sequence[Generation]) -> None:
        """Count the answers to one prompt, which was read once for all of them."""
        self.prompt_tokens += answers[0].prompt_tokens if answers else 0
        self.cached_tokens += answers[0].cached_tokens if answers else 0
        self.completion_tokens += sum(answer.completion_tokens for answer in answers)


class _Stopwatch:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.laps[stage] = now - self._last
        self._last = now
