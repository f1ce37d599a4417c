"""The questions a method may ask; drivers answer them.

A method is a generator that yields effects and receives their answers, so that the algorithm stands
on the page once and serves sync, async, batch, streaming and tests alike. Each effect has a function
of the same name in lower case that yields it and types its answer::

    answers = yield from generate([prompt], SamplingParams())
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
    Pair,
    PartialGeneration,
    Passage,
    Prompt,
    SamplingParams,
    TokenTrace,
)

R = TypeVar("R")
TextKind = Literal["query", "document"]
Tier = Literal["passages", "summaries", "documents"]
ModelRole = Literal["reader", "rewriter"]


@dataclass(frozen=True, slots=True)
class Generate:
    """Ask the reader for ``sampling.n`` answers to each prompt; answered by a list for each prompt.

    ``answer`` marks the one effect whose text a streaming driver may stream. ``role`` says which model is
    meant: a rewriter is asked in the reader's place where there is one.
    """

    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    answer: bool = False
    role: ModelRole = "reader"


@dataclass(frozen=True, slots=True)
class StartGeneration:
    """Ask for the first ``n_tokens`` tokens of each prompt; answered by one :class:`PartialGeneration` each."""

    prompts: tuple[Prompt, ...]
    n_tokens: int
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class ContinueGeneration:
    """Go on with what was begun, reading nothing again; answered by one generation each."""

    begun: tuple[PartialGeneration, ...]
    answer: bool = False


@dataclass(frozen=True, slots=True)
class CancelGeneration:
    """Free what was begun; answered by None."""

    begun: tuple[PartialGeneration, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Ask what the reader thinks of given continuations; answered by one trace a pair."""

    prompts: tuple[Prompt, ...]
    continuations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Embed:
    """Ask the encoder for vectors; answered by an array [texts, dimensions]."""

    texts: tuple[str, ...]
    kind: TextKind


@dataclass(frozen=True, slots=True)
class Retrieve:
    """Ask the retriever (or the index of summaries) for passages, best first; None is its own number."""

    query: str
    k: int | None
    tier: Tier = "passages"


@dataclass(frozen=True, slots=True)
class Entail:
    """Ask the entailer about pairs; answered by an array [pairs, 3] of probabilities.

    The columns are contradiction, neutral, entailment.
    """

    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class ReturnAnswer:
    """ReturnAnswer an answer that is there already; answered by itself.

    No service is asked: it is for a streaming driver, which makes one piece of it.
    """

    generation: Generation


@dataclass(frozen=True, slots=True)
class Emit:
    """Make something known to whoever listens; answered by None."""

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
    result: list[list[Generation]] = yield Generate(tuple(prompts), sampling, answer, role)
    return result


def start_generation(
    prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
) -> Program[list[PartialGeneration]]:
    """Yield :class:`StartGeneration`."""
    result: list[PartialGeneration] = yield StartGeneration(tuple(prompts), n_tokens, sampling)
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
    result: list[TokenTrace] = yield Score(tuple(prompts), tuple(continuations))
    return result


def embed(texts: Sequence[str], kind: TextKind) -> Program[NDArray[np.float32]]:
    """Yield :class:`Embed`."""
    result: NDArray[np.float32] = yield Embed(tuple(texts), kind)
    return result


def retrieve(query: str, k: int | None, *, tier: Tier = "passages") -> Program[list[Passage]]:
    """Yield :class:`Retrieve`."""
    result: list[Passage] = yield Retrieve(query, k, tier)
    return result


def entail(pairs: Sequence[Pair]) -> Program[NDArray[np.float64]]:
    """Yield :class:`Entail`."""
    result: NDArray[np.float64] = yield Entail(tuple(pairs))
    return result


def return_answer(generation: Generation) -> Program[Generation]:
    """Yield :class:`ReturnAnswer`."""
    result: Generation = yield ReturnAnswer(generation)
    return result


def emit(name: str, *, warning: bool = False, detail: Any = None, **data: Any) -> Program[None]:
    """Yield :class:`Emit`."""
    yield Emit(Event(name, data, warning, detail))
