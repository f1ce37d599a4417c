"""Parts inside LlamaIndex's workflows and agents: decisions and answers go to the event stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import AsyncStreamingResponse, Response
from llama_index.core.tools import FunctionTool
from llama_index.core.workflow import Context, Event

from llama_index_surerag.engines import read_to_end
from llama_index_surerag.events import listeners
from surerag.messages import Event as MethodEvent
from surerag.readers.threads import in_thread


class MethodStreamEvent(Event):
    """A decision or a fallback of a method, in a workflow's stream.

    Attributes:
        name: Such as ``"lazy_rag.gate"``.
        data: Plain values.
        warning: Whether a fallback was taken.
    """

    name: str
    data: dict[str, Any]
    warning: bool = False


class AnswerStreamEvent(Event):
    """The next piece of an answer, in a workflow's stream.

    Attributes:
        delta: The piece.
    """

    delta: str


@contextmanager
def streamed_to(ctx: Context) -> Iterator[None]:
    """Within it, whatever parts decide goes to a workflow's stream as a :class:`MethodStreamEvent`.

    Args:
        ctx: The context of a step, or of an agent's tool.

    Example:
        ::

            @step
            async def answer(self, ctx: Context, ev: StartEvent) -> StopEvent:
                with streamed_to(ctx):
                    return StopEvent(result=await engine.aquery(ev.question))
    """
    loop = asyncio.get_running_loop()

    def write(event: MethodEvent) -> None:
        streamed = MethodStreamEvent(name=event.name, data=dict(event.data), warning=event.warning)
        try:
            same_loop = asyncio.get_running_loop() is loop
        except RuntimeError:
            same_loop = False
        if same_loop:
            ctx.write_event_to_stream(streamed)
        else:
            loop.call_soon_threadsafe(ctx.write_event_to_stream, streamed)

    token = listeners.set((*listeners.get(), write))
    try:
        yield
    finally:
        listeners.reset(token)


async def answer_in(ctx: Context, engine: BaseQueryEngine, query: str) -> Response:
    """Query an engine inside a workflow's step; its decisions and, if it streams, its answer are streamed.

    Args:
        ctx: The context of the step, or of an agent's tool.
        engine: Any query engine.
        query: The question.

    Returns:
        The whole response, with source nodes and metadata.
    """
    with streamed_to(ctx):
        response = await engine.aquery(query)
        if isinstance(response, AsyncStreamingResponse):
            pieces = []
            async for piece in response.async_response_gen():
                pieces.append(piece)
                ctx.write_event_to_stream(AnswerStreamEvent(delta=piece))
            return Response("".join(pieces), response.source_nodes, response.metadata)
        whole = await in_thread(read_to_end, response)
        return Response(str(whole), whole.source_nodes, whole.metadata)


def engine_tool(engine: BaseQueryEngine, *, name: str, description: str) -> FunctionTool:
    """Return a query engine as an agent's tool, whose stream then has the engine's decisions and answer.

    LlamaIndex's own ``QueryEngineTool`` works as well, without these events. The tool's ``raw_output`` is
    the response, with source nodes and metadata.

    Args:
        engine: Any query engine.
        name: Of the tool.
        description: What it is for: an agent chooses by it.
    """

    async def ask(ctx: Any, input: str) -> Response:  # the signature that agents' tools have
        """Ask the engine."""
        return await answer_in(ctx, engine, input)

    # LlamaIndex looks for the class itself, and not for its name, which annotations are in this module.
    ask.__annotations__ = {"ctx": Context, "input": str, "return": Response}
    return FunctionTool.from_defaults(async_fn=ask, name=name, description=description)
