"""One program whose answer flows while it is generated.

A streaming driver runs a program up to the effect that the method marks as its answer. By then the
method has decided: what it announced is in ``events``, before the first piece of text is read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import AsyncExitStack, ExitStack, aclosing
from typing import Any, Generic, TypeVar

from surerag.drivers.asynchronous import adriven, aoutcome_of
from surerag.drivers.session import Answered, Listener, Session
from surerag.drivers.sync import driven, outcome_of
from surerag.effects import Finish, Generate, Program
from surerag.errors import ServiceError
from surerag.readers.protocol import close_iterator
from surerag.services import Services, as_reader
from surerag.types import Chunk, Event, Generation

R = TypeVar("R")


class _Streamed(Generic[R]):
    """What sync and async streams share: the events so far, and the result at the end."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._session: Session[R] | None = None

    @property
    def result(self) -> R:
        """The program's result.

        Raises:
            RuntimeError: Before the stream was read to its end.
        """
        if self._session is None or not self._session.done:
            raise RuntimeError("the result is there when the stream has been read to its end")
        return self._session.result  # type: ignore[return-value]  # a finished session has its result

    @property
    def announced(self) -> Any:
        """The object behind the last event that has one: a method's plan for the answer that flows now."""
        return next((event.detail for event in reversed(self.events) if event.detail is not None), None)

    def _listener(self, on_event: Listener | None) -> Listener:
        def listen(event: Event) -> None:
            self.events.append(event)
            if on_event is not None:
                on_event(event)

        return listen


class AnswerStream(_Streamed[R]):
    """Pieces of an answer, then its result. Iterate it once; close it to stop early."""

    def __init__(self, program: Program[R], services: Services, on_event: Listener | None = None) -> None:
        super().__init__()
        self._services = services
        self._stack = ExitStack()
        session = self._stack.enter_context(driven(program, services, self._listener(on_event)))
        self._session = session
        try:
            session.start()
            while session.effect is not None and not _is_answer(session):
                session.advance(outcome_of(session, services))
        except BaseException:
            self._stack.close()
            raise
        self._pieces = self._read(session)

    def __iter__(self) -> Generator[str]:
        return self._pieces

    def __enter__(self) -> AnswerStream[R]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and free what the program holds. Closing again does nothing."""
        self._pieces.close()
        self._stack.close()

    def _read(self, session: Session[R]) -> Generator[str]:
        with self._stack:
            while session.effect is not None:
                if _is_answer(session):
                    generation = yield from self._answer(session)
                    session.advance(_answered(session, generation))
                else:
                    session.advance(outcome_of(session, self._services))

    def _answer(self, session: Session[R]) -> Generator[str, None, Generation | None]:
        reader = as_reader(self._services.reader)
        chunks: Iterator[Chunk]
        match session.effect:
            case Generate(prompts, sampling):
                chunks = session.context.run(reader.stream, prompts[0], sampling)
            case Finish(begun):
                chunks = session.context.run(reader.finish_stream, begun[0])
            case _:
                raise TypeError("only Generate and Finish can be streamed")
        generation = None
        try:
            while (chunk := session.context.run(next, chunks, None)) is not None:
                generation = chunk.generation or generation
                if chunk.text:
                    yield chunk.text
        finally:
            close_iterator(chunks)
        return generation


class AsyncAnswerStream(_Streamed[R]):
    """Like :class:`AnswerStream`; made by :func:`astream`, read with ``async for``."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = AsyncExitStack()
        self._pieces: AsyncGenerator[str]

    async def _open(self, program: Program[R], services: Services, on_event: Listener | None) -> None:
        session = await self._stack.enter_async_context(adriven(program, services, self._listener(on_event)))
        self._session = session
        try:
            session.start()
            while session.effect is not None and not _is_answer(session):
                session.advance(await aoutcome_of(session, services))
        except BaseException:
            await self._stack.aclose()
            raise
        self._pieces = self._read(session, services)

    def __aiter__(self) -> AsyncIterator[str]:
        return self._pieces

    async def __aenter__(self) -> AsyncAnswerStream[R]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop, and free what the program holds. Closing again does nothing."""
        await self._pieces.aclose()
        await self._stack.aclose()

    async def _read(self, session: Session[R], services: Services) -> AsyncGenerator[str]:
        async with self._stack:
            while session.effect is not None:
                if not _is_answer(session):
                    session.advance(await aoutcome_of(session, services))
                    continue
                generation = None
                async with aclosing(_achunks(session, services)) as chunks:
                    async for chunk in chunks:
                        generation = chunk.generation or generation
                        if chunk.text:
                            yield chunk.text
                session.advance(_answered(session, generation))


def _achunks(session: Session[Any], services: Services) -> Any:
    reader = as_reader(services.reader)
    match session.effect:
        case Generate(prompts, sampling):
            return session.context.run(reader.astream, prompts[0], sampling)
        case Finish(begun):
            return session.context.run(reader.afinish_stream, begun[0])
        case _:
            raise TypeError("only Generate and Finish can be streamed")


def _is_answer(session: Session[Any]) -> bool:
    """Whether the current effect is the one answer, which a stream can give."""
    match session.effect:
        case Generate(prompts, sampling, answer=True):
            return len(prompts) == 1 and sampling.n == 1
        case Finish(begun, answer=True):
            return len(begun) == 1
        case _:
            return False


def _answered(session: Session[Any], generation: Generation | None) -> Answered:
    if generation is None:
        raise ServiceError(
            "the reader's stream ended without its generation", hint="let the last chunk carry it"
        )
    return Answered([[generation]] if isinstance(session.effect, Generate) else [generation])


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
    answer: AsyncAnswerStream[R] = AsyncAnswerStream()
    await answer._open(program, services, on_event)
    return answer
