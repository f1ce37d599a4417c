"""Effects that a method yields, and that drivers answer.

A method is a generator that yields effects and receives their answers, so that the algorithm stands
on the page once and serves sync, async, batch, streaming and tests alike. Each effect has a function
of the same name in lower case that yields it and types its answer::

    answers = yield from generate([prompt], SamplingParams())

The functions replace lone surrogates in texts, which no tokenizer can hold: one of them would fail the whole
batch that its text is merged into.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from surerag.messages import (
    Event,
    Generation,
    Message,
    Pair,
    PartialGeneration,
    Passage,
    Prompt,
    SamplingParams,
    TokenTrace,
)
from surerag.text import replace_surrogates

R = TypeVar("R")
TextKind = Literal["query", "document"]
Tier = Literal["passages", "summaries", "documents"]
ModelRole = Literal["reader", "rewriter"]


@dataclass(frozen=True, slots=True)
class Generate:
    """Ask the reader for ``sampling.n`` answers to each prompt; answered by a list for each prompt.

    Attributes:
        prompts: The prompts.
        sampling: How to generate.
        answer: Whether this is the method's answer, whose text a streaming driver may stream.
        role: Model to ask; where there is no rewriter, it is the reader.
    """

    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    answer: bool = False
    role: ModelRole = "reader"


@dataclass(frozen=True, slots=True)
class StartGeneration:
    """Ask for the first ``n_tokens`` tokens of each prompt; answered by one partial generation each."""

    prompts: tuple[Prompt, ...]
    n_tokens: int
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class ContinueGeneration:
    """Finish what was begun, reading nothing again; answered by one generation each."""

    begun: tuple[PartialGeneration, ...]
    answer: bool = False


@dataclass(frozen=True, slots=True)
class CancelGeneration:
    """Free what was begun; answered by None."""

    begun: tuple[PartialGeneration, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Score continuations of prompts by the reader; answered by one trace a pair."""

    prompts: tuple[Prompt, ...]
    continuations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Embed:
    """Ask the encoder for vectors; answered by an array [texts, dimensions]."""

    texts: tuple[str, ...]
    kind: TextKind


@dataclass(frozen=True, slots=True)
class Retrieve:
    """Ask the retriever or the index of summaries for passages, best first.

    ``k`` None leaves the number to the retriever.
    """

    query: str
    k: int | None
    tier: Tier = "passages"


CONTRADICTION, NEUTRAL, ENTAILMENT = range(3)
"""Columns of an entailer's probabilities."""


@dataclass(frozen=True, slots=True)
class Entail:
    """Ask the entailer about pairs; answered by an array [pairs, 3] of probabilities.

    The columns are contradiction, neutral, entailment; a row of zeros is a reply that cannot be used.
    """

    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class ReturnAnswer:
    """Return a finished answer; answered by itself.

    No service is called; a streaming driver yields it as a single piece.
    """

    generation: Generation


@dataclass(frozen=True, slots=True)
class Emit:
    """Report an event to the listener; answered by None."""

    event: Event


Effect = (
    Generate
    | StartGeneration
    | ContinueGeneration
    | CancelGeneration
    | Score
    | Embed
    | Retrieve
    | Entail
    | ReturnAnswer
    | Emit
)
Program = Generator[Effect, Any, R]
"""A method at work: yields effects, receives their answers, returns its result."""


def generate(
    prompts: Sequence[Prompt], sampling: SamplingParams, *, answer: bool = False, role: ModelRole = "reader"
) -> Program[list[list[Generation]]]:
    """Yield :class:`Generate`."""
    result: list[list[Generation]] = yield Generate(_clean_prompts(prompts), sampling, answer, role)
    return result


def start_generation(
    prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
) -> Program[list[PartialGeneration]]:
    """Yield :class:`StartGeneration`."""
    result: list[PartialGeneration] = yield StartGeneration(_clean_prompts(prompts), n_tokens, sampling)
    return result


def continue_generation(
    begun: Sequence[PartialGeneration], *, answer: bool = False
) -> Program[list[Generation]]:
    """Yield :class:`ContinueGeneration`."""
    result: list[Generation] = yield ContinueGeneration(tuple(begun), answer)
    return result


def cancel_generation(begun: Sequence[PartialGeneration]) -> Program[None]:
    """Yield :class:`CancelGeneration`."""
    yield CancelGeneration(tuple(begun))


def score(prompts: Sequence[Prompt], continuations: Sequence[str]) -> Program[list[TokenTrace]]:
    """Yield :class:`Score`."""
    result: list[TokenTrace] = yield Score(_clean_prompts(prompts), _clean(continuations))
    return result


def embed(texts: Sequence[str], kind: TextKind) -> Program[NDArray[np.float32]]:
    """Yield :class:`Embed`."""
    result: NDArray[np.float32] = yield Embed(_clean(texts), kind)
    return result


def retrieve(query: str, k: int | None, *, tier: Tier = "passages") -> Program[list[Passage]]:
    """Yield :class:`Retrieve`."""
    result: list[Passage] = yield Retrieve(replace_surrogates(query), k, tier)
    return result


def entail(pairs: Sequence[Pair]) -> Program[NDArray[np.float64]]:
    """Yield :class:`Entail`."""
    result: NDArray[np.float64] = yield Entail(tuple(Pair(*_clean(pair)) for pair in pairs))
    return result


def return_answer(generation: Generation) -> Program[Generation]:
    """Yield :class:`ReturnAnswer`."""
    result: Generation = yield ReturnAnswer(generation)
    return result


def emit(name: str, *, warning: bool = False, detail: Any = None, **data: Any) -> Program[None]:
    """Yield :class:`Emit`."""
    yield Emit(Event(name, data, warning, detail))


def _clean(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(replace_surrogates, texts))


def _clean_prompts(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    return tuple(
        replace_surrogates(prompt)
        if isinstance(prompt, str)
        else tuple(Message(turn.role, replace_surrogates(turn.content)) for turn in prompt)
        for prompt in prompts
    )
