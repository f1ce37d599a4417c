"""Run one method's generator and stream its answer.

A streaming driver runs the generator up to the request for the method's answer. The method makes its
decisions before this request, so the stream's ``events`` hold these decisions before any text is read.
"""

from __future__ import annotations

from typing import Any, Generic, Self, TypeVar

from surerag.drivers.running import close, outcome_of
from surerag.drivers.session import Listener, Session
from surerag.effects import ContinueGeneration, Effect, Generate, Program, ReturnAnswer
from surerag.errors import ServiceError
from surerag.messages import Chunk, Event, Generation
from surerag.readers.calls import AWAITING, BLOCKING, Blocking, close_in_loop_when_dropped, run_blocking
from surerag.services import Services

R = TypeVar("R")
T = TypeVar("T")


class _Work(Generic[R]):
    """Runs a method's generator while its answer is streamed.

    The class uses no async generators, because an event loop that ends may close an async generator twice.
    """

    def __init__(
        self, program: Program[R], services: Services, on_event: Listener | None, calls: Blocking
    ) -> None:
        events: list[Event] = []

        def listen(event: Event) -> None:
            events.append(event)
            if on_event is not None:
                on_event(event)

        self.events = events
        self.session = Session(program, services, listen)
        self.session.streams = True
        self._calls = calls
        self._chunks: Any = None
        self._generation: Generation | None = None

    async def start(self) -> None:
        try:
            self.session.start()
            await self._run_to_answer()
        except BaseException:
            await close(self.session, self._calls)
            raise

    async def next(self) -> str | None:
        try:
            piece = await self._next()
        except BaseException:
            await self.close()
            raise
        if piece is None:
            await self.close()
        return piece

    async def _run_to_answer(self) -> Effect[Any] | None:
        session = self.session
        while session.effect is not None and not session.closed:
            if isinstance(session.effect, ReturnAnswer) or _stream_call(session.effect):
                return session.effect
            session.advance(await outcome_of(session, self._calls))
        return None

    async def _next(self) -> str | None:
        session = self.session
        while (effect := await self._run_to_answer()) is not None:
            if isinstance(effect, ReturnAnswer):
                answer = effect.generation
                if self._generation is answer or not answer.text:
                    session.advance(answer)
                    continue
                self._generation = answer
                return answer.text
            if self._chunks is None:
                method, *arguments = _stream_call(effect)
                owner = effect.owner(session.services.reader)
                open_stream = getattr(owner, self._calls.prefix + method)
                self._chunks = session.context.run(open_stream, *arguments)
            chunk: Chunk | None = await self._calls.next(self._chunks, session.context)
            if chunk is None:
                chunks, self._chunks = self._chunks, None
                await self._calls.close(chunks)
                generation, self._generation = self._generation, None
                session.advance(_answered(effect, generation))
                continue
            self._generation = chunk.generation or self._generation
            if chunk.text:
                return chunk.text
        return None

    async def close(self) -> None:
        chunks, self._chunks = self._chunks, None
        try:
            if chunks is not None:
                await self._calls.close(chunks)
        finally:
            if not self.session.closed:
                await close(self.session, self._calls)


class _Streamed(Generic[R]):
    """Base class of streams, with the events so far and, at the end, the result.

    The method's generator holds no reference to the stream. So a dropped stream is freed and closed at once.
    """

    def __init__(self, work: _Work[R]) -> None:
        self.events = work.events
        self._work = work

    @property
    def result(self) -> R:
        """The method's result; raises RuntimeError if the stream was not read to its end."""
        if not self._work.session.done:
            raise RuntimeError("the stream has no result before it is read to its end")
        return self._work.session.result  # type: ignore[return-value]  # a finished session has its result

    @property
    def announced(self) -> Any:
        """The ``detail`` of the latest event that has one, such as the decision that the method made."""
        return next((event.detail for event in reversed(self.events) if event.detail is not None), None)


class AnswerStream(_Streamed[R]):
    """A stream of an answer's pieces, to iterate once; ``result`` is set after the last piece."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        piece = run_blocking(self._work.next())
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
        """Stop the method, and close its connections and generations. Closing again does nothing."""
        run_blocking(self._work.close())


class AsyncAnswerStream(_Streamed[R]):
    """A stream of an answer's pieces for ``async for``; otherwise like :class:`AnswerStream`.

    If a stream is dropped before its end, it is closed in its event loop.
    """

    def __init__(self, work: _Work[R]) -> None:
        super().__init__(work)
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
        """Stop the method, and close its connections and generations. Closing again does nothing."""
        await self._work.close()


def stream(program: Program[R], services: Services, *, on_event: Listener | None = None) -> AnswerStream[R]:
    """Run a method's generator up to the answer, and return a stream of the answer's text.

    The stream's ``events`` hold the method's decisions; its ``result`` is available after the last piece.
    """
    work = _Work(program, services, on_event, BLOCKING)
    run_blocking(work.start())
    return AnswerStream(work)


async def astream(
    program: Program[R], services: Services, *, on_event: Listener | None = None
) -> AsyncAnswerStream[R]:
    """Like :func:`stream`, without blocking the event loop."""
    work = _Work(program, services, on_event, AWAITING)
    await work.start()
    return AsyncAnswerStream(work)


def _stream_call(effect: Effect[Any]) -> tuple[Any, ...]:
    match effect:
        case Generate(prompts, sampling, answer=True) if len(prompts) == 1 and sampling.n == 1:
            return "stream", prompts[0], sampling
        case ContinueGeneration(answer=True):
            return ("chunks",)
        case _:
            return ()


def _answered(effect: Effect[Any], generation: Generation | None) -> Any:
    if generation is None:
        raise ServiceError(
            "the reader's stream ended without a Generation",
            hint="let the reader's last Chunk hold the Generation, the whole answer",
        )
    return [[generation]] if isinstance(effect, Generate) else generation
