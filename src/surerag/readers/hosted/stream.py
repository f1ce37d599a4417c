"""An answer on its way: an open stream, read as far as needed and no further."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from surerag.errors import ServiceError, TransientServiceError
from surerag.messages import Chunk, Generation, PartialGeneration, Usage
from surerag.readers.closing import close_in_loop_when_dropped, close_when_dropped
from surerag.readers.hosted.failures import ToldError
from surerag.readers.hosted.limits import Meter
from surerag.readers.hosted.parse import Draft, streamed_choice, usage_of
from surerag.readers.hosted.sse import EventParser
from surerag.readers.hosted.text import Json, json_of, malformed
from surerag.readers.pieces import TrimmedPieces

if TYPE_CHECKING:
    import httpx

Guard = Callable[[Callable[[], Any]], Any]
"""Runs one step over HTTP, its errors turned into ours."""

AsyncGuard = Callable[[Awaitable[Any]], Awaitable[Any]]
"""Awaits one step over HTTP, its errors turned into ours."""


class _Events:
    """The events of a response that were received, and are still to be read."""

    def __init__(self, meter: Meter, piece_of: Callable[[Json], Json]) -> None:
        self._meter = meter
        self._piece_of = piece_of
        self._parser = EventParser()
        self._received: deque[str] = deque()
        self.ended = False

    def take(self, received: bytes | None) -> None:
        """Take the next bytes; None for the end."""
        self.ended = self._meter.received(received) is None
        if received is None:
            # What a broken connection cut short is no event.
            self._received.extend(data for data in self._parser.end() if _is_whole(data))
        else:
            self._received.extend(self._parser.feed(received))

    @property
    def waiting(self) -> bool:
        return not self._received and not self.ended

    def next(self) -> Json | None:
        """Return the next event as a piece of the chat or completions API; None behind the last one.

        Raises:
            ServiceError: If the server sent something else.
            ToldError: If it says that it failed.
        """
        data = self._received.popleft() if self._received else "[DONE]"
        if data.startswith("[DONE]"):
            self.ended = True
            self._received.clear()
            return None
        return checked(self._piece_of(as_json(data)))


class Events(_Events):
    """The events of a response of the sync client."""

    def __init__(self, response: httpx.Response, meter: Meter, piece_of: Callable[[Json], Json]) -> None:
        super().__init__(meter, piece_of)
        self._response = response
        self._bytes = response.iter_bytes()

    def close(self) -> None:
        """Close the response; by way of this object, so that its iterator is not finalised before."""
        self._response.close()

    def read(self) -> Json | None:
        """Return the next event, waiting for it; None behind the last one."""
        while self.waiting:
            with self._meter.running():
                self.take(next(self._bytes, None))
        return self.next()


class AsyncEvents(_Events):
    """The events of a response of the async client."""

    def __init__(self, response: httpx.Response, meter: Meter, piece_of: Callable[[Json], Json]) -> None:
        super().__init__(meter, piece_of)
        self._response = response
        self._bytes = response.aiter_bytes()

    async def close(self) -> None:
        """Close the response; by way of this object, so that its iterator is not finalised before."""
        await self._response.aclose()

    async def read(self) -> Json | None:
        """Return the next event, waiting for it; None behind the last one."""
        while self.waiting:
            async with self._meter.arunning():
                self.take(await anext(self._bytes, None))
        return self.next()


@dataclass(frozen=True)
class Report:
    """Where a stream tells what became of it.

    Attributes:
        count: Adds to the reader's totals; may be called in a finaliser.
        saw: Notes whether the answer was thought about first; may refuse that.
    """

    count: Callable[[Usage], None]
    saw: Callable[[Draft], None]


class _Reading:
    """What was read of one stream, and what may still be done with it."""

    def __init__(self, draft: Draft, report: Report) -> None:
        self.draft = draft
        self.state: Literal["open", "finished", "cancelled"] = "open"
        self._shown: list[str] = []
        self._report = report

    @property
    def done(self) -> bool:
        return self.draft.finish is not None

    def take(self, piece: Json) -> str:
        """Take the next event and return its text."""
        if isinstance(piece.get("usage"), dict):
            self.draft.usage = usage_of(piece)
        choice = streamed_choice(piece)
        text = self.draft.feed(choice) if choice is not None else ""
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
            ThinkingBudgetError: If it ended inside the model's thoughts.
        """
        if not self.done:
            raise TransientServiceError("the server's stream broke off before the answer ended")
        self._report.saw(self.draft)
        return self.draft.generation()

    def begins(self) -> None:
        """Note that of an answer something may be shown from now on.

        Raises:
            ThinkingBudgetError: If it was thought about, and no tokens were granted for that: it may end too
                early. Asked for again, it has them.
        """
        self._report.saw(self.draft)
        if self.draft.starved:
            raise self.draft.budget_error()

    def count(self) -> None:
        """Count what was read, as the server does where it tells, else by its tokens."""
        self._report.count(self.draft.spent())


