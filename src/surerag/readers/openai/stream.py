"""An answer on its way: an open stream, read as far as needed and no further."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any, Literal

from surerag.errors import ServiceError, TransientServiceError
from surerag.readers.openai.parse import Draft, Json, Wanted, malformed, usage_of
from surerag.readers.pieces import TrimmedPieces
from surerag.types import Begun, Chunk, Generation, Usage

Guard = Callable[[Callable[[], Any]], Any]
"""Runs one step of the SDK, its errors turned into ours."""

AsyncGuard = Callable[[Awaitable[Any]], Awaitable[Any]]
"""Awaits one step of the SDK, its errors turned into ours."""


class _Reading:
    """What was read of one stream, and what may still be done with it."""

    def __init__(self, wanted: Wanted, count: Callable[[Usage], None]) -> None:
        self.draft = Draft(wanted)
        self.state: Literal["open", "finished", "cancelled"] = "open"
        self._shown: list[str] = []
        self._count = count

    @property
    def done(self) -> bool:
        return self.draft.finish is not None

    def take(self, event: object) -> str:
        """Take the next event and return its text."""
        piece = as_json(event)
        if isinstance(piece.get("usage"), dict):
            self.draft.usage = usage_of(piece)
        # The piece that carries the usage has no choices.
        choices = piece.get("choices")
        text = self.draft.feed(choices[0]) if isinstance(choices, list) and choices else ""
        self._shown.append(text)
        return text

    def enough(self, tokens: int) -> bool:
        return self.done or self.draft.tokens >= tokens

    def claim(self) -> list[str]:
        """Take the answer over, to finish it, and return the pieces read so far."""
        if self.state != "open":
            raise ServiceError(f"what was begun is {self.state} already", hint="begin it again")
        self.state = "finished"
        return self._shown

    def whole(self) -> Generation:
        """Return the whole answer.

        Raises:
            TransientServiceError: If the stream broke off.
        """
        if not self.done:
            raise TransientServiceError("the server's stream broke off before the answer ended")
        return self.draft.generation()

    def count(self) -> None:
        """Count what was read, as the server does where it tells, else by its tokens."""
        given = self.draft.usage
        self._count(Usage(1, given.prompt_tokens, given.completion_tokens or self.draft.tokens))


class OpenStream(_Reading):
    """A stream of the sync client; it may be begun in one thread and finished in another."""

    def __init__(self, events: Any, guard: Guard, wanted: Wanted, count: Callable[[Usage], None]) -> None:
        super().__init__(wanted, count)
        self._events = events
        self._guard = guard

    def begun(self, tokens: int) -> Begun:
        """Read so many tokens, or to the end of a shorter answer."""
        try:
            for _ in self._rest():
                if self.enough(tokens) and not self.done:
                    return Begun(self.draft.generation(tokens), done=False, state=self)
            self.claim()
            whole = self.whole()
        except BaseException:
            self.close()
            raise
        self.count()
        return Begun(whole, done=True, state=self)

    def finish(self) -> Generation:
        """Read to the end."""
        *_, last = self.chunks()
        return last.generation or self.whole()

    def chunks(self) -> Generator[Chunk, None, None]:
        """Yield the answer from its first token on; closing this closes the stream."""
        shown = TrimmedPieces()
        pieces = self.claim()
        try:
            yield Chunk(shown.feed("".join(pieces)))
            for piece in self._rest():
                yield Chunk(shown.feed(piece))
            yield Chunk("", self.whole())
        finally:
            self._events.close()
            self.count()

    def close(self) -> None:
        """Close the stream, if it is open."""
        if self.state == "open":
            self.state = "cancelled"
            self._events.close()
            self.count()

    def _rest(self) -> Iterator[str]:
        while (event := self._guard(lambda: next(self._events, None))) is not None:
            yield self.take(event)


class AsyncOpenStream(_Reading):
    """A stream of the async client; it belongs to the event loop that opened it."""

    def __init__(
        self, events: Any, guard: AsyncGuard, wanted: Wanted, count: Callable[[Usage], None]
    ) -> None:
        super().__init__(wanted, count)
        self._events = events
        self._guard = guard
        self._loop = asyncio.get_running_loop()

    async def begun(self, tokens: int) -> Begun:
        """Read so many tokens, or to the end of a shorter answer."""
        try:
            async for _ in self._rest():
                if self.enough(tokens) and not self.done:
                    return Begun(self.draft.generation(tokens), done=False, state=self)
            self.claim()
            whole = self.whole()
        except BaseException:
            await self.close()
            raise
        self.count()
        return Begun(whole, done=True, state=self)

    async def finish(self) -> Generation:
        """Read to the end."""
        chunks = [chunk async for chunk in self.chunks()]
        return chunks[-1].generation or self.whole()

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield the answer from its first token on; closing this closes the stream."""
        shown = TrimmedPieces()
        pieces = self.claim()
        try:
            yield Chunk(shown.feed("".join(pieces)))
            async for piece in self._rest():
                yield Chunk(shown.feed(piece))
            yield Chunk("", self.whole())
        finally:
            await self._events.close()
            self.count()

    async def close(self) -> None:
        """Close the stream, if it is open."""
        if self.state == "open":
            self.state = "cancelled"
            await self._events.close()
            self.count()

    def close_soon(self) -> None:
        """Close the stream from code that cannot wait, in the loop that it belongs to."""
        if self.state == "open" and not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self.close(), self._loop)

    async def _rest(self) -> AsyncIterator[str]:
        while (event := await self._guard(_next(self._events))) is not None:
            yield self.take(event)


async def _next(events: Any) -> Any:
    return await anext(events, None)


def as_json(event: Any) -> Json:
    """Return one of the SDK's events as the JSON that it was made from.

    Raises:
        ServiceError: If the server sent something that is no object.
    """
    to_dict = getattr(event, "to_dict", None)
    if to_dict is None:
        raise malformed(event)
    piece: Json = to_dict(warnings=False)
    return piece
