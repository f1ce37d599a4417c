"""One program whose answer is streamed.

A streaming driver runs a program up to the effect that the method marks as its answer. By then the method
has decided: its events are in ``events`` before the first piece of text is read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any, Generic, Self, TypeVar

from surerag.drivers.answering import Answered
from surerag.drivers.asynchronous import aclose, aoutcome_of
from surerag.drivers.session import Listener, Session
from surerag.drivers.sync import close, outcome_of
from surerag.effects import ContinueGeneration, Generate, Program, ReturnAnswer
from surerag.errors import ServiceError
from surerag.messages import Chunk, Event, Generation
from surerag.readers.protocol import close_iterator
from surerag.readers.threads import close_in_loop_when_dropped
from surerag.services import Services, as_reader

R = TypeVar("R")


_ASK, _READ = object(), object()
"""Steps of a stream: ask for the current effect, and read the next chunk of the answer."""


class _Steps(Generic[R]):
    """The steps of a streamed program, for a synchronous or asynchronous stream to take.

    Attributes:
        session: The program.
        next: The step to take: ``_ASK``, answered by an outcome; ``_READ``, answered by a chunk, or None at
            the end of the answer; or a piece of text for the caller. None where the program has ended.
    """

    def __init__(self, session: Session[R]) -> None:
        self.session = session
        self._steps = self._generate()
        self.next: object = next(self._steps, None)

    def advance(self, value: object = None) -> None:
        """Answer the step."""
        try:
            self.next = self._steps.send(value)
        except StopIteration:
            self.next = None

    @property
    def done(self) -> bool:
        """Whether the program has ended, or was closed."""
        return self.next is None or self.session.closed

    def _generate(self) -> Generator[object, Any, None]:
        session = self.session
        session.streams = True
        session.start()
        while session.effect is not None:
            if not _is_answer(session):
                session.advance((yield _ASK))
                continue
            generation = None
            while (chunk := (yield _READ)) is not None:
                generation = chunk.generation or generation
                if chunk.text:
                    yield chunk.text
            session.advance(_answered(session, generation))


class _Streamed(Generic[R]):
    """Events so far, and the result at the end; nothing behind a stream refers to it."""

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
        """Detail of the last event that has one: what a method settled before its answer."""
        return next((event.detail for event in reversed(self.events) if event.detail is not None), None)


class AnswerStream(_Streamed[R]):
    """Pieces of an answer, then its result. Iterate it once; close it to stop early."""

    def __init__(self, program: Program[R], services: Services, on_event: Listener | None = None) -> None:
        events: list[Event] = []
        session = Session(program, services, _recording(events, on_event))
        super().__init__(events, session)
        self._chunks: Iterator[Chunk] | None = None
        try:
            self._steps = _Steps(session)
            while self._steps.next is _ASK:
                self._steps.advance(outcome_of(session))
        except BaseException:
            close(session)
            raise

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        try:
            while not self._steps.done:
                step = self._steps.next
                if isinstance(step, str):
                    self._steps.advance()
                    return step
                self._steps.advance(outcome_of(self._session) if step is _ASK else self._read())
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and free what the program left open. Closing again does nothing."""
        chunks, self._chunks = self._chunks, None
        if chunks is not None:
            close_iterator(chunks)
        if not self._session.closed:
            close(self._session)

    def __del__(self) -> None:
        if hasattr(self, "_session"):
            self.close()

    def _read(self) -> Chunk | None:
        context = self._session.context
        if self._chunks is None:
            self._chunks = context.run(_chunks, self._session)
        chunk = context.run(next, self._chunks, None)
        if chunk is None:
            close_iterator(self._chunks)
            self._chunks = None
        return chunk


