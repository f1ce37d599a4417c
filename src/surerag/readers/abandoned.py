"""Work that nobody waits for any more, and how whoever does it comes to know.

A model that generates in a worker thread cannot be interrupted. It asks here before every step, and stops
where its caller has gone: a cancelled task, or a thread that was told to stop::

    stop = threading.Event()
    with abandoned_when(stop.is_set):
        reader.generate(prompts, sampling)  # raises AbandonedError within a step after stop.set()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class AbandonedError(BaseException):
    """The work was given up, since nobody waits for its result.

    No failure of the service, so that nothing is tried again or blamed for it.
    """


def _never() -> bool:
    return False


_abandoned: ContextVar[Callable[[], bool]] = ContextVar("surerag_abandoned", default=_never)


@contextmanager
def abandoned_when(told: Callable[[], bool]) -> Iterator[None]:
    """Have work in this context stop as soon as ``told`` returns True, or what stood around it does."""
    around = _abandoned.get()
    token = _abandoned.set(lambda: told() or around())
    try:
        yield
    finally:
        _abandoned.reset(token)


def stop_if_abandoned() -> None:
    """Stop here, if nobody waits any more.

    Raises:
        AbandonedError: If so.
    """
    if _abandoned.get()():
        raise AbandonedError("nobody waits for this any more")
