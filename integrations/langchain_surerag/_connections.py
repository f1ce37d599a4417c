"""A model's clients, watched: what they open can be closed, and what they receive is kept within limits."""

from __future__ import annotations

from typing import Any, NamedTuple

from surerag.readers.hosted.limits import Limits, abound, bound
from surerag.readers.hosted.loops import client_of_this_loop


class OpenedStreams:
    """Remembers the connections that a model opens, so that they can be closed when its stream is.

    LangChain's OpenAI LLM, unlike its chat models, leaves that to the garbage collector, and an answer
    that nobody reads any more goes on being generated until then.

    Args:
        limits: What a service may take for one answer: the models have no setting for it.
    """

    def __init__(self, limits: Limits) -> None:
        self._streams: list[Any] = []
        self._limits = limits

    def watched(self, model: Any) -> dict[str, Any]:
        """Return the model's clients, watched, as fields for a copy of it.

        Their streams are remembered, and all their answers kept within limits.
        """
        kinds = {"client": _Client, "async_client": _AsyncClient}
        return {
            name: kind(getattr(model, name), self._streams, self._limits)
            for name, kind in kinds.items()
            if hasattr(getattr(model, name, None), "with_streaming_response")
        }

    def close(self) -> None:
        """Close what was opened; again does nothing."""
        while self._streams:
            self._streams.pop().close()

    async def aclose(self) -> None:
        """Like :meth:`close`, for the async client."""
        while self._streams:
            await self._streams.pop().close()


class _Raw(NamedTuple):
    """A whole answer, in the form of the SDK's raw responses."""

    parsed: Any
    headers: Any
    http_response: Any

    def parse(self) -> Any:
        return self.parsed


class _Client:
    """Stands in for ``client.completions`` or ``client.chat.completions``."""

    def __init__(self, client: Any, streams: list[Any], limits: Limits) -> None:
        self._client = client
        self._streams = streams
        self._limits = limits

    @property
    def with_raw_response(self) -> _RawClient:
        return _RawClient(self._client, self._streams, self._limits)

    def create(self, **arguments: Any) -> Any:
        if not arguments.get("stream"):
            return self.with_raw_response.create(**arguments).parsed
        stream = self._client.create(**arguments)
        bound(stream.response, self._limits)
        self._streams.append(stream)
        return stream


class _RawClient(_Client):
    def create(self, **arguments: Any) -> Any:
        if not arguments.get("stream"):
            with self._client.with_streaming_response.create(**arguments) as response:
                bound(response.http_response, self._limits)
                return _Raw(response.parse(), response.headers, response.http_response)
        raw = self._client.with_raw_response.create(**arguments)
        bound(raw.http_response, self._limits)
        self._streams.append(raw.http_response)
        return raw


class _AsyncClient:
    """Like the sync one; each event loop has connections of its own."""

    def __init__(self, client: Any, streams: list[Any], limits: Limits) -> None:
        self._client = client
        self._streams = streams
        self._limits = limits

    @property
    def with_raw_response(self) -> _AsyncRawClient:
        return _AsyncRawClient(self._client, self._streams, self._limits)

    async def create(self, **arguments: Any) -> Any:
        if not arguments.get("stream"):
            return (await self.with_raw_response.create(**arguments)).parsed
        stream = await self._here().create(**arguments)
        abound(stream.response, self._limits)
        self._streams.append(stream)
        return stream

    def _here(self) -> Any:
        return type(self._client)(client_of_this_loop(self._client._client))


class _AsyncRawClient(_AsyncClient):
    async def create(self, **arguments: Any) -> Any:
        if not arguments.get("stream"):
            async with self._here().with_streaming_response.create(**arguments) as response:
                abound(response.http_response, self._limits)
                return _Raw(await response.parse(), response.headers, response.http_response)
        raw = await self._here().with_raw_response.create(**arguments)
        abound(raw.http_response, self._limits)
        self._streams.append(_AsyncResponse(raw.http_response))
        return raw


class _AsyncResponse(NamedTuple):
    response: Any

    async def close(self) -> None:
        await self.response.aclose()
