"""Plans of requests: written once, and followed over the sync or the async client."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from surerag.errors import ServiceError, ThinkingBudgetError
from surerag.messages import Generation, Prompt, SamplingParams, TokenTrace, Usage
from surerag.readers.hosted.knowledge import Knowledge
from surerag.readers.hosted.logprobs import Wanted
from surerag.readers.hosted.parse import choices_of, usage_of
from surerag.readers.hosted.probe import Inquiry
from surerag.readers.hosted.requests import Ask, body_of, seed_of, wanted_for
from surerag.readers.hosted.score import Scoring, score_ask, score_trace
from surerag.readers.hosted.text import Json
from surerag.readers.hosted.transport import Transport

R = TypeVar("R")
Plan = Generator[list[Ask], list[Json], R]
"""Yields requests that may go out at once, and receives their answers in order."""


class _Round(NamedTuple):
    """One request for some of the samples of a prompt: the first of them, and how many."""

    position: int
    sample: int
    size: int


def samples(
    known: Knowledge,
    model: str,
    prompts: Sequence[Prompt],
    sampling: SamplingParams,
    wanted: Wanted,
    count: Callable[[Usage], None],
) -> Plan[list[list[Generation]]]:
    """Ask for ``sampling.n`` answers to each prompt, and again for those that were left out.

    An answer that was cut off because a model spent its tokens on thinking, before it was known to think, is
    asked for again with tokens to do so.

    Args:
        known: What is known of the model; it learns from the answers.
        model: Its name at the server.
        prompts: What to ask.
        sampling: How to sample; at temperature 0 one answer stands for all.
        wanted: What to ask of each token, if it is needed.
        count: Corrects the reader's totals.

    Raises:
        CapabilityError: If a model thinks although it was told not to.
        ThinkingBudgetError: If it was still thinking when its budget was spent.
    """
    known.allow()
    wanted = wanted_for(sampling, wanted)
    needed = sampling.n if sampling.temperature > 0 else 1
    answers: list[list[Generation]] = [[] for _ in prompts]
    while missing := [position for position, found in enumerate(answers) if len(found) < needed]:
        budget = known.budget
        rounds = [
            asked
            for position in missing
            for asked in _rounds(known, position, len(answers[position]), needed)
        ]
        parts = [replace(sampling, n=size, seed=seed_of(sampling.seed, sample)) for _, sample, size in rounds]
        given = yield [
            Ask(
                known.api,
                body_of(known.api, model, prompts[asked.position], part, wanted, budget),
                # What may be left out is a matter of all samples, also where they are asked for one by one.
                sampling=replace(part, n=needed),
            )
            for asked, part in zip(rounds, parts, strict=True)
        ]
        for asked, answer in zip(rounds, given, strict=True):
            try:
                found = _generations(known, answer, sampling, wanted, budget, count)[: asked.size]
            except ThinkingBudgetError:
                if budget or not known.thinks:
                    raise
                continue
            if not budget and known.budget and any(_starved(generation, sampling) for generation in found):
                continue
            answers[asked.position] += found
            known.together = known.together and (len(found) == asked.size or len(found) > 1)
    copies = sampling.n if needed == 1 else 1
    return [found[:needed] * copies for found in answers]


def _rounds(known: Knowledge, position: int, start: int, count: int) -> list[_Round]:
    if known.together:
        return [_Round(position, start, count - start)]
    return [_Round(position, sample, 1) for sample in range(start, count)]


def scores(
    how: Scoring,
    known: Knowledge,
    model: str,
    prompts: Sequence[Prompt],
    continuations: Sequence[str],
    wanted: Wanted,
) -> Plan[list[TokenTrace]]:
    """Have each continuation read back after its prompt; an empty one needs no asking."""
    pairs = [pair for pair in zip(prompts, continuations, strict=True) if pair[1]]
    given = yield [score_ask(how, known.api, model, *pair, wanted) for pair in pairs]
    read = known.listed(wanted)
    traces = iter(score_trace(how, answer, *pair, read) for answer, pair in zip(given, pairs, strict=True))
    return [next(traces) if continuation else TokenTrace((), ()) for continuation in continuations]


def follow(plan: Plan[R], transport: Transport) -> R:
    """Follow a plan over the sync client."""
    try:
        asks = next(plan)
        while True:
            asks = plan.send(transport.clients.each(transport.ask, asks))
    except StopIteration as end:
        result: R = end.value
        return result


async def afollow(plan: Plan[R], transport: Transport) -> R:
    """Follow a plan over the async client."""
    try:
        asks = next(plan)
        while True:
            asks = plan.send(await transport.clients.aeach(transport.aask, asks))
    except StopIteration as end:
        result: R = end.value
        return result


def inquire(inquiry: Inquiry[R], transport: Transport) -> R:
    """Ask an inquiry's questions over the sync client; a failure is an answer, too."""
    try:
        ask = next(inquiry)
        while True:
            try:
                finding: Json | ServiceError = transport.ask(ask)
            except ServiceError as error:
                finding = error
            ask = inquiry.send(finding)
    except StopIteration as end:
        result: R = end.value
        return result


async def ainquire(inquiry: Inquiry[R], transport: Transport) -> R:
    """Ask an inquiry's questions over the async client; a failure is an answer, too."""
    try:
        ask = next(inquiry)
        while True:
            try:
                finding: Json | ServiceError = await transport.aask(ask)
            except ServiceError as error:
                finding = error
            ask = inquiry.send(finding)
    except StopIteration as end:
        result: R = end.value
        return result


def _starved(answer: Generation, sampling: SamplingParams) -> bool:
    """Whether an answer was cut short by the thoughts before it."""
    spent = answer.completion_tokens < sampling.max_tokens
    return answer.finish == "length" and answer.thinking_tokens > 0 and spent


def _generations(
    known: Knowledge,
    answer: Json,
    sampling: SamplingParams,
    wanted: Wanted,
    budget: int,
    count: Callable[[Usage], None],
) -> list[Generation]:
    """Read all choices of one answer; its usage is one sum for all of them."""
    choices = choices_of(answer)
    usage = usage_of(answer)
    share = usage
    if len(choices) > 1:
        thinking = -(-usage.thinking_tokens // len(choices))
        share = Usage(1, usage.prompt_tokens, 0, thinking, usage.cached_tokens)
    drafts = []
    for choice in choices:
        draft = known.draft(wanted, sampling, budget=budget, usage=share)
        draft.feed(choice)
        known.saw(draft)
        drafts.append(draft)
    found = [draft.generation() for draft in drafts]
    # A server that does not tell thoughts from answers in its count has their tokens in its lists.
    moved = sum(generation.thinking_tokens for generation in found) - usage.thinking_tokens
    if moved > 0 and not usage.thinking_tokens:
        count(Usage(0, 0, -min(moved, usage.completion_tokens), moved))
    return found
