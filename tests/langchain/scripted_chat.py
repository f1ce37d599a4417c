"""A chat model that says what a script tells it, tool calls included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import Field


class ScriptedChat(BaseChatModel):
    """Gives its replies in order, and remembers what it was shown."""

    replies: Iterator[AIMessage]
    shown: list[list[BaseMessage]] = Field(default_factory=list)

    def __init__(self, *replies: AIMessage) -> None:
        super().__init__(replies=iter(replies))

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.shown.append(messages)
        return ChatResult(generations=[ChatGeneration(message=next(self.replies))])

    def bind_tools(self, *_: Any, **__: Any) -> Runnable[Any, Any]:
        return self


def calls(name: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": f"call-{name}"}])
