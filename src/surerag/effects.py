"""Effects: requests to models and other services that a method yields, and that a driver answers.

A method is a generator that yields effects and receives their answers; ``perform`` gives an answer its type::

    answers = yield from perform(Generate([prompt], SamplingParams()))

The class of an effect also says which service answers the effect, how one call answers several effects, and
how the calls and tokens of an answer are counted. Lone surrogates (halves of a character) in an effect's
texts are replaced, because no tokenizer accepts them: a single lone surrogate would make the whole batch
fail.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from surerag.errors import ConfigurationError
from surerag.messages import (
    Event,
    Generation,
    Message,
    Pair,
    Passage,
    Prompt,
    SamplingParams,
    Usage,
)
from surerag.text import replace_surrogates

if TYPE_CHECKING:
    from surerag.readers.protocol import BegunGeneration
    from surerag.services import Services

A = TypeVar("A")
R = TypeVar("R")
TextKind = Literal["query", "document"]
Tier = Literal["passages", "summaries", "documents"]
ModelRole = Literal["reader", "rewriter"]
_set = object.__setattr__  # sets a field of a frozen dataclass


class Effect(Generic[A]):
    """A request that a method yields; base of all effects.

    Attributes:
        SERVICE: Name of the service that answers the effect, in :class:`~surerag.services.Services`.
        VERB: Name of the method that is called.
        ARGUMENTS: Names of the fields that are passed to this method, in order.
        SAME: Names of the fields that must be equal if one call is to answer several effects.
    """

    __slots__ = ()
    SERVICE: ClassVar[str] = "reader"
    VERB: ClassVar[str] = ""
    ARGUMENTS: ClassVar[tuple[str, ...]] = ()
    SAME: ClassVar[tuple[str, ...]] = ()

    def service_in(self, services: Services) -> str:
        """Return the name of the service that answers this request; ``SERVICE`` by default."""
        return self.SERVICE

    def owner(self, service: Any) -> Any:
        """Return the object that has the method named by ``VERB``; by default, this is the service."""
        return service

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The values that the driver passes to the service's function that ``VERB`` names."""
        return tuple(getattr(self, name) for name in self.ARGUMENTS)

    @staticmethod
    def answer_merged(parts: Sequence[Any], service: Any) -> list[Any]:
        """Answer several requests of one type with one call; their fields in ``SAME`` must be equal."""
        raise TypeError(f"{type(parts[0]).__name__} cannot be merged")

    def checked(self, answer: Any, service: object) -> Any:
        """Check the service's answer, and return the answer that the method's generator receives."""
        return answer

    def usage(self, answer: Any) -> Usage:
        """Return how many model calls and tokens the answer took; by default both numbers are 0."""
        return Usage()


@dataclass(frozen=True, slots=True)
class Generate(Effect[list[list[Generation]]]):
    """Ask a model for ``sampling.n`` answers to each prompt.

    The driver replies with one list of answers for each prompt.

    Attributes:
        answer: Whether the generated text is the method's final answer, which a driver may stream.
        role: The model to ask. If ``role`` is "rewriter" but there is no rewriter, the reader is asked.
    """

    prompts: Sequence[Prompt]
    sampling: SamplingParams
    answer: bool = False
    role: ModelRole = "reader"

    VERB = "generate"
    ARGUMENTS = ("prompts", "sampling")

    def __post_init__(self) -> None:
        _set(self, "prompts", _clean_prompts(self.prompts))

    def service_in(self, services: Services) -> str:
        """Return "rewriter" if the role is "rewriter" and there is a rewriter, else "reader"."""
        return "reader" if self.role == "reader" or services.rewriter is None else "rewriter"

    @staticmethod
    def answer_merged(parts: Sequence[Generate], service: Any) -> list[Any]:
        """Send each distinct prompt once, with the largest number of samples that any effect wants of it."""
        samples: dict[tuple[Prompt, SamplingParams], int] = {}
        for part in parts:
            for key in part._requests():
                samples[key] = max(samples.get(key, 0), part.sampling.n)
        samplings = [replace(sampling, n=n) for (_, sampling), n in samples.items()]
        answers = service.generate_each([prompt for prompt, _ in samples], samplings)
        answers_to = dict(zip(samples, answers, strict=True))
        return [[answers_to[key][: part.sampling.n] for key in part._requests()] for part in parts]

    def _requests(self) -> list[tuple[Prompt, SamplingParams]]:
        return [(prompt, replace(self.sampling, n=1)) for prompt in self.prompts]

    def usage(self, answer: list[list[Generation]]) -> Usage:
        """Return the usage: one call for each sample, but the tokens of a prompt are counted only once."""
        drawn = [item for samples in answer for item in samples]
        return _prompts([samples[0] for samples in answer], len(drawn)) + _completions(drawn)


