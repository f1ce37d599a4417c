"""Asking services: one effect at a time, or several merged into as few calls as possible."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from surerag.drivers.session import Answered, Failed, Outcome
from surerag.effects import Begin, Cancel, Effect, Embed, Emit, Entail, Finish, Generate, Retrieve, Score
from surerag.errors import MissingServiceError
from surerag.readers.protocol import BaseReader
from surerag.services import Encoder, Entailer, Retriever, Services
from surerag.types import Prompt, Sampling

E = TypeVar("E", bound=Effect)
K = TypeVar("K", bound=Hashable)

ReaderEffect = Generate | Begin | Finish | Cancel | Score


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
        case Begin(prompts, n_tokens, sampling):
            return service.begin(prompts, n_tokens, sampling)
        case Finish(begun):
            return service.finish(begun)
        case Cancel(begun):
            return service.cancel(begun)
        case Score(prompts, continuations):
            return service.score(prompts, continuations)
        case Embed(texts, kind):
            return service.encode(texts, kind)
        case Retrieve(query, k):
            return list(service.retrieve(query, k))
        case Entail(pairs):
            return service.entail(pairs)
        case Emit():
            return None


def try_ask(effect: Effect, service: Any) -> Outcome:
    """Answer one effect; an exception becomes an outcome."""
    try:
        return Answered(ask(effect, service))
    except Exception as error:
        return Failed(error)


def ask_merged(effects: Sequence[Effect], service: Any) -> list[Outcome]:
    """Answer several effects for one service in as few calls as possible.

    Equal requests are asked once. When a merged call fails, its parts are asked one by one, so that
    the failure stays with the effect that caused it.

    Returns:
        One outcome an effect, in order.
    """
    outcomes: dict[int, Outcome] = {}
    for key, members in _grouped(range(len(effects)), lambda index: _merge_key(effects[index])).items():
        parts = [effects[index] for index in members]
        try:
            values = _merged_call(key, parts, service) if len(parts) > 1 else [ask(parts[0], service)]
            answers: list[Outcome] = [Answered(value) for value in values]
        except Exception as error:
            answers = [Failed(error)] if len(parts) == 1 else [try_ask(part, service) for part in parts]
        outcomes.update(zip(members, answers, strict=True))
    return [outcomes[index] for index in range(len(effects))]


def _merge_key(effect: Effect) -> Hashable:
    """Effects with equal keys can be answered by one call."""
    match effect:
        case Generate(_, sampling):
            return Generate, replace(sampling, n=1)
        case Begin(_, n_tokens, sampling):
            return Begin, n_tokens, sampling
        case Embed(_, kind):
            return Embed, kind
        case Retrieve(_, k):
            return Retrieve, k
        case _:
            return (type(effect),)


def _merged_call(key: Hashable, parts: Sequence[Any], service: Any) -> list[Any]:
    first = parts[0]
    match first:
        case Generate(_, sampling):
            return _generate_merged(parts, sampling, service)
        case Begin(_, n_tokens, sampling):
            begun = service.begin([prompt for part in parts for prompt in part.prompts], n_tokens, sampling)
            return _split(begun, [len(part.prompts) for part in parts])
        case Finish():
            finished = service.finish([begun for part in parts for begun in part.begun])
            return _split(finished, [len(part.begun) for part in parts])
        case Cancel():
            service.cancel([begun for part in parts for begun in part.begun])
            return [None] * len(parts)
        case Score():
            wanted = [list(zip(part.prompts, part.continuations, strict=True)) for part in parts]
            unique = list(dict.fromkeys(pair for pairs in wanted for pair in pairs))
            traces = service.score([prompt for prompt, _ in unique], [text for _, text in unique])
            found = dict(zip(unique, traces, strict=True))
            return [[found[pair] for pair in pairs] for pairs in wanted]
        case Embed(_, kind):
            return _rows(service.encode, [part.texts for part in parts], kind)
        case Entail():
            return _rows(service.entail, [part.pairs for part in parts])
        case Retrieve(_, k):
            queries = list(dict.fromkeys(part.query for part in parts))
            passages = dict(zip(queries, service.retrieve_many(queries, k), strict=True))
            return [list(passages[part.query]) for part in parts]
        case _:
            raise TypeError(f"{type(first).__name__} cannot be merged")


def _generate_merged(parts: Sequence[Generate], sampling: Sampling, service: BaseReader) -> list[Any]:
    """Ask for each distinct prompt once, with the largest number of samples that anyone wants of it."""
    samples: dict[Prompt, int] = {}
    for part in parts:
        for prompt in part.prompts:
            samples[prompt] = max(samples.get(prompt, 0), part.sampling.n)
    found: dict[Prompt, list[Any]] = {}
    for n, prompts in _grouped(samples, samples.__getitem__).items():
        found.update(zip(prompts, service.generate(prompts, replace(sampling, n=n)), strict=True))
    return [[found[prompt][: part.sampling.n] for prompt in part.prompts] for part in parts]


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
