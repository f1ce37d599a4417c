"""One program or many, without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sized
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from surerag.drivers.answering import ask, is_local, service_of
from surerag.drivers.merging import queue_of
from surerag.drivers.progress import Progress, reporting
from surerag.drivers.session import Answered, Failed, Listener, Outcome, Session, check_at_once
from surerag.drivers.sync import registered
from surerag.effects import Begin, Cancel, Effect, Embed, Entail, Finish, Generate, Program, Retrieve, Score
from surerag.services import Services

R = TypeVar("R")


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
    at_once: int = 64,
    on_event: Listener | None = None,
    progress: Progress = False,
    return_exceptions: bool = False,
) -> list[R]:
    """Run many programs concurrently, at most ``at_once``; see :func:`surerag.drivers.many.run_many`."""
    check_at_once(at_once)
    total = len(programs) if isinstance(programs, Sized) else None
    places = enumerate(programs)
    results: dict[int, R | BaseException] = {}

    with reporting(progress, total) as advance:

        async def worker() -> None:
            for place, program in places:
                try:
                    results[place] = await arun(program, services, on_event=on_event)
                except Exception as error:
                    results[place] = error
                advance()

        await asyncio.gather(*(worker() for _ in range(at_once)))
    return unless_failed((results[place] for place in sorted(results)), return_exceptions=return_exceptions)


def unless_failed(results: Iterable[Any], *, return_exceptions: bool) -> list[Any]:
    """Return results, or raise the first exception among them."""
    found = list(results)
    if not return_exceptions:
        for result in found:
            if isinstance(result, BaseException):
                raise result
    return found


@asynccontextmanager
async def adriven(
    program: Program[R], services: Services, on_event: Listener | None
) -> AsyncIterator[Session[R]]:
    """Open a session; however it ends, what its program left open is freed."""
    session = Session(program, on_event)
    with registered(services):
        try:
            yield session
        finally:
            left = session.close()
            if left:
                # Shielded: a cancelled task must still close its streams.
                await asyncio.shield(asyncio.ensure_future(_aask(session, Cancel(left), services)))


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
        if isinstance(effect, Cancel):
            return ask(effect, service)
        return await queue_of(service).aask(effect)
    native = _native(effect, service)
    if native is None:
        return await asyncio.get_running_loop().run_in_executor(
            None, session.context.run, ask, effect, service
        )
    answer = await asyncio.get_running_loop().create_task(native(), context=session.context)
    return list(answer) if isinstance(effect, Retrieve) else answer


def _native(effect: Effect, service: Any) -> Callable[[], Coroutine[Any, Any, Any]] | None:
    """Return the service's own coroutine for an effect, if it has one."""
    capabilities = getattr(service, "capabilities", None)
    if capabilities is not None and not capabilities.native_async:
        return None
    match effect:
        case Generate(prompts, sampling):
            return lambda: service.agenerate(prompts, sampling)
        case Begin(prompts, n_tokens, sampling):
            return lambda: service.abegin(prompts, n_tokens, sampling)
        case Finish(begun):
            return lambda: service.afinish(begun)
        case Cancel(begun):
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
