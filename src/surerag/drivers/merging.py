"""The merging queue before a local model: what many callers ask at once is asked as one batch.

There is one queue for each model object, shared by every component and every thread that uses it.
There is no background thread: whoever asks may become the leader, gathers what is pending, asks the
model once for all, hands out the answers, and then hands the lead to one of those who still wait. While
the model is busy, further requests pile up and form the next batch. Everybody waits for his own request
alone, so nobody whose answer is there is kept by a call that he has no part in.

A leader waits a few milliseconds for company, unless every program that is being driven against this
model already waits here, or the last wait was in vain: then programs are busy elsewhere, and it waits
again once two requests have met.
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


class _Request:
    """A question and its answer-to-be.

    Attributes:
        effect: What is asked.
        future: The answer.
        awaited: Whether a task of an event loop waits for it, and no thread.
        leads: Whether it is this request's turn to lead; changed under the queue's lock.
        woken: Counts reasons for the thread that waits to look up: an answer, or its turn.
    """

    def __init__(self, effect: Effect, *, awaited: bool) -> None:
        self.effect = effect
        self.future: Future[Any] = Future()
        self.awaited = awaited
        self.leads = False
        self.woken = threading.Semaphore(0)
        self.future.add_done_callback(lambda _: self.woken.release())


class MergingQueue:
    """Gathers requests for one service and asks them together. Thread-safe."""

    def __init__(self, service: object) -> None:
        self._service = weakref.ref(service)
        self._pending: list[_Request] = []
        self._changed = threading.Condition()
        self._led = False
        self._company = True
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
        request = self._put(_Request(effect, awaited=False))
        try:
            while not request.future.done() or request.leads:
                request.woken.acquire()
                if request.leads:
                    self._lead(request)
        except BaseException:
            self._leave(request)
            raise
        return request.future.result()

    async def aask(self, effect: Effect) -> Any:
        """Answer an effect without blocking the event loop.

        Raises:
            Exception: What the service raised for this effect.
        """
        # Tasks that were started together reach this point one after the other: let them.
        await asyncio.sleep(0)
        request = self._put(_Request(effect, awaited=True))
        try:
            return await asyncio.wrap_future(request.future)
        except asyncio.CancelledError:
            request.future.add_done_callback(lambda future: self._abandon(effect, future))
            raise

    def _put(self, request: _Request) -> _Request:
        with self._changed:
            self._pending.append(request)
            if self._led:
                self._company = True
                self._changed.notify()
            else:
                self._led = True
                self._appoint(request)
        return request

    def _appoint(self, request: _Request) -> None:
        """Make it a request's turn to lead; needs the lock."""
        request.leads = True
        if request.awaited:
            self._executor().submit(self._lead, request)
        else:
            request.woken.release()

    def _executor(self) -> ThreadPoolExecutor:
        with self._changed:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="surerag-merging")
            return self._pool

    def _lead(self, request: _Request) -> None:
        """Answer what is pending, once, and hand the lead over."""
        try:
            self._answer(self._gather())
        finally:
            self._hand_over(request)

    def _hand_over(self, request: _Request) -> None:
        with self._changed:
            request.leads = False
            # Whoever was cancelled meanwhile may have nobody left to lead for it.
            self._pending = [waiting for waiting in self._pending if not waiting.future.cancelled()]
            self._led = bool(self._pending)
            if self._pending:
                self._appoint(self._pending[0])

    def _leave(self, request: _Request) -> None:
        """Take a request back whose caller was interrupted."""
        request.future.cancel()
        with self._changed:
            self._pending = [waiting for waiting in self._pending if waiting is not request]
        if request.leads:
            self._hand_over(request)

    def _gather(self) -> list[_Request]:
        deadline = time.monotonic() + merge_settings.window
        with self._changed:
            self._company = self._company or len(self._pending) > 1
            while self._company and len(self._pending) < min(self._programs, merge_settings.largest):
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    self._company = len(self._pending) > 1
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
