"""Run one method's generator: ``run`` blocks the caller's thread, ``arun`` is a coroutine."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any, TypeVar

from surerag.drivers.answering import Failed, answer_effect, close_begun, is_merged, queue_of, service_of
from surerag.drivers.session import Listener, Session
from surerag.effects import CancelGeneration, Effect, Program, StartGeneration
from surerag.readers.calls import AWAITING, BLOCKING, Blocking, cancel_when, run_blocking, start_in_thread
from surerag.readers.failures import described
from surerag.services import Services

R = TypeVar("R")
logger = logging.getLogger("surerag")


def run(program: Program[R], services: Services, *, on_event: Listener | None = None) -> R:
    """Run a method's generator to its end: answer its requests, and return its result.

    The generator and calls to servers run in this thread; a local model runs in a thread of its own.
    ``on_event`` is called with every event that the generator emits.

    Raises:
        Exception: Any exception that the generator raises. A service's failure is first raised inside the
            generator.
    """
    return run_blocking(drive(Session(program, services, on_event), BLOCKING))


async def arun(program: Program[R], services: Services, *, on_event: Listener | None = None) -> R:
    """Run a method's generator to its end without blocking the event loop; see :func:`run`.

    Async methods of services are awaited; services without async methods are called in threads. If the task
    is cancelled, the generator and its unfinished generations are closed.
    """
    return await drive(Session(program, services, on_event), AWAITING)


async def drive(session: Session[R], calls: Blocking) -> R:
    """Run a session to its end, and return its result.

    At the end, or after an error, the session and its unfinished generations are closed.
    """
    try:
        session.start()
        while session.effect is not None:
            session.advance(await outcome_of(session, calls))
    finally:
        await close(session, calls)
    return session.result  # type: ignore[return-value]  # a finished session has its result, None included


async def outcome_of(session: Session[Any], calls: Blocking) -> Any:
    """Return the answer to the session's current request, or :class:`Failed`."""
    if session.effect is None:
        raise RuntimeError("the method's generator has ended, so it has no further request")
    try:
        return await _answer(session, session.effect, calls)
    except Exception as error:
        return Failed(error)


async def close(session: Session[Any], calls: Blocking) -> None:
    """Close a session and its unfinished generations; if a generation cannot be closed, log a warning."""
    unfinished = session.close()

    async def close_all() -> None:
        for begun in unfinished:
            try:
                await _answer(session, CancelGeneration(begun), calls)
            except (Exception, asyncio.CancelledError) as error:
                # An event loop that ends cancels its tasks, so this may be a CancelledError.
                logger.warning("a begun generation could not be closed: %s", described(error))

    if unfinished:
        await calls.shielded(close_all())


async def _answer(session: Session[Any], effect: Effect[Any], calls: Blocking) -> Any:
    service = service_of(effect, session.services)
    merged = is_merged(service) and not (calls.prefix and hasattr(service, "aretrieve"))
    if isinstance(effect, CancelGeneration) and (merged or not calls.prefix):
        # The session's context is not entered, because another thread may still be in this context.
        return answer_effect(effect, service)
    if merged:
        return await calls.call(queue_of(service), "answer", effect)
    if not calls.prefix:
        return session.context.run(answer_effect, effect, service)
    native = getattr(effect.owner(service), f"a{effect.VERB}", None)
    capabilities = getattr(service, "capabilities", None)
    if native is None or (capabilities is not None and not capabilities.native_async):
        return await _answer_in_thread(session, effect, service)

    async def call() -> Any:
        return await native(*effect.arguments)

    answer = await asyncio.get_running_loop().create_task(call(), context=session.context)
    return effect.checked(answer, service)


async def _answer_in_thread(session: Session[Any], effect: Effect[Any], service: Any) -> Any:
    """Call a service that has no async methods: in a thread, and in a copy of the session's context.

    The thread needs a copy, because two threads cannot enter one context at the same time: if the task is
    cancelled while the thread still runs, the session's generator is closed in the session's own context.
    """
    cancelled = threading.Event()

    def call() -> Any:
        with cancel_when(cancelled.is_set):
            return answer_effect(effect, service)

    answer = session.context.copy().run(start_in_thread, call)
    try:
        return await asyncio.wrap_future(answer)
    except asyncio.CancelledError:
        cancelled.set()
        if isinstance(effect, StartGeneration):
            answer.add_done_callback(close_begun)
        raise
