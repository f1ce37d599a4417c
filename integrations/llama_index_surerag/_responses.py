"""What a query engine's response shows: whole or streamed, text or structured."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from llama_index.core.base.response.schema import (
    RESPONSE_TYPE,
    AsyncStreamingResponse,
    StreamingResponse,
)

from llama_index_surerag.nodes import passages_of


class Shown(NamedTuple):
    """What a pipeline answered, and what it showed to its LLM."""

    response: str | None
    contexts: list[str] | None


def shown(response: RESPONSE_TYPE | None) -> Shown:
    """Return a response's text, as far as there is one, and its source nodes; a stream is left unread."""
    if response is None:
        return Shown(None, None)
    text: str | None
    if isinstance(response, StreamingResponse | AsyncStreamingResponse):
        text = response.response_txt
    else:
        text = None if response.response is None else str(response)
    return Shown(text, [passage.text for passage in passages_of(response.source_nodes)])


def read(response: RESPONSE_TYPE) -> RESPONSE_TYPE:
    """Read a stream to its end: an engine's connection stays open otherwise."""
    return response.get_response() if isinstance(response, StreamingResponse) else response


async def aread(response: RESPONSE_TYPE) -> RESPONSE_TYPE:
    """Like :func:`read`, without blocking the event loop."""
    if isinstance(response, AsyncStreamingResponse):
        return await response.get_response()
    return await asyncio.to_thread(read, response) if isinstance(response, StreamingResponse) else response