class AsyncAnswerStream(_Streamed[R]):
    """Like :class:`AnswerStream`; made by :func:`astream`, read with ``async for``.

    It is closed in its event loop when it is dropped.
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
        """Stop, and free what the program left open. Closing again does nothing."""
        await self._work.aclose()


class _Work(Generic[R]):
    """The program behind an :class:`AsyncAnswerStream`.

    It is no asynchronous generator: of several within each other, an event loop that ends closes all at
    once, the inner ones twice.
    """

    def __init__(self, session: Session[R]) -> None:
        self.session = session
        self._chunks: AsyncIterator[Chunk] | None = None

    async def start(self) -> None:
        """Run up to the answer."""
        try:
            self._steps = _Steps(self.session)
            while self._steps.next is _ASK:
                self._steps.advance(await aoutcome_of(self.session))
        except BaseException:
            await aclose(self.session)
            raise

    async def next(self) -> str | None:
        """Return the next piece of text; None where the program ends, or was closed."""
        while not self._steps.done:
            step = self._steps.next
            if isinstance(step, str):
                self._steps.advance()
                return step
            self._steps.advance(await aoutcome_of(self.session) if step is _ASK else await self._read())
        return None

    async def aclose(self) -> None:
        chunks, self._chunks = self._chunks, None
        try:
            if chunks is not None:
                await _aclose_iterator(chunks)
        finally:
            if not self.session.closed:
                await aclose(self.session)

    async def _read(self) -> Chunk | None:
        if self._chunks is None:
            self._chunks = _achunks(self.session)
        chunk = await anext(self._chunks, None)
        if chunk is None:
            await _aclose_iterator(self._chunks)
            self._chunks = None
        return chunk


def stream(program: Program[R], services: Services, *, on_event: Listener | None = None) -> AnswerStream[R]:
    """Run a program up to its answer, and return that answer as a stream.

    Returns:
        An iterable of text pieces; ``events`` holds the decisions, ``result`` is there at the end.
    """
    return AnswerStream(program, services, on_event)


async def astream(
    program: Program[R], services: Services, *, on_event: Listener | None = None
) -> AsyncAnswerStream[R]:
    """Like :func:`stream`, without blocking the event loop."""
    events: list[Event] = []
    work = _Work(Session(program, services, _recording(events, on_event)))
    await work.start()
    return AsyncAnswerStream(work, events)


def _recording(events: list[Event], on_event: Listener | None) -> Listener:
    def listen(event: Event) -> None:
        events.append(event)
        if on_event is not None:
            on_event(event)

    return listen


def _chunks(session: Session[Any]) -> Iterator[Chunk]:
    match session.effect:
        case Generate(prompts, sampling):
            return as_reader(session.services.reader).stream(prompts[0], sampling)
        case ContinueGeneration(begun):
            return as_reader(session.services.reader).finish_stream(begun[0])
        case ReturnAnswer(generation):
            return iter([Chunk(generation.text, generation)])
        case _:
            raise TypeError("only Generate, ContinueGeneration and ReturnAnswer can be streamed")


def _achunks(session: Session[Any]) -> AsyncIterator[Chunk]:
    match session.effect:
        case Generate(prompts, sampling):
            return session.context.run(as_reader(session.services.reader).astream, prompts[0], sampling)
        case ContinueGeneration(begun):
            return session.context.run(as_reader(session.services.reader).afinish_stream, begun[0])
        case ReturnAnswer(generation):
            return _one_chunk(generation)
        case _:
            raise TypeError("only Generate, ContinueGeneration and ReturnAnswer can be streamed")


async def _one_chunk(generation: Generation) -> AsyncIterator[Chunk]:
    yield Chunk(generation.text, generation)


async def _aclose_iterator(chunks: AsyncIterator[Chunk]) -> None:
    aclose = getattr(chunks, "aclose", None)
    if aclose is not None:
        await aclose()


def _is_answer(session: Session[Any]) -> bool:
    """Whether the current effect is the answer, and one that can be streamed."""
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
            "the reader's stream ended without its generation", hint="the last chunk has to hold it"
        )
    match session.effect:
        case Generate():
            return Answered([[generation]])
        case ReturnAnswer():
            return Answered(generation)
        case _:
            return Answered([generation])
