"""One program, in the caller's thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from surerag.drivers.answering import ask, is_local, service_of
from surerag.drivers.merging import queue_of
from surerag.drivers.session import Answered, Failed, Listener, Outcome, Session
from surerag.effects import CancelGeneration, Effect, Program
from surerag.services import Services

R = TypeVar("R")


def run(program: Program[R], services: Services, *, on_event: Listener | None = None) -> R:
    """Answer a program's effects until it returns.

    Everything happens in this thread, so tracing and debuggers work; only calls to a local model may
    be made by another thread on behalf of several callers.

    Args:
        program: A method at work.
        services: Who answers it.
        on_event: Called with every event that the program emits.

    Returns:
        The program's result.

    Raises:
        Exception: What the program raises; a service's failure is raised inside the program first.
    """
    with driven(program, services, on_event) as session:
        session.start()
        while session.effect is not None:
            session.advance(outcome_of(session, services))
    return session.result  # type: ignore[return-value]  # a finished session has its result, None included


@contextmanager
def driven(program: Program[R], services: Services, on_event: Listener | None) -> Iterator[Session[R]]:
    """Open a session; however it ends, what its program left open is freed."""
    session = Session(program, services, on_event)
    with registered(services):
        try:
            yield session
        finally:
            left = session.close()
            if left:
                ask(CancelGeneration(left), service_of(CancelGeneration(left), services))


@contextmanager
def registered(services: Services) -> Iterator[None]:
    """Announce one program at the queues of its local services."""
    with ExitStack() as stack:
        asked = (services.reader, services.rewriter, services.encoder, services.entailer)
        # A model that reads and rewrites has one queue.
        for service in {id(service): service for service in asked}.values():
            if service is not None and is_local(service):
                stack.enter_context(queue_of(service).program())
        yield


def outcome_of(session: Session[Any], services: Services) -> Outcome:
    """Ask for the session's current effect; in its context where the service is the user's own."""
    effect = session.effect
    if effect is None:
        raise RuntimeError("the program has ended")
    try:
        return Answered(_answer(session, effect, services))
    except Exception as error:
        return Failed(error)


def _answer(session: Session[Any], effect: Effect, services: Services) -> Any:
    service = service_of(effect, services)
    if is_local(service) and not isinstance(effect, CancelGeneration):
        return queue_of(service).ask(effect)
    return session.context.run(ask, effect, service)
