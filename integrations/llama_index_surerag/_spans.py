"""Spans of LlamaIndex's instrumentation around what is not one call of one function."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.events.span import SpanDropEvent
from llama_index_instrumentation.span import active_span_id

dispatcher = get_dispatcher(__name__)


class Span:
    """A span under the one that is open where it is entered.

    Args:
        name: Of what happens, such as ``"LazyRAG.gate"``.
        instance: Who does it.
        **given: What it is given.

    Attributes:
        id: What events of this span are to bear.
        result: What comes of it, if that is known before it is left.
    """

    def __init__(self, name: str, instance: Any = None, **given: Any) -> None:
        self.id = f"{name}-{uuid4()}"
        self.result: Any = None
        self._instance = instance
        self._given = inspect.signature(_anything).bind(**given)

    def enter(self) -> None:
        """Open it."""
        parent = active_span_id.get()
        dispatcher.span_enter(self.id, self._given, instance=self._instance, parent_id=parent)

    def exit(self, result: Any = None) -> None:
        """Close it."""
        dispatcher.span_exit(self.id, self._given, instance=self._instance, result=result)

    def drop(self, error: BaseException) -> None:
        """Close it with a failure."""
        dispatcher.event(SpanDropEvent(span_id=self.id, err_str=str(error)))
        dispatcher.span_drop(self.id, self._given, instance=self._instance, err=error)

    @contextmanager
    def around(self) -> Iterator[Span]:
        """Enter and close it; what happens inside nests under it."""
        before = active_span_id.get()
        self.enter()
        active_span_id.set(self.id)
        try:
            yield self
        except BaseException as error:
            self.drop(error)
            raise
        else:
            self.exit(self.result)
        finally:
            # No token: a stream that nobody reads on may be ended in another context than it was opened in.
            if active_span_id.get() == self.id:
                active_span_id.set(before)


def _anything(**given: Any) -> None:
    """What a span that belongs to no function is said to have been called with."""
