"""Answering effects by services: one at a time, or several merged into few calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from surerag.effects import (
    CancelGeneration,
    ContinueGeneration,
    Effect,
    Embed,
    Entail,
    Generate,
    Retrieve,
    Score,
    StartGeneration,
)
from surerag.errors import ConfigurationError, MissingServiceError
from surerag.messages import Passage, Prompt, SamplingParams
from surerag.readers.protocol import BaseReader
from surerag.services import Encoder, Entailer, Retriever, Services


@dataclass(frozen=True, slots=True)
class Answered:
    """Answer to an effect."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """Exception that an effect ended in; it is raised inside the program, at its ``yield``."""

    error: BaseException


Outcome = Answered | Failed


_SERVICES: dict[type, str] = {Embed: "encoder", Entail: "entailer", Retrieve: "retriever"}


def service_of(effect: Effect, services: Services) -> BaseReader | Encoder | Entailer | Retriever:
    """Return the service that answers an effect.

    Raises:
        MissingServiceError: If it is missing.
    """
    match effect:
        case Generate(role="rewriter") if services.rewriter is not None:
            name = "rewriter"
        case Retrieve(tier="summaries"):
            name = "summaries"
        case _:
            name = _SERVICES.get(type(effect), "reader")
    service: BaseReader | Encoder | Entailer | Retriever | None = getattr(services, name)
    if service is None:
        raise MissingServiceError(
            f"a program asks for {type(effect).__name__}", hint=f"pass Services({name}=…)"
        )
    return service


def is_merged(service: object) -> bool:
    """Whether calls to a service are merged: a model in this process, or a retriever that takes many queries.

    Readers say so in their capabilities; encoders and entailers by an attribute ``local``.
    """
    capabilities = getattr(service, "capabilities", None)
    if capabilities is not None:
        return bool(capabilities.local)
    return bool(getattr(service, "local", False)) or hasattr(service, "retrieve_many")


def call_of(effect: Effect) -> tuple[str, tuple[Any, ...]]:
    """Return the method of a service that answers an effect, and its arguments."""
    match effect:
        case Generate(prompts, sampling):
            return "generate", (prompts, sampling)
        case StartGeneration(prompts, n_tokens, sampling):
            return "begin", (prompts, n_tokens, sampling)
        case ContinueGeneration(begun):
            return "finish", (begun,)
        case CancelGeneration(begun):
            return "cancel", (begun,)
        case Score(prompts, continuations):
            return "score", (prompts, continuations)
        case Embed(texts, kind):
            return "encode", (texts, kind)
        case Retrieve(query, k):
            return "retrieve", (query, k)
        case Entail(pairs):
            return "entail", (pairs,)
        case _:
            raise TypeError(f"no service answers {type(effect).__name__}")


def ask(effect: Effect, service: Any) -> Any:
    """Answer one effect, in this thread."""
    method, arguments = call_of(effect)
    answer = getattr(service, method)(*arguments)
    return passages_of(answer, service) if isinstance(effect, Retrieve) else answer


def passages_of(results: Iterable[Any], service: object) -> list[Passage]:
    """Return the results of a retriever as a list.

    Raises:
        ConfigurationError: If they are something other than passages.
    """
    passages = list(results)
    for item in passages:
        if not isinstance(item, Passage):
            raise ConfigurationError(
                f"the retriever {type(service).__name__} returned a {type(item).__name__}",
                hint="return surerag.Passage(text, id=…) from it",
            )
    return passages


def ask_merged(effects: Sequence[Effect], service: Any) -> list[Outcome]:
    """Answer several effects for one service in as few calls as possible; equal requests are asked once.

    When a merged call fails, its halves are asked apart, so that the failure stays with its effect.

    Returns:
        One outcome an effect, in order.
    """
    groups: dict[Hashable, list[int]] = {}
    for index, effect in enumerate(effects):
        groups.setdefault(_merge_key(effect), []).append(index)
    outcomes: dict[int, Outcome] = {}
    for members in groups.values():
        answers = _ask_together([effects[index] for index in members], service)
        outcomes.update(zip(members, answers, strict=True))
    return [outcomes[index] for index in range(len(effects))]


def _ask_together(parts: Sequence[Effect], service: Any) -> list[Outcome]:
    """Answer effects of one kind in one call, or by halves where it fails."""
    try:
        values = _merged_call(parts, service) if len(parts) > 1 else [ask(parts[0], service)]
        return [Answered(value) for value in values]
    except Exception as error:
        if len(parts) == 1:
            return [Failed(error)]
        middle = len(parts) // 2
        return [*_ask_together(parts[:middle], service), *_ask_together(parts[middle:], service)]


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
            prompts = [prompt for part in parts for prompt in part.prompts]
            samplings = [part.sampling for part in parts for _ in part.prompts]
            begun = service.begin_each(prompts, n_tokens, samplings)
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
            trace_of = dict(zip(unique, traces, strict=True))
            return [[trace_of[pair] for pair in pairs] for pairs in scored]
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
    """Ask for each distinct request once, with the largest number of samples of any part."""
    samples: dict[tuple[Prompt, SamplingParams], int] = {}
    for part in parts:
        for key in _requests(part):
            samples[key] = max(samples.get(key, 0), part.sampling.n)
    samplings = [replace(sampling, n=n) for (_, sampling), n in samples.items()]
    answers = service.generate_each([prompt for prompt, _ in samples], samplings)
    answers_to = dict(zip(samples, answers, strict=True))
    return [[answers_to[key][: part.sampling.n] for key in _requests(part)] for part in parts]


def _requests(part: Generate) -> list[tuple[Prompt, SamplingParams]]:
    return [(prompt, replace(part.sampling, n=1)) for prompt in part.prompts]


def _rows(call: Callable[..., Any], parts: Sequence[Sequence[Hashable]], *arguments: Any) -> list[Any]:
    """Ask for the array rows of distinct items once, and return those of each part."""
    unique = list(dict.fromkeys(item for items in parts for item in items))
    rows = call(unique, *arguments)
    at = {item: index for index, item in enumerate(unique)}
    return [rows[[at[item] for item in items]] for items in parts]


def _split(values: Sequence[Any], lengths: Sequence[int]) -> list[list[Any]]:
    iterator = iter(values)
    return [[next(iterator) for _ in range(length)] for length in lengths]
