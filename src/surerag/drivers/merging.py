"""The merging queue before a local model: what many callers ask at once is asked as one batch.

There is one queue for each model object, shared by every component and every thread that uses it.
There is no background thread: whoever asks may become the leader, gathers what is pending, asks the
model once for all, hands out the answers, and then hands the lead to one of those who still wait. While
the model is busy, further requests pile up and form the next batch. Everybody waits for his own request
alone, so nobody whose answer is there is kept by a call that he has no part in.

A leader waits a few milliseconds for company, unless every program that is being driven against this
model already waits here, or the last wait was in vain: then programs are busy elsewhere, and it waits
again once two requests have met.

Nobody ever waits for a lock here. Programs that were dropped end whenever the garbage collector finds
them, in the middle of anything that any thread does, and what they then have to do must not wait for
what that thread may hold: so all that is shared is a container whose operations are atomic, or a lock
that is tried and never waited for.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from surerag.drivers.answering import ask_merged
from surerag.drivers.session import Failed
from surerag.effects import Effect, StartGeneration
from surerag.errors import ConfigurationError
from surerag.readers.threads import CancelledWorkError, cancel_when, renew_after_fork


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
        leads: Whether it is this request's turn to lead.
        gone: Whether the thread that waited for it was interrupted.
        unwanted: Whether nobody waits for the answer, thread or task.
        news: Wakes the thread that waits: by an answer, or by its turn.
    """

    def __init__(self, effect: Effect, *, awaited: bool) -> None:
        self.effect = effect
        self.future: Future[Any] = Future()
        self.awaited = awaited
        self.leads = False
        self.gone = False
        self.unwanted = False
        self.news: SimpleQueue[object] = SimpleQueue()
        self._turn = threading.Lock()
        if not awaited:
            self.future.add_done_callback(self.news.put)

    def steps_down(self) -> bool:
        """Whether its turn ends now: true for the first who asks."""
        return self.leads and self._turn.acquire(blocking=False)


class MergingQueue:
    """Gathers requests for one service and asks them together. Thread-safe."""

    def __init__(self, service: object) -> None:
        self._service = weakref.ref(service)
        self._pending: deque[_Request] = deque()
        self._programs: set[object] = set()
        # Held by whose turn it is to lead; tried, never waited for.
        self._leading = threading.Lock()
        self._company = True
        self._waits = False
        self._arrivals: SimpleQueue[None] = SimpleQueue()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="surerag-merging")

    @contextmanager
    def program(self) -> Iterator[None]:
        """Announce a program, so that a leader knows for whom it may be worth waiting."""
        announced = object()
        self._programs.add(announced)
        try:
            yield
        finally:
            self._programs.discard(announced)
            self._tell_the_leader()

    def ask(self, effect: Effect) -> Any:
        """Answer an effect in this thread, together with what else is pending.

        Raises:
            Exception: What the service raised for this effect.
        """
        request = _Request(effect, awaited=False)
        self._put(request)
        try:
            while not request.future.done() or request.leads:
                request.news.get()
                if request.leads:
                    self._lead(request)
        except BaseException:
            request.future.cancel()
            request.gone = request.unwanted = True
            self._hand_over(request)
            raise
        return request.future.result()

    async def aask(self, effect: Effect) -> Any:
        """Answer an effect without blocking the event loop.

        Raises:
            Exception: What the service raised for this effect.
        """
        # Tasks that were started together reach this point one after the other: let them.
        await asyncio.sleep(0)
        request = _Request(effect, awaited=True)
        self._put(request)
        try:
            return await asyncio.wrap_future(request.future)
        except asyncio.CancelledError:
            request.unwanted = True
            request.future.add_done_callback(lambda future: self._abandon(effect, future))
            raise

    def _put(self, request: _Request) -> None:
        self._pending.append(request)
        if self._leading.locked():
            self._company = True
        self._tell_the_leader()
        self._appoint()

    def _tell_the_leader(self) -> None:
        if self._waits:
            self._arrivals.put(None)

    def _appoint(self) -> None:
        """ReturnAnswer the lead to the first who waits, unless somebody has it."""
        while self._pending and self._leading.acquire(blocking=False):
            # Whoever was cancelled may have nobody left to lead for it.
            while self._pending and self._pending[0].future.cancelled():
                self._pending.popleft()
            if not self._pending:
                self._leading.release()
                continue
            request = self._pending[0]
            request.leads = True
            if request.awaited:
                self._pool.submit(self._lead, request)
            else:
                request.news.put(None)
            if request.gone:
                self._hand_over(request)
            return

    def _lead(self, request: _Request) -> None:
        """Answer what is pending, once, and hand the lead over."""
        try:
            self._answer(self._gather())
        finally:
            self._hand_over(request)

    def _hand_over(self, request: _Request) -> None:
        if request.steps_down():
            request.leads = False
            self._leading.release()
            self._appoint()

    def _gather(self) -> list[_Request]:
        self._company = self._company or len(self._pending) > 1
        if self._company:
            self._wait_for_company()
        count = min(len(self._pending), merge_settings.largest)
        batch = [self._pending.popleft() for _ in range(count)]
        return [request for request in batch if request.future.set_running_or_notify_cancel()]

    def _wait_for_company(self) -> None:
        """Wait until every program waits here, for the length of the window at most."""
        deadline = time.monotonic() + merge_settings.window
        self._arrivals, self._waits = SimpleQueue(), True
        while len(self._pending) < min(len(self._programs), merge_settings.largest):
            try:
                self._arrivals.get(timeout=max(deadline - time.monotonic(), 0))
            except Empty:
                self._company = len(self._pending) > 1
                break
        self._waits = False

    def _answer(self, batch: list[_Request]) -> None:
        try:
            # One of them that is wanted keeps the call going for all.
            with cancel_when(lambda: all(request.unwanted for request in batch)):
                outcomes = ask_merged([request.effect for request in batch], self._service())
        except CancelledWorkError as error:
            for request in batch:
                request.future.set_exception(error)
            return
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
            isinstance(effect, StartGeneration)
            and service is not None
            and not future.cancelled()
            and not future.exception()
        ):
            service.cancel(future.result())


_queues: weakref.WeakKeyDictionary[Any, MergingQueue] = weakref.WeakKeyDictionary()


def _forget() -> None:
    global _queues
    _queues = weakref.WeakKeyDictionary()


renew_after_fork(_forget)


def queue_of(service: object) -> MergingQueue:
    """Return the one queue before a local service.

    Raises:
        ConfigurationError: If the service cannot be referred to weakly, or is not hashable.
    """
    try:
        # Of two that are made at once, the first that is put there is the one.
        return _queues.get(service) or _queues.setdefault(service, MergingQueue(service))
    except TypeError as error:
        raise ConfigurationError(
            f"{type(service).__name__} says that it is local, but cannot have a merging queue",
            hint="make it hashable by identity and weakly referable (no __slots__ without __weakref__)",
        ) from error
