"""The merging queue before a local model: what many callers ask at once is asked as one batch.

There is one queue for each model object, shared by every component and every thread that uses it.
There is no background thread: whoever asks may become the leader, gathers what is pending, asks the
model once for all, and hands out the answers. While the model is busy, further requests pile up and
form the next batch. A leader waits a few milliseconds for company, unless every program that is
being driven against this model already waits here.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from surerag.drivers.answering import ask_merged
from surerag.drivers.session import Failed
from surerag.effects import Begin, Effect
from surerag.errors import ConfigurationError


@dataclass(slots=True)
class MergeSettings:
    """How the queues behave.

    Attributes:
        window: Seconds that a leader waits for further requests at most.
        largest: Requests to gather into one batch at most; the model's own token budget cuts it further.
    """

    window: float = 0.005
    largest: int = 256


merge_settings = MergeSettings()
"""Settings of every queue in this process; change its attributes."""


@dataclass(frozen=True, slots=True)
class _Request:
    effect: Effect
    future: Future[Any]


class MergingQueue:
    """Gathers requests for one service and asks them together. Thread-safe."""

    def __init__(self, service: object) -> None:
        self._service = weakref.ref(service)
        self._pending: list[_Request] = []
        self._changed = threading.Condition()
        self._leading = threading.Lock()
        self._programs = 0
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def program(self) -> Iterator[None]:
        """Announce a program, so that a leader knows for whom it may be worth waiting."""
        with self._changed:
            self._programs += 1
        try:
            yield
        finally:
            with self._changed:
                self._programs -= 1
                self._changed.notify_all()

    def ask(self, effect: Effect) -> Any:
        """Answer an effect in this thread, together with what else is pending.

        Raises:
            Exception: What the service raised for this effect.
        """
        request = self._put(effect)
        self._lead_until(request.future)
        return request.future.result()

    async def aask(self, effect: Effect) -> Any:
        """Answer an effect without blocking the event loop.

        Raises:
            Exception: What the service raised for this effect.
        """
        # Tasks that were started together reach this point one after the other: let them.
        await asyncio.sleep(0)
        request = self._put(effect)
        self._executor().submit(self._lead_until, request.future)
        try:
            return await asyncio.wrap_future(request.future)
        except asyncio.CancelledError:
            request.future.add_done_callback(lambda future: self._abandon(effect, future))
            raise

    def _put(self, effect: Effect) -> _Request:
        request = _Request(effect, Future())
        with self._changed:
            self._pending.append(request)
            self._changed.notify_all()
        return request

    def _executor(self) -> ThreadPoolExecutor:
        with self._changed:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="surerag-merging")
            return self._pool

    def _lead_until(self, mine: Future[Any]) -> None:
        while not mine.done():
            with self._leading:
                if mine.done():
                    return
                self._answer(self._gather())

    def _gather(self) -> list[_Request]:
        deadline = time.monotonic() + merge_settings.window
        with self._changed:
            while len(self._pending) < min(self._programs, merge_settings.largest):
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            batch = self._pending[: merge_settings.largest]
            del self._pending[: len(batch)]
        return [request for request in batch if request.future.set_running_or_notify_cancel()]

    def _answer(self, batch: list[_Request]) -> None:
        try:
            outcomes = ask_merged([request.effect for request in batch], self._service())
        except BaseException as error:
            # An interrupt in the leader's thread must not leave the others waiting for ever.
            for request in batch:
                request.future.set_exception(error)
            raise
        for request, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Failed):
                request.future.set_exception(outcome.error)
            else:
                request.future.set_result(outcome.value)

    def _abandon(self, effect: Effect, future: Future[Any]) -> None:
        """Free what was begun for a caller that has gone."""
        service: Any = self._service()
        if (
            isinstance(effect, Begin)
            and service is not None
            and not future.cancelled()
            and not future.exception()
        ):
            service.cancel(future.result())


_queues: weakref.WeakKeyDictionary[Any, MergingQueue] = weakref.WeakKeyDictionary()
_queues_lock = threading.Lock()


def queue_of(service: object) -> MergingQueue:
    """Return the one queue before a local service.

    Raises:
        ConfigurationError: If the service cannot be referred to weakly, or is not hashable.
    """
    with _queues_lock:
        try:
            return _queues.setdefault(service, MergingQueue(service))
        except TypeError as error:
            raise ConfigurationError(
                f"{type(service).__name__} says that it is local, but cannot have a merging queue",
                hint="make it hashable by identity and weakly referable (no __slots__ without __weakref__)",
            ) from error
