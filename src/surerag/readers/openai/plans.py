"""Plans of requests: written once, and followed over the sync or the async client."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from surerag.errors import ServiceError
from surerag.readers.openai.parse import Api, Draft, Json, Wanted, choices_of, usage_of
from surerag.readers.openai.probe import Inquiry
from surerag.readers.openai.requests import Ask, body_of, seed_of
from surerag.readers.openai.score import Scoring, score_ask, score_trace
from surerag.readers.openai.transport import Transport
from surerag.types import Generation, Prompt, Sampling, TokenTrace, Usage

R = TypeVar("R")
Plan = Generator[list[Ask], list[Json], R]
"""Yields requests that may go out at once, and receives their answers in order."""


class Samples(NamedTuple):
    """Generations for each prompt, and whether the server gave several to one request."""

    generations: list[list[Generation]]
    together: bool


def samples(
    api: Api, model: str, prompts: Sequence[Prompt], sampling: Sampling, wanted: Wanted, *, together: bool
) -> Plan[Samples]:
    """Ask for ``sampling.n`` answers to each prompt, and again for those that were left out.

    Args:
        api: Where to ask.
        model: Which model.
        prompts: What to ask.
        sampling: How to sample; at temperature 0 one answer stands for all.
        wanted: What to ask of each token.
        together: Whether the server is thought to give several samples to one request.
    """
    count = sampling.n if sampling.temperature > 0 else 1
    answers: list[list[Generation]] = [[] for _ in prompts]
    while missing := [position for position, found in enumerate(answers) if len(found) < count]:
        rounds = [
            (position, sample, count - sample if together else 1)
            for position in missing
            for sample in range(len(answers[position]), len(answers[position]) + 1 if together else count)
        ]
        given = yield [
            Ask(api, body_of(api, model, prompts[position], _part(sampling, sample, size), wanted))
            for position, sample, size in rounds
        ]
        for (position, _, size), answer in zip(rounds, given, strict=True):
            found = _generations(answer, wanted)[:size]
            answers[position] += found
            together = together and len(found) == size
    copies = sampling.n if count == 1 else 1
    return Samples([found * copies for found in answers], together)


def scores(
    how: Scoring,
    api: Api,
    model: str,
    prompts: Sequence[Prompt],
    continuations: Sequence[str],
    wanted: Wanted,
) -> Plan[list[TokenTrace]]:
    """Have each continuation read back after its prompt; an empty one needs no asking."""
    pairs = [pair for pair in zip(prompts, continuations, strict=True) if pair[1]]
    given = yield [score_ask(how, api, model, *pair, wanted) for pair in pairs]
    traces = iter(score_trace(how, answer, *pair, wanted) for answer, pair in zip(given, pairs, strict=True))
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


def _part(sampling: Sampling, sample: int, size: int) -> Sampling:
    return replace(sampling, n=size, seed=seed_of(sampling.seed, sample))


def _generations(answer: Json, wanted: Wanted) -> list[Generation]:
    """Read all choices of one answer; its usage is one sum for all of them."""
    choices = choices_of(answer)
    usage = usage_of(answer)
    drafts = []
    for choice in choices:
        draft = Draft(wanted, usage=Usage(1, usage.prompt_tokens, 0))
        draft.feed(choice)
        if len(choices) == 1:
            draft.usage = usage
        drafts.append(draft)
    return [draft.generation() for draft in drafts]
