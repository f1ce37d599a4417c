"""One program, without blocking the event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, TypeVar

from surerag.drivers.answering import Answered, Failed, Outcome, ask, is_merged, service_of
from surerag.drivers.merging import queue_of
from surerag.drivers.session import Listener, Session
from surerag.effects import CancelGeneration, Effect, Program, StartGeneration
from surerag.readers.threads import cancel_when, start_in_thread
from surerag.services import Services

R = TypeVar("R")


async def arun(program: Program[R], services: Services, *, on_event: Listener | None = None) -> R:
    """Answer a program's effects until it returns; see :func:`surerag.drivers.sync.run`.

    Services with async methods are awaited; others work in threads. Cancelling the task closes the program
    and frees what it holds.
    """
    session = Session(program, services, on_event)
    try:
        session.start()
        while session.effect is not None:
            session.advance(await aoutcome_of(session))
    finally:
        await aclose(session)
    return session.result  # type: ignore[return-value]  # a finished session has its result, None included


async def aclose(session: Session[Any]) -> None:
    """Close a session, and free what it left open, also in a task that is being cancelled."""
    left = session.close()
    if left:
        await asyncio.shield(asyncio.ensure_future(_aask(session, CancelGeneration(left))))


async def aoutcome_of(session: Session[Any]) -> Outcome:
    """Ask for the session's current effect."""
    if session.effect is None:
        raise RuntimeError("the program has ended")
    try:
        return Answered(await _aask(session, session.effect))
    except Exception as error:
        return Failed(error)


async def _aask(session: Session[Any], effect: Effect) -> Any:
    service = service_of(effect, session.services)
    if is_merged(service) and not hasattr(service, "aretrieve"):
        if isinstance(effect, CancelGeneration):
            return ask(effect, service)
        return await queue_of(service).aask(effect)
    native = getattr(service, f"a{effect.METHOD}", None)
    capabilities = getattr(service, "capabilities", None)
    if native is None or (capabilities is not None and not capabilities.native_async):
        return await _ask_in_thread(session, effect, service)

    async def call() -> Any:
        return await native(*effect.arguments)

    answer = await asyncio.get_running_loop().create_task(call(), context=session.context)
    return effect.checked(answer, service)


async def _ask_in_thread(session: Session[Any], effect: Effect, service: Any) -> Any:
    """Ask a service without async methods, in a copy of the session's context.

    The session's own context has to be free for the program to be closed in it, should the task be cancelled
    and the thread be left behind.
    """
    left = threading.Event()

    def call() -> Any:
        with cancel_when(left.is_set):
            return ask(effect, service)

    answer = session.context.copy().run(start_in_thread, call)
    try:
        return await asyncio.wrap_future(answer)
    except asyncio.CancelledError:
        left.set()
        if isinstance(effect, StartGeneration):
            answer.add_done_callback(lambda begun: begun.exception() or service.cancel(begun.result()))
        raise
