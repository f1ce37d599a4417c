"""A method at work, watched: what it asked of a model, what that cost, and further samples of its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from surerag.effects import Begin, Cancel, Effect, Finish, Generate, Program, generate
from surerag.types import Generation, Prompt, Sampling

R = TypeVar("R")


@dataclass(slots=True)
class Spent:
    """What was asked of models.

    Attributes:
        asked: Prompts with their samplings, and whether a rewriter was meant.
        prompt_tokens: Of the prompts, each counted once.
        completion_tokens: Of everything generated.
        cached_tokens: Of the prompts' tokens, those that a server had in its cache.
    """

    asked: list[tuple[Prompt, Sampling, bool]] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def note(self, effect: Effect, answer: Any) -> None:
        """Count an effect that was answered."""
        match effect:
            case Generate(prompts, sampling, _, role):
                self.asked += [(prompt, sampling, role == "rewriter") for prompt in prompts]
                self.prompt_tokens += sum(row[0].prompt_tokens for row in answer)
                self.cached_tokens += sum(row[0].cached_tokens for row in answer)
                self.completion_tokens += sum(one.completion_tokens for row in answer for one in row)
            case Begin(prompts, _, sampling):
                self.asked += [(prompt, replace(sampling, n=1), False) for prompt in prompts]
                self.prompt_tokens += sum(begun.partial.prompt_tokens for begun in answer)
                self.cached_tokens += sum(begun.partial.cached_tokens for begun in answer)
            case Finish():
                self.completion_tokens += sum(one.completion_tokens for one in answer)
            case Cancel(begun):
                self.completion_tokens += sum(one.partial.completion_tokens for one in begun)
            case _:
                pass


@dataclass(frozen=True, slots=True)
class Watched(Generic[R]):
    """What came of a program.

    Attributes:
        result: What it returned.
        spent: What it asked; the samples are not among it.
        samples: Further answers to the prompt that it answered first.
    """

    result: R
    spent: Spent
    samples: tuple[Generation, ...] = ()


def watched(program: Program[R], n_samples: int = 0) -> Program[Watched[R]]:
    """Run a program to its end; then sample its first answer's prompt again.

    Args:
        program: A method at work.
        n_samples: Answers to sample, at temperature 1; 0 samples none.
    """
    spent = Spent()
    step: Callable[[], Effect] = partial(next, program)
    while True:
        try:
            effect = step()
        except StopIteration as end:
            result: R = end.value
            break
        try:
            answer = yield effect
        except BaseException as error:
            step = partial(program.throw, error)
            continue
        spent.note(effect, answer)
        step = partial(program.send, answer)
    samples: Sequence[Generation] = ()
    first = next(((prompt, how) for prompt, how, rewriter in spent.asked if not rewriter), None)
    if n_samples and first is not None:
        prompt, sampling = first
        [samples] = yield from generate([prompt], replace(sampling, n=n_samples, temperature=1.0))
    return Watched(result, spent, tuple(samples))