@dataclass(frozen=True, slots=True)
class StartGeneration(Effect["list[BegunGeneration]"]):
    """Generate the first ``n_tokens`` tokens of an answer to each prompt.

    The driver replies with one begun generation for each prompt.
    """

    prompts: Sequence[Prompt]
    n_tokens: int
    sampling: SamplingParams

    VERB = "begin"
    ARGUMENTS = ("prompts", "n_tokens", "sampling")
    SAME = ("n_tokens",)

    def __post_init__(self) -> None:
        _set(self, "prompts", _clean_prompts(self.prompts))

    @staticmethod
    def answer_merged(parts: Sequence[StartGeneration], service: Any) -> list[Any]:
        """Start all generations in one call, each with its own sampling parameters."""
        prompts = [prompt for part in parts for prompt in part.prompts]
        samplings = [part.sampling for part in parts for _ in part.prompts]
        begun = service.begin_each(prompts, parts[0].n_tokens, samplings)
        return _split(begun, [len(part.prompts) for part in parts])

    def usage(self, answer: list[BegunGeneration]) -> Usage:
        """Return the numbers of calls and of prompt tokens; generated tokens are counted at the end."""
        return _prompts([item.partial for item in answer], len(answer))


@dataclass(frozen=True, slots=True)
class ContinueGeneration(Effect[Generation]):
    """Continue a begun generation where it stopped. The driver answers with the whole generation."""

    begun: BegunGeneration
    answer: bool = False

    VERB = "rest"

    def owner(self, service: Any) -> BegunGeneration:
        """Return the begun generation, because its method ``rest`` is called, not the reader's."""
        return self.begun

    @staticmethod
    def answer_merged(parts: Sequence[ContinueGeneration], service: Any) -> list[Any]:
        """Complete all generations in one call."""
        return parts[0].begun.rest_of([part.begun for part in parts])

    def usage(self, answer: Generation) -> Usage:
        """Return the usage: the answer's tokens, and prompt tokens that were not counted at the start."""
        before, after = _prompts([self.begun.partial], 0), _prompts([answer], 0)
        late = Usage(
            prompt_tokens=after.prompt_tokens - before.prompt_tokens,
            cached_tokens=after.cached_tokens - before.cached_tokens,
        )
        return late + _completions([answer])


@dataclass(frozen=True, slots=True)
class CancelGeneration(Effect[None]):
    """Close a begun generation that is no longer needed. The driver answers with None."""

    begun: BegunGeneration

    VERB = "close"

    def owner(self, service: Any) -> BegunGeneration:
        """Return the begun generation, because its method ``close`` is called, not the reader's."""
        return self.begun

    def usage(self, answer: None) -> Usage:
        """Return the usage of the cancelled generation: the tokens that it had generated."""
        return _completions([self.begun.partial])


@dataclass(frozen=True, slots=True)
class Embed(Effect[NDArray[np.float32]]):
    """Ask the encoder for vectors. The driver answers with an array [texts, dimensions]."""

    texts: Sequence[str]
    kind: TextKind

    SERVICE = "encoder"
    VERB = "encode"
    ARGUMENTS = ("texts", "kind")
    SAME = ("kind",)

    def __post_init__(self) -> None:
        _set(self, "texts", _without_surrogates(self.texts))

    @staticmethod
    def answer_merged(parts: Sequence[Embed], service: Any) -> list[Any]:
        """Embed each distinct text once."""
        return _rows(service.encode, [part.texts for part in parts], parts[0].kind)


@dataclass(frozen=True, slots=True)
class Retrieve(Effect[list[Passage]]):
    """Ask a retriever for passages, best first; if ``k`` is None, the retriever chooses the number.

    With ``tier="summaries"``, the retriever of summaries is asked, and otherwise the retriever of passages.
    """

    query: str
    k: int | None
    tier: Tier = "passages"

    VERB = "retrieve"
    ARGUMENTS = ("query", "k")
    SAME = ("k",)

    def __post_init__(self) -> None:
        _set(self, "query", replace_surrogates(self.query))

    def service_in(self, services: Services) -> str:
        """Return "summaries" if the tier is "summaries", else "retriever"."""
        return "summaries" if self.tier == "summaries" else "retriever"

    @staticmethod
    def answer_merged(parts: Sequence[Retrieve], service: Any) -> list[Any]:
        """Search for each distinct query once."""
        queries = list(dict.fromkeys(part.query for part in parts))
        passages = dict(zip(queries, service.retrieve_many(queries, parts[0].k), strict=True))
        return [part.checked(passages[part.query], service) for part in parts]

    def checked(self, answer: Any, service: object) -> list[Passage]:
        """Return the first ``k`` passages of the answer.

        Raises:
            ConfigurationError: If the retriever returned anything but passages.
        """
        passages = list(answer) if isinstance(answer, Iterable) else [answer]
        for item in passages:
            if not isinstance(item, Passage):
                raise ConfigurationError(
                    f"expected passages from the retriever {type(service).__name__}, "
                    f"got {type(item).__name__}",
                    hint="let the retriever return a list of surerag.Passage(text, id=…)",
                )
        return passages[: self.k]


