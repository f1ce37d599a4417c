"""One program or many, without blocking the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sized
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from surerag.drivers.answering import ask, is_local, passages_of, service_of
from surerag.drivers.merging import queue_of
from surerag.drivers.progress import Progress, reporting
from surerag.drivers.session import Answered, Failed, Listener, Outcome, Session, check_window
from surerag.drivers.sync import registered
from surerag.effects import (
    CancelGeneration,
    ContinueGeneration,
    Effect,
    Embed,
    Entail,
    Generate,
    Program,
    Retrieve,
    Score,
    StartGeneration,
)
from surerag.errors import StorageError
from surerag.readers.threads import cancel_when, start_in_thread
from surerag.services import Services

R = TypeVar("R")

AHEAD = 4
"""Windows of programs that may be started before the oldest result has been taken."""


async def arun(program: Program[R], services: Services, *, on_event: Listener | None = None) -> R:
    """Answer a program's effects until it returns; see :func:`surerag.drivers.sync.run`.

    Services with native async are awaited; local models and services that only block work in threads.
    Cancelling the task closes the program and frees what it holds.
    """
    async with adriven(program, services, on_event) as session:
        session.start()
        while session.effect is not None:
            session.advance(await aoutcome_of(session, services))
    return session.result  # type: ignore[return-value]  # a finished session has its result, None included


async def arun_many(
    programs: Iterable[Program[R]],
    services: Services,
    *,
    window: int = 64,
    on_event: Listener | None = None,
    progress: Progress = False,
    return_exceptions: bool = False,
) -> list[R]:
    """Run many programs concurrently, at most ``window``; see :func:`surerag.drivers.many.run_many`."""
    total = len(programs) if isinstance(programs, Sized) else None
    results: list[R | Exception] = []
    with reporting(progress, total) as advance:
        async with aclosing(_outcomes(programs, services, window, on_event)) as found:
            async for result in found:
                results.append(result)
                advance()
    return unless_failed(results, return_exceptions=return_exceptions)


async def aiter_many(
    programs: Iterable[Program[R]],
    services: Services,
    *,
    window: int = 64,
    on_event: Listener | None = None,
) -> AsyncGenerator[R]:
    """Yield the programs' results in order, as they come; see :func:`surerag.drivers.many.iter_many`."""
    async with aclosing(_outcomes(programs, services, window, on_event)) as found:
        async for result in found:
            if isinstance(result, Exception):
                raise result
            yield result


async def _outcomes(
    programs: Iterable[Program[R]], services: Services, window: int, on_event: Listener | None
) -> AsyncGenerator[R | Exception]:
    check_window(window)

    async def settle(program: Program[R]) -> R | Exception:
        try:
            return await arun(program, services, on_event=on_event)
        except Exception as error:
            return error

    waiting: deque[asyncio.Task[R | Exception]] = deque()
    try:
        for program in programs:
            waiting.append(asyncio.create_task(settle(program)))
            # The next program is read when there is a place for it, and room for its result.
            while True:
                while waiting and waiting[0].done():
                    yield waiting.popleft().result()
                running = [task for task in waiting if not task.done()]
                if len(running) >= window:
                    await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                elif len(waiting) >= AHEAD * window:
                    await asyncio.wait([waiting[0]])
                else:
                    break
        while waiting:
            yield await waiting[0]
            waiting.popleft()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def unless_failed(results: Iterable[Any], *, return_exceptions: bool) -> list[Any]:
    """Return results, or raise the first exception among them; a full disk is raised in any case."""
    found = list(results)
    for result in found:
        if isinstance(result, StorageError if return_exceptions else BaseException):
            raise result
    return found


class adriven(Generic[R]):  # noqa: N801  # a context manager, used like a function
    """Open a session; however it ends, what its program left open is freed."""

    def __init__(self, program: Program[R], services: Services, on_event: Listener | None) -> None:
        self._session = Session(program, services, on_event)
        self._services = services
        self._announced = registered(services)

    async def __aenter__(self) -> Session[R]:
        self._announced.__enter__()
        return self._session

    async def __aexit__(self, *error: object) -> None:
        try:
            left = self._session.close()
            if left:
                # Shielded: a cancelled task must still close its streams.
                cancel = _aask(self._session, CancelGeneration(left), self._services)
                await asyncio.shield(asyncio.ensure_future(cancel))
        finally:
            self._announced.__exit__(None, None, None)


async def aoutcome_of(session: Session[Any], services: Services) -> Outcome:
    """Ask for the session's current effect."""
    if session.effect is None:
        raise RuntimeError("the program has ended")
    try:
        return Answered(await _aask(session, session.effect, services))
    except Exception as error:
        return Failed(error)


async def _aask(session: Session[Any], effect: Effect, services: Services) -> Any:
    service = service_of(effect, services)
    if is_local(service):
        if isinstance(effect, CancelGeneration):
            return ask(effect, service)
        return await queue_of(service).aask(effect)
    native = _native(effect, service)
    if native is None:
        return await _asked_in_thread(session, effect, service)
    answer = await asyncio.get_running_loop().create_task(native(), context=session.context)
    return passages_of(answer, service) if isinstance(effect, Retrieve) else answer


async def _asked_in_thread(session: Session[Any], effect: Effect, service: Any) -> Any:
    """Ask a service that only blocks, in a copy of the session's context.

    A thread that a cancelled task leaves behind stays in the context that it was given; the session's own
    has to be free, for the program to be closed in it. The thread is told that it was left.
    """
    left = threading.Event()

    def unless_left() -> Any:
        with cancel_when(left.is_set):
            return ask(effect, service)

    answer = session.context.copy().run(start_in_thread, unless_left)
    try:
        return await asyncio.wrap_future(answer)
    except asyncio.CancelledError:
        left.set()
        if isinstance(effect, StartGeneration):
            answer.add_done_callback(lambda begun: begun.exception() or service.cancel(begun.result()))
        raise


def _native(effect: Effect, service: Any) -> Callable[[], Coroutine[Any, Any, Any]] | None:
    """Return the service's own coroutine for an effect, if it has one."""
    capabilities = getattr(service, "capabilities", None)
    if capabilities is not None and not capabilities.native_async:
        return None
    match effect:
        case Generate(prompts, sampling):
            return lambda: service.agenerate(prompts, sampling)
        case StartGeneration(prompts, n_tokens, sampling):
            return lambda: service.abegin(prompts, n_tokens, sampling)
        case ContinueGeneration(begun):
            return lambda: service.afinish(begun)
        case CancelGeneration(begun):
            return lambda: service.acancel(begun)
        case Score(prompts, continuations):
            return lambda: service.ascore(prompts, continuations)
        case Embed(texts, kind) if hasattr(service, "aencode"):
            return lambda: service.aencode(texts, kind)
        case Retrieve(query, k) if hasattr(service, "aretrieve"):
            return lambda: service.aretrieve(query, k)
        case Entail(pairs) if hasattr(service, "aentail"):
            return lambda: service.aentail(pairs)
        case _:
            return None
