"""Parts inside LlamaIndex's workflows and agents: what they decide and say goes to the event stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    Response,
    StreamingResponse,
)
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context, Event

from llama_index_surerag.events import listening
from surerag.messages import Event as MethodEvent
from surerag.readers.threads import in_thread


class MethodStreamEvent(Event):
    """What a part has decided or found, in a workflow's stream.

    Attributes:
        name: Such as ``"lazy_rag.gate"`` or ``"uncertainty_rewriting.decided"``.
        data: Plain values: of a gate, those of :class:`GateDecisionEvent`.
        warning: Whether a fallback was taken.
    """

    name: str
    data: dict[str, Any]
    warning: bool = False


class AnswerStreamEvent(Event):
    """The next piece of an answer, in a workflow's stream.

    Attributes:
        delta: What comes next.
    """

    delta: str


@contextmanager
def streamed_to(ctx: Context) -> Iterator[None]:
    """Within it, whatever parts decide goes to a workflow's stream as a :class:`MethodStreamEvent`.

    For any part, called in any way: engines, postprocessors, evaluators; sync calls in threads, too.

    Args:
        ctx: The context that a step, or a tool of an agent, was given.

    Example:
        ::

            @step
            async def answer(self, ctx: Context, ev: StartEvent) -> StopEvent:
                with streamed_to(ctx):
                    return StopEvent(result=await engine.aquery(ev.question))
    """
    loop = asyncio.get_running_loop()

    def write(event: MethodEvent) -> None:
        told = MethodStreamEvent(name=event.name, data=dict(event.data), warning=event.warning)
        try:
            here = asyncio.get_running_loop() is loop
        except RuntimeError:
            here = False
        if here:
            ctx.write_event_to_stream(told)
        else:
            loop.call_soon_threadsafe(ctx.write_event_to_stream, told)

    token = listening.set((*listening.get(), write))
    try:
        yield
    finally:
        listening.reset(token)


async def answer_in(ctx: Context, engine: BaseQueryEngine, query: str) -> Response:
    """Ask an engine inside a workflow's step; its decisions and, if it streams, its answer are streamed on.

    Args:
        ctx: The context that a step, or a tool of an agent, was given.
        engine: Any query engine.
        query: What to ask.

    Returns:
        The whole response, with source nodes and metadata.
    """
    with streamed_to(ctx):
        return await _read(ctx, await engine.aquery(query))


def engine_tool(engine: BaseQueryEngine, *, name: str, description: str) -> FunctionTool:
    """Return a query engine as a tool of agents, whose stream then tells what the engine decides and says.

    LlamaIndex's own ``QueryEngineTool`` works as well, and keeps that to itself. The tool's ``raw_output`` is
    the response, with source nodes and metadata.

    Args:
        engine: Any query engine.
        name: Of the tool.
        description: What it is for: an agent chooses by it.
    """

    async def ask(ctx: Any, input: str) -> Response:  # what agents' tools are given
        """Ask the engine."""
        return await answer_in(ctx, engine, input)

    # LlamaIndex looks for the class itself, and not for its name, which annotations are in this module.
    ask.__annotations__ = {"ctx": Context, "input": str, "return": Response}
    return FunctionTool.from_defaults(async_fn=ask, name=name, description=description)


async def _read(ctx: Context, response: RESPONSE_TYPE) -> Response:
    if isinstance(response, AsyncStreamingResponse):
        pieces = []
        async for piece in response.async_response_gen():
            pieces.append(piece)
            ctx.write_event_to_stream(AnswerStreamEvent(delta=piece))
        return Response("".join(pieces), response.source_nodes, response.metadata)
    if isinstance(response, StreamingResponse):
        return await in_thread(response.get_response)
    return Response(str(response), response.source_nodes, response.metadata)