CONTRADICTION, NEUTRAL, ENTAILMENT = range(3)
"""Column numbers in an entailer's array of probabilities."""


@dataclass(frozen=True, slots=True)
class Entail(Effect[NDArray[np.float64]]):
    """Ask whether one statement entails another. The driver answers with probabilities [pairs, 3].

    Each row is one pair of statements; its columns are contradiction, neutral and entailment. A row of zeros
    stands for an unusable reply.
    """

    pairs: Sequence[Pair]

    SERVICE = "entailer"
    VERB = "entail"
    ARGUMENTS = ("pairs",)

    def __post_init__(self) -> None:
        _set(self, "pairs", tuple(Pair(*_without_surrogates(pair)) for pair in self.pairs))

    @staticmethod
    def answer_merged(parts: Sequence[Entail], service: Any) -> list[Any]:
        """Ask about each distinct pair once."""
        return _rows(service.entail, [part.pairs for part in parts])

    def usage(self, answer: Any) -> Usage:
        """Return the usage: one call for each pair."""
        return Usage(requests=len(self.pairs))


@dataclass(frozen=True, slots=True)
class ReturnAnswer(Effect[Generation]):
    """Give a finished answer to the driver, which calls no service.

    A streaming driver yields the whole text as one piece. The driver replies with the same answer.
    """

    generation: Generation


@dataclass(frozen=True, slots=True)
class Emit(Effect[None]):
    """Report an event to the listener. The driver answers with None."""

    event: Event


Program = Generator[Effect[Any], Any, R]
"""A running method: a generator that yields effects, receives their answers, and returns its result."""


def perform(effect: Effect[A]) -> Program[A]:
    """Yield a request (an effect), and return its answer, whose type a type checker then knows."""
    answer: A = yield effect
    return answer


def handled(
    program: Program[R],
    handle: Callable[[Effect[Any]], Program[Any]],
    ends: Callable[[BaseException], BaseException | None] = lambda error: None,
) -> Program[R]:
    """Run ``program``, a method's generator, and answer each request (effect) with ``handle(effect)``.

    ``handle(effect)`` is a generator, too: it may yield requests, and returns the answer. An error in
    ``handle`` is raised inside ``program``. But if ``ends(error)`` returns an exception, ``program`` is
    closed and this exception is raised.
    """
    resume: Callable[[], Effect[Any]] = lambda: next(program)  # noqa: E731
    while True:
        try:
            effect = resume()
        except StopIteration as stop:
            return cast("R", stop.value)
        try:
            resume = partial(program.send, (yield from handle(effect)))
        except BaseException as error:
            if (end := error if isinstance(error, GeneratorExit) else ends(error)) is not None:
                program.close()
                raise end from None
            resume = partial(program.throw, error)


def counted(program: Program[R]) -> Program[tuple[R, Usage]]:
    """Run ``program``, and return its result and the cost of its requests."""
    usage = Usage()

    def handle(effect: Effect[Any]) -> Program[Any]:
        nonlocal usage
        answer = yield effect
        usage += effect.usage(answer)
        return answer

    result = yield from handled(program, handle)
    return result, usage


def emit(name: str, *, warning: bool = False, detail: Any = None, **data: Any) -> Program[None]:
    """Report an event of this name; ``data`` are its data. See :class:`~surerag.messages.Event`."""
    yield Emit(Event(name, data, warning, detail))


def _without_surrogates(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(replace_surrogates, texts))


def _clean_prompts(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    return tuple(
        replace_surrogates(prompt)
        if isinstance(prompt, str)
        else tuple(Message(turn.role, replace_surrogates(turn.content)) for turn in prompt)
        for prompt in prompts
    )


def _rows(call: Callable[..., Any], parts: Sequence[Sequence[Hashable]], *arguments: Any) -> list[Any]:
    at = {item: index for index, item in enumerate(dict.fromkeys(chain.from_iterable(parts)))}
    rows = call(list(at), *arguments)
    return [rows[[at[item] for item in items]] for items in parts]


def _split(values: Sequence[Any], lengths: Sequence[int]) -> list[list[Any]]:
    iterator = iter(values)
    return [[next(iterator) for _ in range(length)] for length in lengths]


def _prompts(first: Sequence[Generation], requests: int) -> Usage:
    return Usage(
        requests=requests,
        prompt_tokens=sum(item.prompt_tokens for item in first),
        cached_tokens=sum(item.cached_tokens for item in first),
    )


def _completions(generations: Sequence[Generation]) -> Usage:
    return Usage(
        completion_tokens=sum(item.completion_tokens for item in generations),
        thinking_tokens=sum(item.thinking_tokens for item in generations),
    )
