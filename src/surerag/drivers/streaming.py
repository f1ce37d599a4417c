"""One program whose answer flows while it is generated.

A streaming driver runs a program up to the effect that the method marks as its answer. By then the
method has decided: what it announced is in ``events``, before the first piece of text is read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Generic, Self, TypeVar

from surerag.drivers.asynchronous import adriven, aoutcome_of
from surerag.drivers.session import Answered, Listener, Session
from surerag.drivers.sync import driven, outcome_of
from surerag.effects import ContinueGeneration, Generate, Program, ReturnAnswer
from surerag.errors import ServiceError
from surerag.messages import Chunk, Event, Generation
from surerag.readers.protocol import close_iterator
from surerag.readers.threads import close_in_loop_when_dropped
from surerag.services import Services, as_reader

R = TypeVar("R")


class _Streamed(Generic[R]):
    """What sync and async streams share: the events so far, and the result at the end.

    Nothing behind a stream refers to it, so that one that is dropped ends at once.
    """

    def __init__(self, events: list[Event], session: Session[R]) -> None:
        self.events = events
        self._session = session

    @property
    def result(self) -> R:
        """The program's result.

        Raises:
            RuntimeError: Before the stream was read to its end.
        """
        if not self._session.done:
            raise RuntimeError("the result is there when the stream has been read to its end")
        return self._session.result  # type: ignore[return-value]  # a finished session has its result

    @property
    def announced(self) -> Any:
        """The object behind the last event that has one: a method's plan for the answer that flows now."""
        return next((event.detail for event in reversed(self.events) if event.detail is not None), None)


def _noting(events: list[Event], on_event: Listener | None) -> Listener:
    def listen(event: Event) -> None:
        events.append(event)
        if on_event is not None:
            on_event(event)

    return listen


class AnswerStream(_Streamed[R]):
    """Pieces of an answer, then its result. Iterate it once; close it to stop early."""

    def __init__(self, program: Program[R], services: Services, on_event: Listener | None = None) -> None:
        events: list[Event] = []
        self._stack = ExitStack()
        session = self._stack.enter_context(driven(program, services, _noting(events, on_event)))
        super().__init__(events, session)
        self._services = services
        self._chunks: Iterator[Chunk] | None = None
        self._generation: Generation | None = None
        session.streams = True
        try:
            session.start()
            while session.effect is not None and not _is_answer(session):
                session.advance(outcome_of(session, services))
        except BaseException:
            self._stack.close()
            raise

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        try:
            piece = self._next()
        except BaseException:
            self.close()
            raise
        if piece is None:
            self.close()
            raise StopIteration
        return piece

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and free what the program holds. Closing again does nothing."""
        chunks, self._chunks = self._chunks, None
        if chunks is not None:
            close_iterator(chunks)
        self._stack.close()

    def _next(self) -> str | None:
        """Run on to the next piece of text; None where the program ends, or was ended."""
        session = self._session
        while session.effect is not None and not session.closed:
            if not _is_answer(session):
                session.advance(outcome_of(session, self._services))
                continue
            if self._chunks is None:
                self._chunks = session.context.run(_chunks, session, self._services)
            chunk = session.context.run(next, self._chunks, None)
            if chunk is None:
                close_iterator(self._chunks)
                self._chunks = None
                session.advance(_answered(session, self._generation))
                continue
            self._generation = chunk.generation or self._generation
            if chunk.text:
                return chunk.text
        return None


class AsyncAnswerStream(_Streamed[R]):
    """Like :class:`AnswerStream`; made by :func:`astream`, read with ``async for``.

    It is closed in its event loop when it is dropped. What does the work is no asynchronous generator:
    of several within each other, an event loop that ends closes all at once, the inner ones twice.
    """

    def __init__(self, work: _Work[R], events: list[Event]) -> None:
        super().__init__(events, work.session)
        self._work = work
        close_in_loop_when_dropped(self, work.aclose)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        try:
            piece = await self._work.next()
        except BaseException:
            await self.aclose()
            raise
        if piece is None:
            await self.aclose()
            raise StopAsyncIteration
        return piece

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop, and free what the program holds. Closing again does nothing."""
        await self._work.aclose()


