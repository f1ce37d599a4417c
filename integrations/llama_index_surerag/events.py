"""Events for LlamaIndex's instrumentation: decisions and fallbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent

from surerag.messages import Event

dispatcher = get_dispatcher(__name__)
logger = logging.getLogger("surerag")

listeners: ContextVar[tuple[Callable[[Event], None], ...]] = ContextVar("surerag_listeners", default=())
"""Further listeners of a method's events; a program has those of its caller."""


class MethodEvent(BaseEvent):
    """The base of events of surerag."""

    @classmethod
    def class_name(cls) -> str:
        """Name in traces."""
        return f"Surerag{cls.__name__}"


class GateDecisionEvent(MethodEvent):
    """The gate has decided; emitted before the answer begins.

    Attributes:
        question: The question.
        retrieve: Whether to retrieve.
        reason: In words.
        gate: Name of the gate.
        score: What the gate compared; None where the first pass failed.
        interval: Smallest and largest value that the score can have.
        threshold: What the score was compared with; None where it is infinite.
    """

    question: str
    retrieve: bool
    reason: str
    gate: str
    score: float | None = None
    interval: tuple[float, float] | None = None
    threshold: float | None = None


class RewriteDecisionEvent(MethodEvent):
    """The rewriter has decided whether the first answer calls for another query.

    Attributes:
        question: The question.
        rewrite: Whether to rewrite.
        reason: In words.
        metric: Name of the uncertainty.
        uncertainty: Of the first answer; None where it is infinite, as that of an empty one.
        threshold: What it was compared with; None where it is infinite.
    """

    question: str
    rewrite: bool
    reason: str
    metric: str
    uncertainty: float | None = None
    threshold: float | None = None


class ProgressEvent(MethodEvent):
    """Anything else that a method reports.

    Attributes:
        name: Such as ``"lazy_rag.nothing_retrieved"``.
        data: Plain values.
        warning: Whether a fallback was taken.
    """

    name: str
    data: dict[str, Any]
    warning: bool = False


_DECISIONS = {"lazy_rag.gate": GateDecisionEvent, "dynqr.gate": RewriteDecisionEvent}


def dispatch(event: Event) -> None:
    """Pass one of our events on to LlamaIndex's dispatcher, under the span that is open, and to listeners."""
    data = dict(event.data)
    for listener in listeners.get():
        listener(event)
    if decision := _DECISIONS.get(event.name):
        dispatcher.event(decision(**data))
    else:
        dispatcher.event(ProgressEvent(name=event.name, data=data, warning=event.warning))


def warn(name: str, **data: Any) -> None:
    """Log that a fallback was taken, and pass it on to LlamaIndex's instrumentation."""
    logger.warning("%s: %s", name, data)
    dispatch(Event(name, data, warning=True))
