"""One program, in the caller's thread."""

from __future__ import annotations

from typing import Any, TypeVar

from surerag.drivers.answering import Answered, Failed, Outcome, ask, is_merged, service_of
from surerag.drivers.merging import queue_of
from surerag.drivers.session import Listener, Session
from surerag.effects import CancelGeneration, Program
from surerag.services import Services

R = TypeVar("R")


def run(program: Program[R], services: Services, *, on_event: Listener | None = None) -> R:
    """Answer a program's effects until it returns.

    The program and calls to servers stay in this thread; a local model works in a thread of its own.

    Args:
        program: A method at work.
        services: Services that answer it.
        on_event: Called with every event that the program emits.

    Returns:
        The program's result.

    Raises:
        Exception: What the program raises; a service's failure is raised inside the program first.
    """
    return drive(Session(program, services, on_event))


def drive(session: Session[R]) -> R:
    """Run a session to its end; however it ends, what it left open is freed."""
    try:
        session.start()
        while session.effect is not None:
            session.advance(outcome_of(session))
    finally:
        close(session)
    return session.result  # type: ignore[return-value]  # a finished session has its result, None included


def close(session: Session[Any]) -> None:
    """Close a session, and free what it left open."""
    left = session.close()
    if left:
        effect = CancelGeneration(left)
        ask(effect, service_of(effect, session.services))


def outcome_of(session: Session[Any]) -> Outcome:
    """Ask for the session's current effect; in its context, unless calls are merged."""
    effect = session.effect
    if effect is None:
        raise RuntimeError("the program has ended")
    try:
        service = service_of(effect, session.services)
        if is_merged(service) and not isinstance(effect, CancelGeneration):
            return Answered(queue_of(service).ask(effect))
        return Answered(session.context.run(ask, effect, service))
    except Exception as error:
        return Failed(error)
