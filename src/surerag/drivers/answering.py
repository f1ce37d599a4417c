"""Services answer effects: one effect at a time, or several effects merged into few calls."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from surerag.effects import Effect
from surerag.errors import MissingServiceError
from surerag.services import Services


@dataclass(frozen=True, slots=True)
class Failed:
    """Replaces an answer after a failure: the exception is raised inside the program, at its ``yield``."""

    error: BaseException


def service_of(effect: Effect[Any], services: Services) -> Any:
    """Return the service that answers an effect, or raise MissingServiceError."""
    name = effect.service_in(services)
    service = getattr(services, name)
    if service is None:
        raise MissingServiceError(
            f"a program asks for {type(effect).__name__}", hint=f"pass Services({name}=…)"
        )
    return service


def is_merged(service: object) -> bool:
    """Whether calls of a service are merged: of a local model, or of a retriever that takes many queries.

    A reader tells whether it is local by its capabilities, an encoder or entailer by an attribute ``local``.
    """
    capabilities = getattr(service, "capabilities", None)
    if capabilities is not None:
        return bool(capabilities.local)
    return bool(getattr(service, "local", False)) or hasattr(service, "retrieve_many")


def answer_effect(effect: Effect[Any], service: Any) -> Any:
    """Return the service's answer to one effect; the call runs in this thread."""
    return effect.checked(getattr(effect.owner(service), effect.VERB)(*effect.arguments), service)


def close_begun(call: Future[Any]) -> None:
    """Close the generations that a call began, because nobody waits for them any more."""
    if not call.cancelled() and not call.exception():
        for begun in call.result():
            begun.close()


def answer_effects(effects: Sequence[Effect[Any]], service: Any) -> list[Any]:
    """Answer several effects for one service in as few calls as possible; equal requests are sent once.

    If a merged call fails, each half of its effects gets a call of its own, so that only the effect that
    causes the failure fails.

    Returns:
        For each effect, in order, the answer or :class:`Failed`.
    """
    groups: dict[Hashable, list[int]] = {}
    for index, effect in enumerate(effects):
        groups.setdefault((type(effect), *(getattr(effect, name) for name in effect.SAME)), []).append(index)
    outcomes: dict[int, Any] = {}
    for members in groups.values():
        answers = _answer_together([effects[index] for index in members], service)
        outcomes.update(zip(members, answers, strict=True))
    return [outcomes[index] for index in range(len(effects))]


def _answer_together(parts: Sequence[Effect[Any]], service: Any) -> list[Any]:
    """Answer effects of one type in one call; if the call fails, answer each half in a call of its own."""
    try:
        return (
            parts[0].answer_merged(parts, service) if len(parts) > 1 else [answer_effect(parts[0], service)]
        )
    except Exception as error:
        if len(parts) == 1:
            return [Failed(error)]
        middle = len(parts) // 2
        return [*_answer_together(parts[:middle], service), *_answer_together(parts[middle:], service)]
