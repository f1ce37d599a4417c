"""One program whose answer is streamed.

A streaming driver runs a program up to the effect that the method marks as its answer. By then the method
has decided: its events are in ``events`` before the first piece of text is read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, Self, TypeVar

from surerag.drivers.answering import Answered, Outcome
from surerag.drivers.asynchronous import aclose, aoutcome_of
from surerag.drivers.session import Listener, Session
from surerag.drivers.sync import close, outcome_of
from surerag.effects import ContinueGeneration, Effect, Generate, Program, ReturnAnswer
from surerag.errors import ServiceError
from surerag.messages import Chunk, Event, Generation
from surerag.readers.protocol import close_iterator
from surerag.readers.threads import close_in_loop_when_dropped, complete
from surerag.services import Services

R = TypeVar("R")
T = TypeVar("T")


class _Work(Generic[R]):
    """The program behind a stream.

    It is no asynchronous generator: of several within each other, an event loop that ends closes all at
    once, the inner ones twice.
    """

    def __init__(self, session: Session[R], io: _Blocking | _Awaiting) -> None:
        self.session = session
        self._io = io
        self._chunks: Any = None
        self._generation: Generation | None = None
        session.streams = True

    async def start(self) -> None:
        """Run up to the answer."""
        session = self.session
        try:
            session.start()
            while session.effect is not None and not _is_answer(session):
                session.advance(await self._io.outcome(session))
        except BaseException:
            await self._io.close(session)
            raise

    async def next(self) -> str | None:
        """Return the next piece of text; None where the program ends, or was closed."""
        try:
            piece = await self._next()
        except BaseException:
            await self.close()
            raise
        if piece is None:
            await self.close()
        return piece

    async def _next(self) -> str | None:
        session = self.session
        while session.effect is not None and not session.closed:
            if not _is_answer(session):
                session.advance(await self._io.outcome(session))
                continue
            if isinstance(session.effect, ReturnAnswer):
                answer = session.effect.generation
                if self._generation is answer or not answer.text:
                    session.advance(Answered(answer))
                    continue
                self._generation = answer
                return answer.text
            if self._chunks is None:
                self._chunks = self._io.open(session)
            chunk = await self._io.read(session, self._chunks)
            if chunk is None:
                chunks, self._chunks = self._chunks, None
                await self._io.close_chunks(chunks)
                generation, self._generation = self._generation, None
                session.advance(_answered(session.effect, generation))
                continue
            self._generation = chunk.generation or self._generation
            if chunk.text:
                return chunk.text
        return None

    async def close(self) -> None:
        """Stop, and free what the program left open. Closing again does nothing."""
        chunks, self._chunks = self._chunks, None
        try:
            if chunks is not None:
                await self._io.close_chunks(chunks)
        finally:
            if not self.session.closed:
                await self._io.close(self.session)


class _Streamed(Generic[R]):
    """Events so far, and the result at the end; nothing behind a stream refers to it."""

    def __init__(self, work: _Work[R], events: list[Event]) -> None:
        self.events = events
        self._work = work

    @property
    def result(self) -> R:
        """The program's result.

        Raises:
            RuntimeError: Before the stream was read to its end.
        """
        if not self._work.session.done:
            raise RuntimeError("the result is there when the stream has been read to its end")
        return self._work.session.result  # type: ignore[return-value]  # a finished session has its result

    @property
    def announced(self) -> Any:
        """Detail of the last event that has one: what a method settled before its answer."""
        return next((event.detail for event in reversed(self.events) if event.detail is not None), None)


class AnswerStream(_Streamed[R]):
    """Pieces of an answer, then its result. Iterate it once; close it to stop early."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        piece = complete(self._work.next())
        if piece is None:
            raise StopIteration
        return piece

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and free what the program left open. Closing again does nothing."""
        complete(self._work.close())


class AsyncAnswerStream(_Streamed[R]):
    """Like :class:`AnswerStream`, for ``async for``; it is closed in its event loop when it is dropped."""

    def __init__(self, work: _Work[R], events: list[Event]) -> None:
        super().__init__(work, events)
        close_in_loop_when_dropped(self, work.close)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        piece = await self._work.next()
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop, and free what the program left open. Closing again does nothing."""
        await self._work.close()


