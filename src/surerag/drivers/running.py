"""One program, in its caller's thread or as a task of an event loop; only the calls of services differ."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

from surerag.drivers.answering import Failed, answer_effect, is_merged, service_of
from surerag.drivers.merging import queue_of
from surerag.drivers.session import Listener, Session
from surerag.effects import CancelGeneration, Effect, Program, StartGeneration
from surerag.messages import Chunk
from surerag.readers.protocol import close_iterator
from surerag.readers.threads import cancel_when, run_blocking, start_in_thread
from surerag.services import Services

R = TypeVar("R")


def run(program: Program[R], services: Services, *, on_event: Listener | None = None) -> R:
    """Answer a program's effects until it returns.

    The program and calls to servers stay in this thread; a local model works in a thread of its own.
    ``on_event`` is called with every event that the program emits.

    Raises:
        Exception: What the program raises; a service's failure is raised inside the program first.
    """
    return run_blocking(drive(Session(program, services, on_event), BLOCKING))


async def arun(program: Program[R], services: Services, *, on_event: Listener | None = None) -> R:
    """Answer a program's effects until it returns; see :func:`run`.

    Services with async methods are awaited; others work in threads. Cancelling the task closes the program
    and frees what it holds.
    """
    return await drive(Session(program, services, on_event), AWAITING)


async def drive(session: Session[R], calls: Blocking) -> R:
    """Run a session to its end; however it ends, what it left open is freed."""
    try:
        session.start()
        while session.effect is not None:
            session.advance(await outcome_of(session, calls))
    finally:
        await close(session, calls)
    return session.result  # type: ignore[return-value]  # a finished session has its result, None included


async def outcome_of(session: Session[Any], calls: Blocking) -> Any:
    """Return the answer to the session's current effect, or :class:`Failed`."""
    if session.effect is None:
        raise RuntimeError("the program has ended")
    try:
        return await calls.answer(session, session.effect)
    except Exception as error:
        return Failed(error)


async def close(session: Session[Any], calls: Blocking) -> None:
    """Close a session, and free what it left open."""
    if left := session.close():
        await calls.cancel(session, CancelGeneration(left))


class Blocking:
    """Calls services in this thread; its coroutines never suspend, so that ``run_blocking`` can run them."""

    async def answer(self, session: Session[Any], effect: Effect[Any]) -> Any:
        """Answer an effect; in the session's context, unless calls are merged."""
        service = service_of(effect, session.services)
        if is_merged(service) and not isinstance(effect, CancelGeneration):
            return queue_of(service).answer(effect)
        return session.context.run(answer_effect, effect, service)

    async def cancel(self, session: Session[Any], effect: CancelGeneration) -> None:
        """Free what a closed session left open."""
        answer_effect(effect, service_of(effect, session.services))

    def open(self, session: Session[Any], method: str, *arguments: Any) -> Any:
        """Return a stream of the reader."""
        return session.context.run(getattr(session.services.reader, method), *arguments)

    async def read(self, session: Session[Any], chunks: Any) -> Chunk | None:
        """Return the next chunk of a stream; None behind the last one."""
        stream: Iterator[Chunk] = chunks
        return session.context.run(next, stream, None)

    async def close_stream(self, chunks: Any) -> None:
        """Close a stream."""
        close_iterator(chunks)


class Awaiting(Blocking):
    """Calls services without blocking the event loop."""

    async def answer(self, session: Session[Any], effect: Effect[Any]) -> Any:
        """Await a service's async method; merged calls in their queue, others in a thread."""
        service = service_of(effect, session.services)
        if is_merged(service) and not hasattr(service, "aretrieve"):
            if isinstance(effect, CancelGeneration):
                return answer_effect(effect, service)
            return await queue_of(service).aanswer(effect)
        native = getattr(service, f"a{effect.VERB}", None)
        capabilities = getattr(service, "capabilities", None)
        if native is None or (capabilities is not None and not capabilities.native_async):
            return await _answer_in_thread(session, effect, service)

        async def call() -> Any:
            return await native(*effect.arguments)

        answer = await asyncio.get_running_loop().create_task(call(), context=session.context)
        return effect.checked(answer, service)

    async def cancel(self, session: Session[Any], effect: CancelGeneration) -> None:
        """Free what a closed session left open, also in a task that is being cancelled."""
        await asyncio.shield(asyncio.ensure_future(self.answer(session, effect)))

    def open(self, session: Session[Any], method: str, *arguments: Any) -> Any:
        """Return an asynchronous stream of the reader."""
        return super().open(session, f"a{method}", *arguments)

    async def read(self, session: Session[Any], chunks: Any) -> Chunk | None:
        """Await the next chunk of a stream."""
        stream: AsyncIterator[Chunk] = chunks
        return await anext(stream, None)

    async def close_stream(self, chunks: Any) -> None:
        """Close a stream, where it can be closed."""
        if hasattr(chunks, "aclose"):
            await chunks.aclose()


BLOCKING, AWAITING = Blocking(), Awaiting()


async def _answer_in_thread(session: Session[Any], effect: Effect[Any], service: Any) -> Any:
    """Ask a service without async methods, in a copy of the session's context.

    The session's own context has to be free for the program to be closed in it, should the task be cancelled
    and the thread be left behind.
    """
    left = threading.Event()

    def call() -> Any:
        with cancel_when(left.is_set):
            return answer_effect(effect, service)

    answer = session.context.copy().run(start_in_thread, call)
    try:
        return await asyncio.wrap_future(answer)
    except asyncio.CancelledError:
        left.set()
        if isinstance(effect, StartGeneration):
            answer.add_done_callback(lambda begun: begun.exception() or service.cancel(begun.result()))
        raise
