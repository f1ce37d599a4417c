"""L-RAG: answer from a summary, and retrieve only when a gate says that the reader is unsure.

Voloshyn, "L-RAG: Balancing Context and Retrieval with Entropy-Based Lazy Loading", section III.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

from surerag.effects import (
    Program,
    cancel_generation,
    continue_generation,
    emit,
    generate,
    retrieve,
    return_answer,
    start_generation,
)
from surerag.errors import InputError
from surerag.messages import Generation, PartialGeneration, Passage, Prompt, Template
from surerag.methods.inputs import check_question
from surerag.methods.lazy_rag.gate import FirstPass, GateDecision
from surerag.methods.lazy_rag.options import LazyRAGOptions
from surerag.methods.lazy_rag.result import LazyRAGPlan, LazyRAGResult
from surerag.methods.meanings import Meanings, meanings_of, typical
from surerag.prompts import format_passages
from surerag.refusal import begins_to_refuse, refuses, worded


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
    check_question(question)
    if (options.mode == "oracle") != (oracle is not None):
        raise InputError(
            f"mode {options.mode!r} with{'' if oracle is not None else 'out'} gold passages",
            hint='pass oracle=… in mode "oracle", and only there',
        )
    watch, spent = _Stopwatch(), _Spent()
    passages: list[Passage] = list(oracle or [])
    summaries: list[Passage] = []
    decisions = [GateDecision(options.mode in ("standard", "strong"), f"mode {options.mode}")]
    gated, said = options.mode == "lazy", ""

    if options.mode in ("lazy", "strong"):
        summaries = yield from retrieve(question, options.rules.n_summaries, tier="summaries")
        watch.lap("summaries")
    context = "\n".join(summary.text for summary in summaries)
    prompt = _prompt(options, question, context, format_passages(passage.text for passage in passages))

    for hop in range(options.max_hops + 1):
        if gated and hop < options.max_hops and not spent.short:
            looked = yield from _look(question, options, prompt, tuple(summaries), spent, hop)
            watch.lap("first_pass" if hop == 0 else "later_passes")
            decisions[hop:] = [looked.decision]
            if not looked.decision.retrieve:
                yield from _announce(_plan(decisions, passages, summaries, spent, looked.begun))
                if looked.begun:
                    [answer] = yield from continue_generation(looked.begun, answer=True)
                    spent.add([answer])
                else:
                    answer = yield from return_answer(typical(looked.seen.samples, looked.seen.clusters))
                return _result(question, options, decisions, passages, summaries, answer, spent, watch)
            said = _said(looked.begun, looked.seen)
            if looked.begun:
                yield from cancel_generation(looked.begun)
                spent.add([one.partial for one in looked.begun])
        elif hop or not decisions[0].retrieve:
            break
        # What the reader says of what it has so far leads to what it lacks (ITER-RETGEN, Shao et al., 2023).
        query = question if hop == 0 else f"{question} {said}".strip()
        found = yield from retrieve(query, options.rules.top_n)
        spent.retrievals += 1
        watch.lap("retrieval")
        known = {(passage.id, passage.text) for passage in passages}
        fresh = [passage for passage in found if (passage.id, passage.text) not in known]
        passages += fresh
        if not passages:
            yield from emit("lazy_rag.nothing_retrieved", warning=True, question=question)
        prompt = _prompt(options, question, context, format_passages(passage.text for passage in passages))
        if not fresh:
            break

    yield from _announce(_plan(decisions, passages, summaries, spent))
    [[answer]] = yield from generate([prompt], options.answering, answer=True)
    spent.add([answer])
    spent.calls += 1
    return _result(question, options, decisions, passages, summaries, answer, spent, watch)


class _Looked(NamedTuple):
    """What the gate saw, and what it made of it."""

    decision: GateDecision
    begun: list[PartialGeneration]
    seen: FirstPass


def _look(
    question: str,
    options: LazyRAGOptions,
    prompt: Prompt,
    summaries: tuple[Passage, ...],
    spent: _Spent,
    hop: int,
) -> Program[_Looked]:
    """Have the gate look at how the reader begins to answer."""
    answers = options.gate_in_force.look.answers
    # One call is kept for the answer after retrieval, and what the gates of later hops look at.
    kept = spent.calls + answers * (options.max_hops - hop) + 1
    left = math.inf if options.max_calls is None else options.max_calls - kept
    begun, seen = yield from _first_pass(question, options, prompt, summaries, left)
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
    told = asdict(decision) | ({"hop": hop} if hop else {})
    yield from emit("lazy_rag.gate", question=question, **told)
    spent.add(seen.samples)
    return _Looked(decision, begun, seen)


def _first_pass(
    question: str, options: LazyRAGOptions, prompt: Prompt, summaries: tuple[Passage, ...], left: float
) -> Program[tuple[list[PartialGeneration], FirstPass]]:
    """Ask for what the gate has to see: the beginning of the greedy answer, samples, or both.

    Returns:
        What was begun, to be finished or cancelled, and what the gate gets to see.
    """
    look = options.gate_in_force.look
    begun: list[PartialGeneration] = []
    samples: list[Generation] = []
    if look.n_tokens != 0:
        begun = yield from start_generation(
            [prompt], look.n_tokens or options.answer_tokens, options.first_pass
        )
    if look.n_samples:
        [samples] = yield from generate([prompt], options.sampling)
    found = Meanings(())
    if samples:
        found = yield from meanings_of(question, samples, look.same_meaning or "words", left)
    answer = begun[0].partial if begun else None
    return begun, FirstPass(answer, tuple(samples), found.clusters, found.judgements, summaries)


def _said(begun: Sequence[PartialGeneration], seen: FirstPass) -> str:
    """Return the answer as far as the gate has seen it; of samples, the one that most agree with."""
    if begun:
        return begun[0].partial.text
    return typical(seen.samples, seen.clusters).text if seen.clusters else ""


def _known(
    decision: GateDecision, begun: Sequence[PartialGeneration], seen: FirstPass, options: LazyRAGOptions
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


def _plan(
    decisions: Sequence[GateDecision],
    passages: Sequence[Passage],
    summaries: Sequence[Passage],
    spent: _Spent,
    begun: Sequence[PartialGeneration] = (),
) -> LazyRAGPlan:
    read = spent.prompt_tokens + sum(one.partial.prompt_tokens for one in begun)
    return LazyRAGPlan(decisions[0], tuple(passages), tuple(summaries), read)


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
    decisions: Sequence[GateDecision],
    passages: Sequence[Passage],
    summaries: Sequence[Passage],
    answer: Generation,
    spent: _Spent,
    watch: _Stopwatch,
) -> LazyRAGResult:
    watch.lap("answer")
    return LazyRAGResult(
        question=question,
        answer=answer.text,
        decision=decisions[0],
        decisions=tuple(decisions),
        passages=tuple(passages),
        summaries=tuple(summaries),
        generation=answer,
        mode=options.mode,
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
        retrievals=spent.retrievals,
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
        self.retrievals = 0
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
        self.laps[stage] = self.laps.get(stage, 0.0) + now - self._last
        self._last = now
