"""Effects that a method yields, and that drivers answer.

A method is a generator that yields effects and receives their answers; ``perform`` types them::

    answers = yield from perform(Generate([prompt], SamplingParams()))

An effect also says which service answers it, how several are answered in one call, and what that took. Lone
surrogates in its texts are replaced: no tokenizer can hold one, and the whole batch would fail by it.
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
    PartialGeneration,
    Passage,
    Prompt,
    SamplingParams,
    Usage,
)
from surerag.text import replace_surrogates

if TYPE_CHECKING:
    from surerag.services import Services

A = TypeVar("A")
R = TypeVar("R")
TextKind = Literal["query", "document"]
Tier = Literal["passages", "summaries", "documents"]
ModelRole = Literal["reader", "rewriter"]
_set = object.__setattr__  # of a frozen field


class Effect(Generic[A]):
    """Base of all effects.

    Attributes:
        SERVICE: Name of the service that answers it, in :class:`~surerag.services.Services`.
        METHOD: The service's method.
        ARGUMENTS: Fields that are passed to the method, in order.
        SAME: Fields in which effects are equal that one call can answer.
    """

    __slots__ = ()
    SERVICE: ClassVar[str] = "reader"
    VERB: ClassVar[str] = ""
    ARGUMENTS: ClassVar[tuple[str, ...]] = ()
    SAME: ClassVar[tuple[str, ...]] = ()

    def service_in(self, services: Services) -> str:
        """Return the name of the service that answers it; ``SERVICE`` unless a field chooses."""
        return self.SERVICE

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Arguments of the method."""
        return tuple(getattr(self, name) for name in self.ARGUMENTS)

    @staticmethod
    def answer_merged(parts: Sequence[Any], service: Any) -> list[Any]:
        """Answer several effects of one type, equal in ``SAME``, by one call."""
        raise TypeError(f"{type(parts[0]).__name__} cannot be merged")

    def checked(self, answer: Any, service: object) -> Any:
        """Return the service's answer as the program receives it."""
        return answer

    def usage(self, answer: Any) -> Usage:
        """Return the calls and tokens of the answered effect; retrieving and embedding are no calls."""
        return Usage()


