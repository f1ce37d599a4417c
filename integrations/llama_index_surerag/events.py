"""Events for LlamaIndex's instrumentation: the gate's decisions, and fallbacks."""

from __future__ import annotations

from typing import Any

from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent

from surerag.types import Event

dispatcher = get_dispatcher(__name__)


class GateDecisionEvent(BaseEvent):
    """The gate has decided; emitted before the answer flows.

    Attributes:
        question: What was asked.
        retrieve: Whether to retrieve.
        reason: In words.
        gate: Name of the gate.
        signal: The gate's signal.
        unit: Of the signal.
        lower: Smallest value that the signal can have.
        upper: Largest value that the signal can have.
        exact: Whether the three are known to be equal.
        threshold: What the signal was compared with.
        calls: What was asked for so that the gate could decide: answers, beginnings of one, judgements.
        tokens: Tokens generated until then.
    """

    question: str
    retrieve: bool
    reason: str
    gate: str = ""
    signal: float | None = None
    unit: str = ""
    lower: float | None = None
    upper: float | None = None
    exact: bool = False
    threshold: float | None = None
    calls: int = 0
    tokens: int = 0

    @classmethod
    def class_name(cls) -> str:
        """Name in traces."""
        return "SureragGateDecisionEvent"


class ProgressEvent(BaseEvent):
    """Anything else that a method wants known.

    Attributes:
        name: Such as ``"lazy_rag.nothing_retrieved"``.
        data: Plain values.
        warning: Whether a fallback was taken.
    """

    name: str
    data: dict[str, Any]
    warning: bool = False

    @classmethod
    def class_name(cls) -> str:
        """Name in traces."""
        return "SureragProgressEvent"


def dispatch(event: Event) -> None:
    """Hand one of our events to LlamaIndex's dispatcher, under the span that is open."""
    if event.name == "lazy_rag.gate":
        dispatcher.event(GateDecisionEvent(**event.data))
    else:
        dispatcher.event(ProgressEvent(name=event.name, data=dict(event.data), warning=event.warning))
