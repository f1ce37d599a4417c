"""Events for LlamaIndex's instrumentation: decisions, measurements, and fallbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent

from llama_index_surerag._spans import Span
from llama_index_surerag._telemetry import Judged, tell
from surerag.messages import Event

dispatcher = get_dispatcher(__name__)

listening: ContextVar[tuple[Callable[[Event], None], ...]] = ContextVar("surerag_listening", default=())
"""Who hears of a method's events besides LlamaIndex's instrumentation; a program keeps its caller's."""


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


class RewriteDecisionEvent(BaseEvent):
    """The rewriter has decided whether the first answer calls for another query.

    Attributes:
        question: What was asked.
        rewrite: Whether to rewrite.
        reason: In words.
        metric: Name of the uncertainty.
        uncertainty: Of the first answer.
        threshold: What it was compared with.
    """

    question: str
    rewrite: bool
    reason: str
    metric: str = ""
    uncertainty: float | None = None
    threshold: float | None = None

    @classmethod
    def class_name(cls) -> str:
        """Name in traces."""
        return "SureragRewriteDecisionEvent"


class EvaluationEvent(BaseEvent):
    """An evaluator has measured an item.

    Attributes:
        evaluator: Name of the method: ``"dense"`` or ``"seper"``.
        query: What was asked.
        score: What came out.
        passing: Whether that is enough.
        feedback: In words.
    """

    evaluator: str
    query: str
    score: float
    passing: bool
    feedback: str

    @classmethod
    def class_name(cls) -> str:
        """Name in traces."""
        return "SureragEvaluationEvent"


def dispatch(event: Event) -> None:
    """Hand one of our events to LlamaIndex's dispatcher, under the span that is open.

    A decision has a span of its own. Whoever is listening in this context hears of it, too.
    """
    data = dict(event.data)
    for listener in listening.get():
        listener(event)
    if event.name == "lazy_rag.gate":
        label = "retrieve" if data["retrieve"] else "answer"
        found = {key: value for key, value in data.items() if key not in ("question", "reason")}
        judged = Judged("surerag.lazy_rag.gate", data["signal"], label, data["reason"], found)
        _decide("LazyRAG.gate", data["question"], judged, lambda: GateDecisionEvent(**data))
    elif event.name == "uncertainty_rewriting.gate":
        known = {key: data.get(key) for key in ("metric", "uncertainty", "threshold")}
        rewrite, reason, question = data["outcome"] == "rewrite", data["reason"], data["question"]
        judged = Judged("surerag.dynqr.gate", known["uncertainty"], data["outcome"], reason, known)
        own = {"question": question, "rewrite": rewrite, "reason": reason, **known}
        _decide("DynQR.gate", question, judged, lambda: RewriteDecisionEvent(**own))
    else:
        dispatcher.event(ProgressEvent(name=event.name, data=data, warning=event.warning))


def _decide(name: str, question: str, judged: Judged, event: Callable[[], BaseEvent]) -> None:
    with Span(name, question=question).around() as span:
        dispatcher.event(event())
        tell(judged)
        span.result = judged.label


def evaluated(evaluator: str, query: str, parts: Mapping[str, Any]) -> None:
    """Make known what an evaluator has found, under the span that is open.

    Args:
        evaluator: Name of the method.
        query: What was asked.
        parts: ``score``, ``passing``, ``feedback``.
    """
    score, passing, feedback = parts["score"], parts["passing"], parts["feedback"]
    dispatcher.event(
        EvaluationEvent(evaluator=evaluator, query=query, score=score, passing=passing, feedback=feedback)
    )
    tell(Judged(f"surerag.{evaluator}", score, "pass" if passing else "fail", feedback))