@dataclass(frozen=True, slots=True)
class Generate(Effect[list[list[Generation]]]):
    """Ask the reader for ``sampling.n`` answers to each prompt; answered by a list for each prompt.

    Attributes:
        answer: Whether this is the method's answer, whose text a streaming driver may stream.
        role: Model to ask; where there is no rewriter, it is the reader.
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
        """Return the rewriter for its role, where there is one."""
        return "reader" if self.role == "reader" or services.rewriter is None else "rewriter"

    @staticmethod
    def answer_merged(parts: Sequence[Generate], service: Any) -> list[Any]:
        """Ask for each distinct request once, with the largest number of samples of any part."""
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
        """Samples of one prompt read it once."""
        drawn = [item for samples in answer for item in samples]
        return _prompts([samples[0] for samples in answer], len(drawn)) + _completions(drawn)


@dataclass(frozen=True, slots=True)
class StartGeneration(Effect[list[PartialGeneration]]):
    """Ask for the first ``n_tokens`` tokens of each prompt; answered by one partial generation each."""

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
        """Begin all prompts, each with its sampling."""
        prompts = [prompt for part in parts for prompt in part.prompts]
        samplings = [part.sampling for part in parts for _ in part.prompts]
        begun = service.begin_each(prompts, parts[0].n_tokens, samplings)
        return _split(begun, [len(part.prompts) for part in parts])

    def usage(self, answer: list[PartialGeneration]) -> Usage:
        """Reading the prompts."""
        return _prompts([item.partial for item in answer], len(answer))


@dataclass(frozen=True, slots=True)
class ContinueGeneration(Effect[list[Generation]]):
    """Finish what was begun, reading nothing again; answered by one generation each."""

    begun: Sequence[PartialGeneration]
    answer: bool = False

    VERB = "finish"
    ARGUMENTS = ("begun",)

    def __post_init__(self) -> None:
        _set(self, "begun", tuple(self.begun))

    @staticmethod
    def answer_merged(parts: Sequence[ContinueGeneration], service: Any) -> list[Any]:
        """Finish all."""
        finished = service.finish([begun for part in parts for begun in part.begun])
        return _split(finished, [len(part.begun) for part in parts])

    def usage(self, answer: list[Generation]) -> Usage:
        """Tokens of the answers, and of prompts that a server counts at the end of its stream."""
        before = _prompts([item.partial for item in self.begun], 0)
        after = _prompts(answer, 0)
        late = Usage(
            prompt_tokens=after.prompt_tokens - before.prompt_tokens,
            cached_tokens=after.cached_tokens - before.cached_tokens,
        )
        return late + _completions(answer)


@dataclass(frozen=True, slots=True)
class CancelGeneration(Effect[None]):
    """Free what was begun; answered by None."""

    begun: Sequence[PartialGeneration]

    VERB = "cancel"
    ARGUMENTS = ("begun",)

    def __post_init__(self) -> None:
        _set(self, "begun", tuple(self.begun))

    def usage(self, answer: None) -> Usage:
        """Tokens that were begun."""
        return _completions([item.partial for item in self.begun])


@dataclass(frozen=True, slots=True)
class Embed(Effect[NDArray[np.float32]]):
    """Ask the encoder for vectors; answered by an array [texts, dimensions]."""

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
    """Ask retriever or summaries for passages, best first; ``k`` None leaves the number to the retriever."""

    query: str
    k: int | None
    tier: Tier = "passages"

    VERB = "retrieve"
    ARGUMENTS = ("query", "k")
    SAME = ("k",)

    def __post_init__(self) -> None:
        _set(self, "query", replace_surrogates(self.query))

    def service_in(self, services: Services) -> str:
        """Return the index of summaries for its tier, or the retriever."""
        return "summaries" if self.tier == "summaries" else "retriever"

    @staticmethod
    def answer_merged(parts: Sequence[Retrieve], service: Any) -> list[Any]:
        """Search for each distinct query once."""
        queries = list(dict.fromkeys(part.query for part in parts))
        passages = dict(zip(queries, service.retrieve_many(queries, parts[0].k), strict=True))
        return [part.checked(passages[part.query], service) for part in parts]

    def checked(self, answer: Any, service: object) -> list[Passage]:
        """Return at most ``k`` results of a retriever; anything but passages is a ConfigurationError."""
        passages = list(answer) if isinstance(answer, Iterable) else [answer]
        for item in passages:
            if not isinstance(item, Passage):
                raise ConfigurationError(
                    f"the retriever {type(service).__name__} returned a {type(item).__name__}",
                    hint="return a list of surerag.Passage(text, id=…) from it",
                )
        return passages[: self.k]


CONTRADICTION, NEUTRAL, ENTAILMENT = range(3)
"""Columns of an entailer's probabilities."""


@dataclass(frozen=True, slots=True)
class Entail(Effect[NDArray[np.float64]]):
    """Ask the entailer about pairs; answered by an array [pairs, 3] of probabilities.

    The columns are contradiction, neutral, entailment; a row of zeros is a reply that cannot be used.
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
        """A call a pair."""
        return Usage(requests=len(self.pairs))


@dataclass(frozen=True, slots=True)
class ReturnAnswer(Effect[Generation]):
    """Return a finished answer without a service; a streaming driver yields it as a single piece."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Emit(Effect[None]):
    """Report an event to the listener; answered by None."""

    event: Event


Program = Generator[Effect[Any], Any, R]
"""A method at work: yields effects, receives their answers, returns its result."""


def perform(effect: Effect[A]) -> Program[A]:
    """Yield an effect, and return what it is answered by."""
    answer: A = yield effect
    return answer


def handled(
    program: Program[R],
    handle: Callable[[Effect[Any]], Program[Any]],
    ends: Callable[[BaseException], BaseException | None] = lambda error: None,
) -> Program[R]:
    """Run a program whose effects another one answers: ``handle`` asks what it likes, and returns the reply.

    Its failures are raised inside the program, but those that ``ends`` turns into the reason to close it.
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


def emit(name: str, *, warning: bool = False, detail: Any = None, **data: Any) -> Program[None]:
    """Yield :class:`Emit`."""
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
    """Ask for the array rows of distinct items once, and return those of each part."""
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
