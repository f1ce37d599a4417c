"""Asking services: one effect at a time, or several merged into as few calls as possible."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from surerag.drivers.session import Answered, Failed, Outcome
from surerag.effects import (
    CancelGeneration,
    ContinueGeneration,
    Effect,
    Embed,
    Emit,
    Entail,
    Generate,
    Retrieve,
    Score,
    StartGeneration,
)
from surerag.errors import ConfigurationError, ContextLengthError, MissingServiceError
from surerag.messages import Passage, Prompt, SamplingParams
from surerag.readers.protocol import BaseReader
from surerag.services import Encoder, Entailer, Retriever, Services

E = TypeVar("E", bound=Effect)
K = TypeVar("K", bound=Hashable)

ReaderEffect = Generate | StartGeneration | ContinueGeneration | CancelGeneration | Score


def service_of(effect: Effect, services: Services) -> BaseReader | Encoder | Entailer | Retriever:
    """Return the service that answers an effect.

    Raises:
        MissingServiceError: If it was not given.
    """
    name = _service_name(effect, services)
    service: BaseReader | Encoder | Entailer | Retriever | None = getattr(services, name)
    if service is None:
        raise MissingServiceError(
            f"a program asks for {type(effect).__name__}", hint=f"pass Services({name}=…)"
        )
    return service


def _service_name(effect: Effect, services: Services) -> str:
    match effect:
        case Generate(role="rewriter") if services.rewriter is not None:
            return "rewriter"
        case Embed():
            return "encoder"
        case Entail():
            return "entailer"
        case Retrieve(tier="summaries"):
            return "summaries"
        case Retrieve():
            return "retriever"
        case _:
            return "reader"


def is_local(service: object) -> bool:
    """Whether calls to a service should be merged: a model in this process, rather than a server.

    Readers say so in their capabilities; encoders and entailers by an attribute ``local``.
    """
    capabilities = getattr(service, "capabilities", None)
    return bool(capabilities.local if capabilities is not None else getattr(service, "local", False))


def ask(effect: Effect, service: Any) -> Any:
    """Answer one effect, in this thread."""
    match effect:
        case Generate(prompts, sampling):
            return service.generate(prompts, sampling)
        case StartGeneration(prompts, n_tokens, sampling):
            return service.begin(prompts, n_tokens, sampling)
        case ContinueGeneration(begun):
            return service.finish(begun)
        case CancelGeneration(begun):
            return service.cancel(begun)
        case Score(prompts, continuations):
            return service.score(prompts, continuations)
        case Embed(texts, kind):
            return service.encode(texts, kind)
        case Retrieve(query, k):
            return passages_of(service.retrieve(query, k), service)
        case Entail(pairs):
            return service.entail(pairs)
        case Emit():
            return None


def passages_of(found: Iterable[Any], service: object) -> list[Passage]:
    """Return what a retriever found, with what finding it cost, where that is known.

    Raises:
        ConfigurationError: If it gives something else than passages.
    """
    passages = list(found)
    strange = next((one for one in passages if not isinstance(one, Passage)), None)
    if strange is not None:
        raise ConfigurationError(
            f"the retriever {type(service).__name__} found a {type(strange).__name__}, no passage",
            hint="return surerag.Passage(text, id=…) from it",
        )
    return passages


def try_ask(effect: Effect, service: Any) -> Outcome:
    """Answer one effect; an exception becomes an outcome."""
    try:
        return Answered(ask(effect, service))
    except Exception as error:
        return Failed(error)


def ask_merged(effects: Sequence[Effect], service: Any) -> list[Outcome]:
    """Answer several effects for one service in as few calls as possible.

    Equal requests are asked once. When a merged call fails, those that the error names are left out, or
    else its halves are asked apart, so that the failure stays with the effect that caused it.

    Returns:
        One outcome an effect, in order.
    """
    outcomes: dict[int, Outcome] = {}
    for members in _grouped(range(len(effects)), lambda index: _merge_key(effects[index])).values():
        answers = _ask_together([effects[index] for index in members], service)
        outcomes.update(zip(members, answers, strict=True))
    return [outcomes[index] for index in range(len(effects))]


def _ask_together(parts: Sequence[Effect], service: Any) -> list[Outcome]:
    """Answer effects of one kind in one call; where it fails, find out whose fault it is."""
    if len(parts) == 1:
        return [try_ask(parts[0], service)]
    try:
        return [Answered(value) for value in _merged_call(parts, service)]
    except Exception as error:
        unfit = frozenset(error.inputs) if isinstance(error, ContextLengthError) else frozenset()
    guilty = [not unfit.isdisjoint(_inputs(part)) for part in parts]
    if not any(guilty):
        return _ask_in_halves(parts, service)
    others = [part for part, found in zip(parts, guilty, strict=True) if not found]
    together = iter(_ask_together(others, service) if others else [])
    return [
        try_ask(part, service) if found else next(together) for part, found in zip(parts, guilty, strict=True)
    ]


def _ask_in_halves(parts: Sequence[Effect], service: Any) -> list[Outcome]:
    """Answer effects one of which, at least, fails."""
    if len(parts) == 1:
        return [try_ask(parts[0], service)]
    middle = len(parts) // 2
    first = _ask_together(parts[:middle], service)
    clean = not any(isinstance(outcome, Failed) for outcome in first)
    # What does not fail in the first half fails in the second, which need not be tried as a whole.
    second = (_ask_in_halves if clean else _ask_together)(parts[middle:], service)
    return [*first, *second]


def _inputs(part: Effect) -> Sequence[Hashable]:
    match part:
        case (
            Generate(prompts=inputs)
            | StartGeneration(prompts=inputs)
            | Score(prompts=inputs)
            | Entail(pairs=inputs)
        ):
            return inputs
        case Embed(texts=inputs):
            return inputs
        case _:
            return ()


def _merge_key(effect: Effect) -> Hashable:
    """Effects with equal keys can be answered by one call."""
    match effect:
        case StartGeneration(_, n_tokens, _):
            return StartGeneration, n_tokens
        case Embed(_, kind):
            return Embed, kind
        case Retrieve(_, k):
            return Retrieve, k
        case _:
            return (type(effect),)


def _merged_call(parts: Sequence[Any], service: Any) -> list[Any]:
    first = parts[0]
    match first:
        case Generate():
            return _generate_merged(parts, service)
        case StartGeneration(_, n_tokens, _):
            wanted = [(prompt, part.sampling) for part in parts for prompt in part.prompts]
            begun = service.begin_each([p for p, _ in wanted], n_tokens, [sampling for _, sampling in wanted])
            return _split(begun, [len(part.prompts) for part in parts])
        case ContinueGeneration():
            finished = service.finish([begun for part in parts for begun in part.begun])
            return _split(finished, [len(part.begun) for part in parts])
        case CancelGeneration():
            service.cancel([begun for part in parts for begun in part.begun])
            return [None] * len(parts)
        case Score():
            scored = [list(zip(part.prompts, part.continuations, strict=True)) for part in parts]
            unique = list(dict.fromkeys(pair for pairs in scored for pair in pairs))
            traces = service.score([prompt for prompt, _ in unique], [text for _, text in unique])
            found = dict(zip(unique, traces, strict=True))
            return [[found[pair] for pair in pairs] for pairs in scored]
        case Embed(_, kind):
            return _rows(service.encode, [part.texts for part in parts], kind)
        case Entail():
            return _rows(service.entail, [part.pairs for part in parts])
        case Retrieve(_, k):
            queries = list(dict.fromkeys(part.query for part in parts))
            passages = dict(zip(queries, service.retrieve_many(queries, k), strict=True))
            return [passages_of(passages[part.query], service) for part in parts]
        case _:
            raise TypeError(f"{type(first).__name__} cannot be merged")


def _generate_merged(parts: Sequence[Generate], service: BaseReader) -> list[Any]:
    """Ask for each distinct prompt and way once, with the largest number of samples that anyone wants."""
    samples: dict[tuple[Prompt, SamplingParams], int] = {}
    for part in parts:
        for key in _wanted(part):
            samples[key] = max(samples.get(key, 0), part.sampling.n)
    samplings = [replace(sampling, n=n) for (_, sampling), n in samples.items()]
    found = dict(
        zip(samples, service.generate_each([prompt for prompt, _ in samples], samplings), strict=True)
    )
    return [[found[key][: part.sampling.n] for key in _wanted(part)] for part in parts]


def _wanted(part: Generate) -> list[tuple[Prompt, SamplingParams]]:
    return [(prompt, replace(part.sampling, n=1)) for prompt in part.prompts]


def _rows(call: Callable[..., Any], wanted: Sequence[Sequence[Hashable]], *arguments: Any) -> list[Any]:
    """Ask for the array rows of distinct items once, and give every part its own."""
    unique = list(dict.fromkeys(item for items in wanted for item in items))
    rows = call(unique, *arguments)
    at = {item: index for index, item in enumerate(unique)}
    return [rows[[at[item] for item in items]] for items in wanted]


def _split(values: Sequence[Any], lengths: Sequence[int]) -> list[list[Any]]:
    iterator = iter(values)
    return [[next(iterator) for _ in range(length)] for length in lengths]


def _grouped(items: Iterable[E | Any], key: Callable[[Any], K]) -> dict[K, list[Any]]:
    groups: dict[K, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
