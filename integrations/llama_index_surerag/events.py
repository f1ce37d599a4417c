"""Reports a method's decisions and fallbacks to LlamaIndex's instrumentation and to workflow streams."""

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
from surerag.options import CheckedFields
from surerag.signatures import PlainHelp

dispatcher = get_dispatcher(__name__)
logger = logging.getLogger("surerag")

_listeners: ContextVar[tuple[Callable[[Event], None], ...]] = ContextVar("surerag_listeners", default=())
"""Further functions that get the events of methods; ``streamed_to`` adds one for the current context."""


class MethodEvent(CheckedFields, BaseEvent):
    """A decision or a fallback of a method, for LlamaIndex's event handlers.

    Attributes:
        name: Name of the event, such as ``"lazy_rag.gate"`` for the decision whether to retrieve.
        data: Details as plain values; an infinite number becomes None. The details of a decision are
            ``question``, ``retrieve`` or ``rewrite``, ``reason``, the score, and the ``threshold`` of the
            score.
        warning: Whether the event reports a problem, such as a fallback after a failure.
    """

    name: str
    data: dict[str, Any]
    warning: bool = False

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the event class in traces."""
        return "SureragMethodEvent"


class MethodStreamEvent(WorkflowEvent, metaclass=PlainHelp):
    """A decision or a fallback of a method, in the stream of a workflow.

    Attributes:
        name: Name of the event, as in :class:`MethodEvent`.
        data: Details as plain values, as in :class:`MethodEvent`.
        warning: Whether the event reports a problem, such as a fallback after a failure.
    """

    name: str
    data: dict[str, Any]
    warning: bool = False


def dispatch(event: Event, span_id: str | None = None) -> None:
    """Send a method's event to the listeners and to LlamaIndex's dispatcher.

    The dispatcher records the event under the span ``span_id``, by default the currently open span.
    """
    for listener in _listeners.get():
        listener(event)
    data, under = dict(event.data), span_id or active_span_id.get()
    dispatcher.event(MethodEvent(name=event.name, data=data, warning=event.warning, span_id=under))


def warn(name: str, **data: Any) -> None:
    """Log a warning, and send it to LlamaIndex's instrumentation as an event."""
    event = Event(name, data, warning=True)
    logger.warning("%s", sentence_of(event))
    dispatch(event)


@contextmanager
def streamed_to(ctx: Context) -> Iterator[None]:
    """Write the events of all methods in a ``with`` block to a workflow's stream, as ``MethodStreamEvent``.

    Args:
        ctx: The context that a workflow's step or an agent's tool receives. Step and tool may be async or
            blocking.

    Raises:
        ConfigurationError: If no workflow runs with this context.
    """
    loop = _loop_of(ctx)

    def write(event: Event) -> None:
        streamed = MethodStreamEvent(name=event.name, data=dict(event.data), warning=event.warning)
        # A blocking component may run in another thread than the event loop does.
        loop.call_soon_threadsafe(ctx.write_event_to_stream, streamed)

    token = _listeners.set((*_listeners.get(), write))
    try:
        yield
    finally:
        _listeners.reset(token)


def _loop_of(ctx: Context) -> asyncio.AbstractEventLoop:
    """Return the event loop of the workflow to which ``ctx`` belongs.

    A blocking step or tool runs in a thread without an event loop; the workflow's loop is found there, too.
    """
    check_kind(Context, "the context of a workflow's step", ctx=ctx)
    with suppress(RuntimeError):
        return asyncio.get_running_loop()
    task: Any = ctx
    # LlamaIndex has no public attribute for the event loop.
    for name in ("_face", "_internal_adapter", "_queues", "complete"):
        task = getattr(task, name, None)
    if isinstance(task, asyncio.Task):
        return task.get_loop()
    raise ConfigurationError(
        "no workflow runs with this context",
        hint="enter streamed_to(ctx) within a workflow's step or an agent's tool",
    )
