"""Runs many methods' generators at once; a local model's queue merges requests of all generators."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

from surerag.drivers.answering import queues_of
from surerag.drivers.running import arun, drive
from surerag.drivers.session import Listener, Session
from surerag.effects import Program
from surerag.errors import check_at_least
from surerag.progress import Progress, reporting
from surerag.readers.calls import BLOCKING, run_blocking
from surerag.services import Services

R = TypeVar("R")
Work = TypeVar("Work", Future[Any], asyncio.Task[Any])

_WINDOWS_AHEAD = 4
"""Maximum number of methods that start before the oldest result is taken, as a multiple of ``window``."""


def run_many(programs: Iterable[Program[R]], services: Services, **options: Any) -> list[R]:
    """Return the results of methods' generators in order; options and errors are those of ``iter_many``."""
    return list(iter_many(programs, services, **options))


async def arun_many(programs: Iterable[Program[R]], services: Services, **options: Any) -> list[R]:
    """Return the results of methods' generators without blocking the event loop; see ``iter_many``."""
    return [result async for result in aiter_many(programs, services, **options)]


def iter_many(
    programs: Iterable[Program[R]],
    services: Services,
    *,
    window: int = 64,
    on_event: Listener | None = None,
    progress: Progress = False,
    return_exceptions: bool = False,
) -> Iterator[R]:
    """Yield the result of each method's generator, in order, when all earlier results have been yielded.

    At most ``window`` methods run at the same time. Because of the order, a slow method delays the results of
    later methods: at most 4 × ``window`` methods may have started without their results being taken. Once the
    iterator is closed, no further method starts.

    ``on_event`` is called in the methods' threads. ``progress=True`` shows a progress bar on a terminal; a
    callable is called with the number of finished methods and their total (None if unknown). With
    ``return_exceptions``, the exception of a failed method is yielded in place of its result.

    Raises:
        ConfigurationError: If ``window`` is less than 1.
        Exception: The exception of the first method that failed, in place of its result. No further method
            is started.
    """
    check_at_least(1, window=window)

    def outcome(session: Session[R]) -> R | Exception:
        try:
            return run_blocking(drive(session, BLOCKING))
        except Exception as error:
            return error

    started: deque[Future[R | Exception]] = deque()
    reading = _Reading(services)
    with (
        reporting(progress, _count(programs)) as advance,
        ThreadPoolExecutor(window, thread_name_prefix="surerag-run-many") as pool,
    ):
        try:
            for program in programs:
                # The session is created before its thread runs, so that the queues already count the method.
                session = Session(program, services, on_event)
                started.append(pool.submit(outcome, session))
                started[-1].add_done_callback(partial(_close_if_cancelled, session))
                while True:
                    while started and started[0].done():
                        yield _take(started, advance, return_exceptions)
                    if not (blocking := _held_back_by(started, window)):
                        break
                    reading.pause()
                    wait(blocking, return_when=FIRST_COMPLETED)
                    reading.resume()
            reading.pause()
            while started:
                yield _take(started, advance, return_exceptions)
        finally:
            reading.pause()
            for future in started:
                future.cancel()


async def aiter_many(
    programs: Iterable[Program[R]],
    services: Services,
    *,
    window: int = 64,
    on_event: Listener | None = None,
    progress: Progress = False,
    return_exceptions: bool = False,
) -> AsyncGenerator[R]:
    """Yield the results of methods' generators without blocking the event loop; see :func:`iter_many`."""
    check_at_least(1, window=window)

    async def outcome(program: Program[R]) -> R | Exception:
        try:
            return await arun(program, services, on_event=on_event)
        except Exception as error:
            return error

    started: deque[asyncio.Task[R | Exception]] = deque()
    with reporting(progress, _count(programs)) as advance:
        try:
            for program in programs:
                started.append(asyncio.create_task(outcome(program)))
                while True:
                    while started and started[0].done():
                        yield _take(started, advance, return_exceptions)
                    if not (blocking := _held_back_by(started, window)):
                        break
                    await asyncio.wait(blocking, return_when=asyncio.FIRST_COMPLETED)
            while started:
                await started[0]
                yield _take(started, advance, return_exceptions)
        finally:
            for task in started:
                task.cancel()
            await asyncio.gather(*started, return_exceptions=True)


def _close_if_cancelled(session: Session[R], future: Future[R | Exception]) -> None:
    if future.cancelled():
        session.close()


class _Reading:
    """Makes the queues of local models wait while the caller's iterable produces the next method.

    So the first request of this method can join the batch that is being gathered.
    """

    def __init__(self, services: Services) -> None:
        self._queues = queues_of(services)
        self.resume()

    def pause(self) -> None:
        for queue in self._queues:
            queue.leave(self)
            queue.notify()

    def resume(self) -> None:
        for queue in self._queues:
            queue.enter(self)


def _count(programs: Iterable[object]) -> int | None:
    return len(programs) if isinstance(programs, Sized) else None


def _held_back_by(started: Sequence[Work], window: int) -> list[Work]:
    running = [program for program in started if not program.done()]
    if len(running) >= window:
        return running
    return [started[0]] if len(started) >= _WINDOWS_AHEAD * window else []


def _take(started: deque[Work], advance: Callable[[], object], return_exceptions: bool) -> Any:
    result = started.popleft().result()
    advance()
    if isinstance(result, Exception) and not return_exceptions:
        raise result
    return result
