"""Asking an agent's model, and noting on its message what was found out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from langchain.agents.middleware import ModelRequest, ModelResponse
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig, ensure_config
from langchain_core.runnables.config import set_config_context

from langchain_surerag._holding import Hold
from langchain_surerag._passes import Pass, tagged

T = TypeVar("T")
Handler = Callable[[ModelRequest[Any]], ModelResponse[Any]]
AsyncHandler = Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]

NOTED = "surerag"
"""Where a message's ``response_metadata`` tells what was found out about it."""


def within(at: Pass, hold: Hold | None, handler: Callable[[Any], T], request: ModelRequest[Any]) -> T:
    """Ask in a pass, so that streams and traces can tell what it is for."""
    with set_config_context(_config(at, hold)) as context:
        return context.run(handler, request)


async def awithin(
    at: Pass, hold: Hold | None, handler: Callable[[Any], Awaitable[T]], request: ModelRequest[Any]
) -> T:
    """Like :func:`within`, without blocking the event loop."""

    async def asking() -> T:
        return await handler(request)

    with set_config_context(_config(at, hold)) as context:
        return await asyncio.get_running_loop().create_task(asking(), context=context)


def _config(at: Pass, hold: Hold | None) -> RunnableConfig:
    config = tagged(ensure_config(), at)
    if hold is not None:
        config["callbacks"] = hold.over(config.get("callbacks"))
    return config


def answer_of(response: ModelResponse[Any]) -> AIMessage | None:
    """Return the model's answer in words; None where it calls tools."""
    said = [one for one in response.result if isinstance(one, AIMessage)]
    if len(said) != len(response.result) or not said or said[-1].tool_calls or not str(said[-1].text).strip():
        return None
    return said[-1]


def note_on(message: AIMessage | None, name: str) -> dict[str, Any]:
    """Return what a message tells about itself under a name; nothing, if it does not."""
    noted = message.response_metadata.get(NOTED) if message is not None else None
    return dict((noted or {}).get(name) or {})


def with_note(
    response: ModelResponse[Any], message: AIMessage, name: str, note: Mapping[str, Any]
) -> ModelResponse[Any]:
    """Return a response whose message tells something about itself in its metadata.

    Each part has a name of its own there: an interval of one is not that of another.
    """
    earlier = message.response_metadata.get(NOTED) or {}
    metadata = {**message.response_metadata, NOTED: {**earlier, name: note}}
    noted = message.model_copy(update={"response_metadata": metadata})
    return replace(response, result=[noted if one is message else one for one in response.result])
