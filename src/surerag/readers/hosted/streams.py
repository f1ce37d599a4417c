"""An open answer: a stream read as far as needed and no further, then continued or closed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Literal

from surerag.errors import ServiceError, TransientServiceError
from surerag.messages import Chunk, Generation, PartialGeneration
from surerag.readers.hosted.answers import Draft, choices_of, usage_of
from surerag.readers.hosted.client import EventStream, background_loop
from surerag.readers.pieces import TrimmedPieces


class OpenAnswer:
    """An answer on its way; its coroutines belong to the background loop, ``close`` can be called anywhere.

    Args:
        events: What the server sends; closed once this is dropped, closed or read to its end.
        draft: The answer, to be filled.
        ended: Notes what the answer cost, and whether it was thought about.
    """

    def __init__(self, events: EventStream, draft: Draft, ended: Callable[[Draft], None]) -> None:
        self.draft = draft
        self.state: Literal["open", "finished", "cancelled"] = "open"
        self._events = events
        self._ended = ended
        self._pieces: list[str] = []
        self._trimmed = TrimmedPieces()
        self._hang_up = weakref.finalize(self, _close_soon, events)
        self._hang_up.atexit = False

    async def _next(self) -> str | None:
        """Read the next piece of text; None behind the last one."""
        piece = None if self.draft.full else await self._events.next()
        if piece is None:
            return None
        if isinstance(piece.get("usage"), dict):
            self.draft.usage = usage_of(piece)
        # The piece that carries the usage may have no choice.
        return self.draft.feed(choices_of(piece)[0]) if piece.get("choices") else ""

    async def read(self, tokens: int) -> PartialGeneration:
        """Read so many tokens of the answer, or to the end of a shorter one."""
        try:
            while (piece := await self._next()) is not None:
                self._pieces.append(piece)
                if self.draft.finish is None and self.draft.tokens >= tokens:
                    if self.draft.starved:
                        raise self.draft.budget_error()
                    return PartialGeneration(self.draft.generation(tokens), done=False, state=self)
            whole = self._whole()
            if self.draft.starved:
                raise self.draft.budget_error()
        except BaseException:
            self.close()
            raise
        self.claim()
        self.end()
        return PartialGeneration(whole, done=True, state=self)

    def claim(self) -> None:
        """Take the answer over, to finish it.

        Raises:
            ServiceError: If it was finished or cancelled before.
        """
        if self.state != "open":
            raise ServiceError(f"what was begun is {self.state} already", hint="begin it again")
        self.state = "finished"

    async def chunk(self) -> Chunk:
        """Return the next chunk from the first token on; the last one holds the generation."""
        try:
            while True:
                piece = "".join(self._pieces) if self._pieces else await self._next()
                self._pieces = []
                if piece is None:
                    whole = self._whole()
                    self.end()
                    return Chunk("", whole)
                if text := self._trimmed.feed(piece):
                    return Chunk(text)
        except BaseException:
            self.end()
            raise

    async def rest(self) -> Generation:
        """Read to the end and return the whole answer."""
        while (whole := (await self.chunk()).generation) is None:
            pass
        return whole

    def _whole(self) -> Generation:
        if self.draft.finish is None:
            raise TransientServiceError("the server's stream broke off before the answer ended")
        return self.draft.generation()

    def close(self) -> None:
        """Close the connection, if the answer was not taken over; never waits."""
        if self.state == "open":
            self.state = "cancelled"
            self.end()

    def end(self) -> None:
        """Close the connection and note what it cost; once."""
        if self._hang_up.alive:
            self._hang_up()
            self._ended(self.draft)


def _close_soon(events: EventStream) -> None:
    """Close a connection on the background loop; may be a finaliser at work, so nothing is awaited here."""
    loop = background_loop()
    if events.loop is loop:
        loop.call_soon_threadsafe(lambda: loop.create_task(events.aclose()))
