"""Closing what LangChain's LLMs leave open."""

from __future__ import annotations

from typing import Any


class OpenedStreams:
    """Remembers the connections that an LLM opens, so that they can be closed when its stream is.

    LangChain's OpenAI LLM, unlike its chat models, leaves that to the garbage collector, and an answer
    that nobody reads any more goes on being generated until then.
    """

    def __init__(self) -> None:
        self._streams: list[Any] = []

    def watched(self, model: Any) -> dict[str, Any]:
        """Return the model's clients with their streams remembered, as fields for a copy of it."""
        kinds = {"client": _Client, "async_client": _AsyncClient}
        return {
            name: kind(getattr(model, name), self._streams)
            for name, kind in kinds.items()
            if hasattr(getattr(model, name, None), "create")
        }

    def close(self) -> None:
        """Close what was opened; again does nothing."""
        while self._streams:
            self._streams.pop().close()

    async def aclose(self) -> None:
        """Like :meth:`close`, for the async client."""
        while self._streams:
            await self._streams.pop().close()


class _Client:
    def __init__(self, client: Any, streams: list[Any]) -> None:
        self._client = client
        self._streams = streams

    def create(self, **arguments: Any) -> Any:
        stream = self._client.create(**arguments)
        self._streams.append(stream)
        return stream


class _AsyncClient(_Client):
    async def create(self, **arguments: Any) -> Any:
        stream = await self._client.create(**arguments)
        self._streams.append(stream)
        return stream
