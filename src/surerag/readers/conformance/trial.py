"""A reader on trial: what it is asked, how it is compared, and what counts as broken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from surerag.errors import SureragError
from surerag.messages import Generation, Prompt, SamplingParams, TokenTrace
from surerag.readers.protocol import BaseReader

R = TypeVar("R")

_PROMPTS: tuple[Prompt, ...] = (
    "Where does the river Orun begin?",
    (
        "Context: Ada Tarn was born in Velm.\nAnswer the question from the context above.\n"
        "Question: Where was Ada Tarn born?\nAnswer:"
    ),
    "Name three colours.",
)


class BrokenPromiseError(SureragError, AssertionError):
    """A reader does not do what it must; under pytest, a failed assertion."""


class NotApplicableError(Exception):
    """A check does not apply to this reader; its message says why."""


@dataclass(frozen=True)
class Trial:
    """What a reader is asked, and how exact it has to be.

    Attributes:
        prompts: Questions, at least two; different answers make the checks sharper.
        max_tokens: Length of answers; a few more than ``n_tokens``.
        n_tokens: How far ``begin`` goes.
        tolerance: Largest difference of log-probabilities and entropies, in nats, that counts as equal.
        vocabulary_size: Tokens that the model can emit, if known: entropies cannot exceed its logarithm.
        seeded: Whether the reader promises the same samples for the same seed. Servers may not.
    """

    prompts: Sequence[Prompt] = _PROMPTS
    max_tokens: int = 12
    n_tokens: int = 3
    tolerance: float = 1e-4
    vocabulary_size: int | None = None
    seeded: bool = True

    @property
    def greedy(self) -> SamplingParams:
        """One answer to each prompt, without chance."""
        return SamplingParams(max_tokens=self.max_tokens)

    def sampled(self, n: int, seed: int = 1) -> SamplingParams:
        """Several answers to each prompt, by chance."""
        return SamplingParams(n=n, temperature=1.0, max_tokens=self.max_tokens, seed=seed)

    def answers(self, reader: BaseReader) -> list[Generation]:
        """Return the greedy answer to each prompt."""
        return [row[0] for row in reader.generate(self.prompts, self.greedy)]

    def same(self, what: str, one: Generation, other: Generation) -> None:
        """Demand that two generations are the same, up to rounding.

        Raises:
            BrokenPromiseError: If they differ.
        """
        demand(one.text == other.text, f"{what}: the text is {one.text!r} and {other.text!r}")
        demand(one.finish == other.finish, f"{what}: it ended by {one.finish!r} and {other.finish!r}")
        demand((one.trace is None) == (other.trace is None), f"{what}: one has a trace, the other none")
        if one.trace is not None and other.trace is not None:
            self.same_trace(what, one.trace, other.trace)

    def same_trace(self, what: str, one: TokenTrace, other: TokenTrace) -> None:
        """Demand that two traces are the same, up to rounding.

        Raises:
            BrokenPromiseError: If they differ.
        """
        demand(one.tokens == other.tokens, f"{what}: the tokens are {one.tokens} and {other.tokens}")
        self.close(f"{what}: log-probabilities", one.logprobs, other.logprobs)
        demand((one.entropy is None) == (other.entropy is None), f"{what}: one has entropies, the other none")
        if one.entropy is not None and other.entropy is not None:
            self.close(f"{what}: entropies", one.entropy.lower, other.entropy.lower)
            self.close(f"{what}: entropies", one.entropy.upper, other.entropy.upper)

    def close(self, what: str, one: Sequence[float], other: Sequence[float]) -> None:
        """Demand that numbers are the same, up to rounding.

        Raises:
            BrokenPromiseError: If they differ.
        """
        worst = max((abs(a - b) for a, b in zip(one, other, strict=True)), default=0.0)
        demand(worst <= self.tolerance, f"{what} differ by {worst:.2g} nats, more than {self.tolerance:g}")


def demand(kept: bool, broken: str) -> None:
    """Raise unless a promise is kept.

    Raises:
        BrokenPromiseError: With what was found.
    """
    if not kept:
        raise BrokenPromiseError(broken)


def applies(condition: bool, reason: str) -> None:
    """Leave a check out unless it applies.

    Raises:
        NotApplicableError: With the reason.
    """
    if not condition:
        raise NotApplicableError(reason)


def in_new_loop(reader: BaseReader, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run a coroutine in an event loop of its own, also where one is running already."""
    results: list[R] = []
    errors: list[BaseException] = []

    async def with_cleanup() -> R:
        try:
            return await work()
        finally:
            aclose = getattr(reader, "aclose", None)
            if aclose is not None:
                await aclose()

    def target() -> None:
        try:
            results.append(asyncio.run(with_cleanup()))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
