"""A method's decisions and fallbacks for LlamaIndex's instrumentation, and for the streams of workflows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from llama_index.core.workflow import Context
from llama_index.core.workflow import Event as WorkflowEvent
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent
from llama_index_instrumentation.span import active_span_id

from surerag.drivers import sentence_of
from surerag.errors import ConfigurationError, check_kind
from surerag.messages import Event
from surerag.signatures import PlainHelp

dispatcher = get_dispatcher(__name__)
logger = logging.getLogger("surerag")

_listeners: ContextVar[tuple[Callable[[Event], None], ...]] = ContextVar("surerag_listeners", default=())
"""Further listeners of a method's events; a program uses the listeners of its caller's context."""


class MethodEvent(BaseEvent, metaclass=PlainHelp):
    """A decision or a fallback of a method, for LlamaIndex's event handlers.

    Attributes:
        name: Name of the event, such as ``"lazy_rag.gate"``, which comes before the answer.
        data: Plain values. A decision has ``question``, ``retrieve`` or ``rewrite``, ``reason``, the score
            and its ``threshold``; an infinite number is None.
        warning: Whether the method fell back to something else after a failure.
    """

    name: str
    data: dict[str, Any]
    warning: bool = False

    @classmethod
    def class_name(cls) -> str:
        """Name in traces."""
        return "SureragMethodEvent"


class MethodStreamEvent(WorkflowEvent, metaclass=PlainHelp):
    """A decision or a fallback of a method, in the stream of a workflow.

    Attributes:
        name: As of :class:`MethodEvent`.
        data: As of :class:`MethodEvent`.
        warning: Whether a fallback was taken.
    """

    name: str
    data: dict[str, Any]
    warning: bool = False


def dispatch(event: Event, span_id: str | None = None) -> None:
    """Pass a method's event on to listeners and to LlamaIndex's dispatcher.

    The event belongs to the span ``span_id``; by default to the open span.
    """
    for listener in _listeners.get():
        listener(event)
    data, under = dict(event.data), span_id or active_span_id.get()
    dispatcher.event(MethodEvent(name=event.name, data=data, warning=event.warning, span_id=under))


def warn(name: str, **data: Any) -> None:
    """Log a warning, and pass it on to LlamaIndex's instrumentation."""
    event = Event(name, data, warning=True)
    logger.warning("%s", sentence_of(event))
    dispatch(event)


@contextmanager
def streamed_to(ctx: Context) -> Iterator[None]:
    """Write the decisions of all methods in this block to a workflow's stream, as ``MethodStreamEvent``.

    Args:
        ctx: The context of a step, or of an agent's tool, async or not.

    Raises:
        ConfigurationError: If no workflow runs with this context.
    """
    loop = _loop_of(ctx)

    def write(event: Event) -> None:
        streamed = MethodStreamEvent(name=event.name, data=dict(event.data), warning=event.warning)
        # A blocking component may work in another thread.
        loop.call_soon_threadsafe(ctx.write_event_to_stream, streamed)

    token = _listeners.set((*_listeners.get(), write))
    try:
        yield
    finally:
        _listeners.reset(token)


def _loop_of(ctx: Context) -> asyncio.AbstractEventLoop:
    """Return the event loop of a workflow; steps and tools that are not async work in other threads."""
    check_kind(Context, "the context of a workflow's step", ctx=ctx)
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    found: Any = ctx
    for name in ("_face", "_internal_adapter", "_queues", "complete"):  # the loop has no public name
        found = getattr(found, name, None)
    if isinstance(found, asyncio.Task):
        return found.get_loop()
    raise ConfigurationError(
        "no workflow runs with this context",
        hint="enter streamed_to(ctx) within a step, or a tool of an agent",
    )
