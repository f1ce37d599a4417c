"""Events of LlamaIndex's instrumentation, kept."""

from __future__ import annotations

from typing import Any

from llama_index.core.instrumentation.event_handlers import BaseEventHandler

EVENTS: list[Any] = []


class Recorder(BaseEventHandler):
    """Keeps every event."""

    @classmethod
    def class_name(cls) -> str:
        return "Recorder"

    def handle(self, event: Any, **kwargs: Any) -> None:
        EVENTS.append(event)