class OpenStream(_Reading):
    """A stream of the sync client; it may be begun in one thread and finished in another.

    Args:
        events: What the server sends; closed once this is dropped, closed or read to its end.
        guard: Turns errors into ours.
        draft: The answer, to be filled.
        report: Where to tell what became of it.
    """

    def __init__(self, events: Events, guard: Guard, draft: Draft, report: Report) -> None:
        super().__init__(draft, report)
        self._events = events
        self._guard = guard
        self._hang_up = close_when_dropped(self, events.close)

    def begun(self, tokens: int) -> PartialGeneration:
        """Read so many tokens, or to the end of a shorter answer."""
        try:
            while self._read() is not None:
                if self.enough(tokens) and not self.done:
                    self.begins()
                    return PartialGeneration(self.draft.generation(tokens), done=False, state=self)
            whole = self.whole()
            self.begins()
            self.claim()
        except BaseException:
            self.close()
            raise
        self._end()
        return PartialGeneration(whole, done=True, state=self)

    def primed(self) -> Self:
        """Read up to the answer's first token, past what the model thinks before it."""
        try:
            while self._read() is not None:
                if self.enough(1) and not self.done:
                    self.begins()
                    return self
            self.whole()
            self.begins()
        except BaseException:
            self.close()
            raise
        return self

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
            while (piece := self._read()) is not None:
                yield Chunk(shown.feed(piece))
            yield Chunk("", self.whole())
        finally:
            self._end()

    def close(self) -> None:
        """Close the stream, if it is open."""
        if self.state == "open":
            self.state = "cancelled"
            self._end()

    def _end(self) -> None:
        # This, too, may be a finaliser at work: that of a generator which reads from here.
        self._hang_up()
        self.count()

    def _read(self) -> str | None:
        event = None if self.draft.full else self._guard(self._events.read)
        return None if event is None else self.take(event)


class AsyncOpenStream(_Reading):
    """A stream of the async client; it belongs to the event loop that opened it.

    Args:
        events: What the server sends; closed once this is dropped, closed or read to its end.
        guard: Turns errors into ours.
        draft: The answer, to be filled.
        report: Where to tell what became of it.
    """

    def __init__(self, events: AsyncEvents, guard: AsyncGuard, draft: Draft, report: Report) -> None:
        super().__init__(draft, report)
        self._events = events
        self._guard = guard
        self._hang_up = close_in_loop_when_dropped(self, events.close)

    async def begun(self, tokens: int) -> PartialGeneration:
        """Read so many tokens, or to the end of a shorter answer."""
        try:
            while await self._read() is not None:
                if self.enough(tokens) and not self.done:
                    self.begins()
                    return PartialGeneration(self.draft.generation(tokens), done=False, state=self)
            whole = self.whole()
            self.begins()
            self.claim()
        except BaseException:
            self.close()
            raise
        self._end()
        return PartialGeneration(whole, done=True, state=self)

    async def primed(self) -> Self:
        """Read up to the answer's first token, past what the model thinks before it."""
        try:
            while await self._read() is not None:
                if self.enough(1) and not self.done:
                    self.begins()
                    return self
            self.whole()
            self.begins()
        except BaseException:
            self.close()
            raise
        return self

    async def finish(self) -> Generation:
        """Read to the end."""
        chunks = [chunk async for chunk in self.chunks()]
        return chunks[-1].generation or self.whole()

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """Yield the answer from its first token on; closing this closes the stream, and awaits nothing."""
        shown = TrimmedPieces()
        pieces = self.claim()
        try:
            yield Chunk(shown.feed("".join(pieces)))
            while (piece := await self._read()) is not None:
                yield Chunk(shown.feed(piece))
            yield Chunk("", self.whole())
        finally:
            self._end()

    def close(self) -> None:
        """Have the stream closed in its event loop, if it is open; called from anywhere."""
        if self.state == "open":
            self.state = "cancelled"
            self._end()

    def _end(self) -> None:
        self._hang_up()
        self.count()

    async def _read(self) -> str | None:
        event = None if self.draft.full else await self._guard(self._events.read())
        return None if event is None else self.take(event)


def _is_whole(data: str) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return data.startswith("[DONE]")
    return True


def as_json(data: str) -> Json:
    """Return the data of one event as a JSON object.

    Raises:
        ServiceError: If it is none.
    """
    piece = json_of(data)
    if not isinstance(piece, dict):
        raise malformed(piece)
    return piece


def checked(piece: Json) -> Json:
    """Return an answer, or a piece of one, that tells of no failure.

    Raises:
        ToldError: If it does.
    """
    if error := piece.get("error"):
        raise ToldError(error)
    return piece