def stream(program: Program[R], services: Services, *, on_event: Listener | None = None) -> AnswerStream[R]:
    """Run a program up to its answer, and return that answer as a stream.

    Returns:
        An iterable of text pieces; ``events`` holds the decisions, ``result`` is there at the end.
    """
    events: list[Event] = []
    work = _Work(Session(program, services, _recording(events, on_event)), _Blocking())
    complete(work.start())
    return AnswerStream(work, events)


async def astream(
    program: Program[R], services: Services, *, on_event: Listener | None = None
) -> AsyncAnswerStream[R]:
    """Like :func:`stream`, without blocking the event loop."""
    events: list[Event] = []
    work = _Work(Session(program, services, _recording(events, on_event)), _Awaiting())
    await work.start()
    return AsyncAnswerStream(work, events)


class _Blocking:
    """Asks services in this thread; its coroutines never suspend, so that :func:`complete` can run them."""

    async def outcome(self, session: Session[Any]) -> Outcome:
        return outcome_of(session)

    def open(self, session: Session[Any]) -> Iterator[Chunk]:
        method, *arguments = _stream_call(session.effect)
        return session.context.run(getattr(session.services.reader, method), *arguments)

    async def read(self, session: Session[Any], chunks: Iterator[Chunk]) -> Chunk | None:
        return session.context.run(next, chunks, None)

    async def close_chunks(self, chunks: Iterator[Chunk]) -> None:
        close_iterator(chunks)

    async def close(self, session: Session[Any]) -> None:
        close(session)


class _Awaiting:
    """Asks services without blocking the event loop."""

    async def outcome(self, session: Session[Any]) -> Outcome:
        return await aoutcome_of(session)

    def open(self, session: Session[Any]) -> AsyncIterator[Chunk]:
        method, *arguments = _stream_call(session.effect)
        return session.context.run(getattr(session.services.reader, f"a{method}"), *arguments)

    async def read(self, session: Session[Any], chunks: AsyncIterator[Chunk]) -> Chunk | None:
        return await anext(chunks, None)

    async def close_chunks(self, chunks: AsyncIterator[Chunk]) -> None:
        if hasattr(chunks, "aclose"):
            await chunks.aclose()

    async def close(self, session: Session[Any]) -> None:
        await aclose(session)


def _recording(events: list[Event], on_event: Listener | None) -> Listener:
    def listen(event: Event) -> None:
        events.append(event)
        if on_event is not None:
            on_event(event)

    return listen


def _is_answer(session: Session[Any]) -> bool:
    """Whether the current effect is the answer, and one that can be streamed."""
    match session.effect:
        case Generate(prompts, sampling, answer=True):
            return len(prompts) == 1 and sampling.n == 1
        case ContinueGeneration(begun, answer=True):
            return len(begun) == 1
        case effect:
            return isinstance(effect, ReturnAnswer)


def _stream_call(effect: Effect | None) -> tuple[Any, ...]:
    """Return the reader's method that streams an answer, and its arguments."""
    match effect:
        case Generate(prompts, sampling):
            return "stream", prompts[0], sampling
        case ContinueGeneration(begun):
            return "finish_stream", begun[0]
        case _:
            raise TypeError("only Generate and ContinueGeneration can be streamed")


def _answered(effect: Effect | None, generation: Generation | None) -> Answered:
    if generation is None:
        raise ServiceError(
            "the reader's stream ended without its generation", hint="the last chunk has to hold it"
        )
    return Answered([[generation]] if isinstance(effect, Generate) else [generation])
