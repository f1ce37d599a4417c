"""What models report through LlamaIndex's instrumentation: calls and tokens of one question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events.llm import (
    LLMChatEndEvent,
    LLMChatStartEvent,
    LLMCompletionEndEvent,
    LLMCompletionStartEvent,
)
from llama_index_instrumentation import get_dispatcher
from llama_index_instrumentation.base import BaseEvent

from surerag import Costs
from surerag.text import estimated_tokens


@contextmanager
def counted() -> Iterator[Count]:
    """Count what is asked of models in here; whoever counts around it counts it as well."""
    _listen()
    around, count = _COUNTING.get(), Count()
    token = _COUNTING.set(count)
    try:
        yield count
    finally:
        _COUNTING.reset(token)
        if around is not None:
            around.costs += count.costs
            around.model = around.model or count.model


@dataclass
class Count:
    """What was asked of models while somebody counted, and the first one's name."""

    costs: Costs = field(default_factory=Costs)
    model: str = ""


_COUNTING: ContextVar[Count | None] = ContextVar("surerag_counting", default=None)


class _Listener(BaseEventHandler):
    """Counts calls and tokens of the question that is being asked in this context."""

    @classmethod
    def class_name(cls) -> str:
        """Return the name that LlamaIndex keeps it under."""
        return "SureragCosts"

    def handle(self, event: BaseEvent, **_: Any) -> None:
        """Look at an event; nothing happens where nobody counts."""
        count = _COUNTING.get()
        if count is None:
            return
        if isinstance(event, LLMChatStartEvent | LLMCompletionStartEvent):
            count.costs += Costs(calls=1)
            count.model = count.model or str(event.model_dict.get("model", ""))
        elif isinstance(event, LLMChatEndEvent):
            said = event.response.message.content if event.response is not None else ""
            asked = "".join(message.content or "" for message in event.messages)
            count.costs += _tokens(event.response, asked, said or "")
        elif isinstance(event, LLMCompletionEndEvent):
            count.costs += _tokens(event.response, event.prompt, event.response.text)


def _tokens(response: Any, asked: str, said: str) -> Costs:
    """Return the tokens that a response tells of, under the names that services use, or estimates."""
    raw = getattr(response, "raw", None)
    usage = _field(raw, "usage") or _field(raw, "usage_metadata") or {}
    read = _first(usage, "prompt_tokens", "input_tokens", "prompt_token_count")
    wrote = _first(usage, "completion_tokens", "output_tokens", "candidates_token_count")
    cached = _first(
        _field(usage, "prompt_tokens_details") or usage, "cached_tokens", "cache_read_input_tokens"
    )
    return Costs(
        prompt_tokens=estimated_tokens(asked) if read is None else read,
        completion_tokens=estimated_tokens(said) if wrote is None else wrote,
        cached_tokens=min(cached or 0, read or 0),
    )


def _field(given: Any, name: str) -> Any:
    return given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)


def _first(usage: Any, *names: str) -> int | None:
    found = (_field(usage, name) for name in names)
    return next((value for value in found if isinstance(value, int)), None)


def _listen() -> None:
    """Be told by LlamaIndex, once in a process."""
    root = get_dispatcher()
    if not any(isinstance(one, _Listener) for one in root.event_handlers):
        root.add_event_handler(_Listener())