class _Work(Generic[R]):
    """A program at work for an :class:`AsyncAnswerStream`."""

    def __init__(self, session: Session[R], services: Services, stack: AsyncExitStack) -> None:
        self.session = session
        self._services = services
        self._stack = stack
        self._chunks: AsyncIterator[Chunk] | None = None
        self._generation: Generation | None = None

    async def start(self) -> None:
        """Run up to the answer."""
        session = self.session
        session.streams = True
        try:
            session.start()
            while session.effect is not None and not _is_answer(session):
                session.advance(await aoutcome_of(session, self._services))
        except BaseException:
            await self._stack.aclose()
            raise

    async def next(self) -> str | None:
        """Run on to the next piece of text; None where the program ends, or was ended."""
        session = self.session
        while session.effect is not None and not session.closed:
            if not _is_answer(session):
                session.advance(await aoutcome_of(session, self._services))
                continue
            if self._chunks is None:
                self._chunks = _achunks(session, self._services)
            chunk = await anext(self._chunks, None)
            if chunk is None:
                await _aclose_iterator(self._chunks)
                self._chunks = None
                session.advance(_answered(session, self._generation))
                continue
            self._generation = chunk.generation or self._generation
            if chunk.text:
                return chunk.text
        return None

    async def aclose(self) -> None:
        chunks, self._chunks = self._chunks, None
        try:
            if chunks is not None:
                await _aclose_iterator(chunks)
        finally:
            await self._stack.aclose()


async def _aclose_iterator(chunks: AsyncIterator[Chunk]) -> None:
    aclose = getattr(chunks, "aclose", None)
    if aclose is not None:
        await aclose()


def _chunks(session: Session[Any], services: Services) -> Iterator[Chunk]:
    reader = as_reader(services.reader)
    match session.effect:
        case Generate(prompts, sampling):
            return reader.stream(prompts[0], sampling)
        case ContinueGeneration(begun):
            return reader.finish_stream(begun[0])
        case ReturnAnswer(generation):
            return iter([Chunk(generation.text, generation)])
        case _:
            raise TypeError("only Generate, ContinueGeneration and ReturnAnswer can be streamed")


def _achunks(session: Session[Any], services: Services) -> AsyncIterator[Chunk]:
    reader = as_reader(services.reader)
    match session.effect:
        case Generate(prompts, sampling):
            return session.context.run(reader.astream, prompts[0], sampling)
        case ContinueGeneration(begun):
            return session.context.run(reader.afinish_stream, begun[0])
        case ReturnAnswer(generation):
            return _whole(generation)
        case _:
            raise TypeError("only Generate, ContinueGeneration and ReturnAnswer can be streamed")


async def _whole(generation: Generation) -> AsyncIterator[Chunk]:
    yield Chunk(generation.text, generation)


def _is_answer(session: Session[Any]) -> bool:
    """Whether the current effect is the one answer, which a stream can give."""
    match session.effect:
        case Generate(prompts, sampling, answer=True):
            return len(prompts) == 1 and sampling.n == 1
        case ContinueGeneration(begun, answer=True):
            return len(begun) == 1
        case ReturnAnswer():
            return True
        case _:
            return False


def _answered(session: Session[Any], generation: Generation | None) -> Answered:
    if generation is None:
        raise ServiceError(
            "the reader's stream ended without its generation", hint="let the last chunk carry it"
        )
    match session.effect:
        case Generate():
            return Answered([[generation]])
        case ReturnAnswer():
            return Answered(generation)
        case _:
            return Answered([generation])


def stream(program: Program[R], services: Services, *, on_event: Listener | None = None) -> AnswerStream[R]:
    """Run a program up to its answer, and return that answer as a stream.

    Returns:
        An iterable of text pieces; ``events`` tells what was decided, ``result`` is there at the end.
    """
    return AnswerStream(program, services, on_event)


async def astream(
    program: Program[R], services: Services, *, on_event: Listener | None = None
) -> AsyncAnswerStream[R]:
    """Like :func:`stream`, without blocking the event loop."""
    events: list[Event] = []
    stack = AsyncExitStack()
    session = await stack.enter_async_context(adriven(program, services, _noting(events, on_event)))
    work = _Work(session, services, stack)
    await work.start()
    return AsyncAnswerStream(work, events)
