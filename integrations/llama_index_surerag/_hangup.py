"""Ending an LLM's stream early, and its connection with it.

Closing the generator that an LLM hands out does neither well: LlamaIndex reports it to callbacks as an
error, and the SDK's stream under it stays open until the garbage collector comes by. So the LLM is
lent a client whose streams can be told to end. They then do so as if the server had nothing to add.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any


class EndableClient:
    """Stands in for the SDK's sync client during one streamed request.

    Args:
        client: The SDK's client.
    """

    def __init__(self, client: Any) -> None:
        self._ended = False
        self._client = client
        self.completions = SimpleNamespace(create=self._create)
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create_chat))

    def hang_up(self, stream: Iterator[Any]) -> None:
        """End the LLM's stream; what comes after counts for nothing, errors included."""
        self._ended = True
        with suppress(Exception):
            for _ in stream:
                pass

    def _create(self, **body: Any) -> Iterator[Any]:
        return self._read(self._client.completions.create(**body))

    def _create_chat(self, **body: Any) -> Iterator[Any]:
        return self._read(self._client.chat.completions.create(**body))

    def _read(self, pieces: Any) -> Iterator[Any]:
        try:
            for piece in pieces:
                yield piece
                if self._ended:
                    return
        finally:
            pieces.close()


class EndableAsyncClient:
    """Stands in for the SDK's async client during one streamed request.

    Args:
        client: The SDK's client.
    """

    def __init__(self, client: Any) -> None:
        self._ended = False
        self._client = client
        self.completions = SimpleNamespace(create=self._create)
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create_chat))

    async def hang_up(self, stream: AsyncIterator[Any]) -> None:
        """End the LLM's stream; what comes after counts for nothing, errors included."""
        self._ended = True
        with suppress(Exception):
            async for _ in stream:
                pass

    async def _create(self, **body: Any) -> AsyncIterator[Any]:
        return self._read(await self._client.completions.create(**body))

    async def _create_chat(self, **body: Any) -> AsyncIterator[Any]:
        return self._read(await self._client.chat.completions.create(**body))

    async def _read(self, pieces: Any) -> AsyncIterator[Any]:
        try:
            async for piece in pieces:
                yield piece
                if self._ended:
                    return
        finally:
            await pieces.close()
