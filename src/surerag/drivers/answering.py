"""Answer effects (a method's requests to models and other services), one by one or merged into batches.

Each local model object has one queue, which all components, threads and event loops share. The queue's worker
thread gathers the pending requests, calls the model once for all of them, and returns each caller's answer.
While the model is busy, further requests form the next batch. So only one thread uses a model at a time. The
thread ends when it has been idle for a while.

Before a call, the worker waits for further requests until every running method that uses this model is
waiting, or until no request has come for a short time: 5 ms, or a tenth of the last call's time if this is
longer. If such a wait ends with only one pending request, the worker no longer waits before calls. It waits
again as soon as two requests are pending at the same time.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from surerag.effects import Effect, StartGeneration
from surerag.errors import ConfigurationError, MissingServiceError, kind_of
from surerag.readers.calls import cancel_when, model_call, renew_after_fork
from surerag.services import Services


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed request; the exception is raised in the method's generator, at the request's ``yield``."""

    error: BaseException


def service_of(effect: Effect[Any], services: Services) -> Any:
    """Return the service that answers a method's request, or raise MissingServiceError."""
    name = effect.service_in(services)
    service = getattr(services, name)
    if service is None:
        raise MissingServiceError(
            f"a method yielded {type(effect).__name__}, but Services has no {name}",
            hint=f"pass Services({name}=…)",
        )
    return service


def is_merged(service: object) -> bool:
    """Return whether calls of a service are merged into batches.

    Calls are merged for a local model, and for a retriever with ``retrieve_many``. A reader is local if
    ``capabilities.local`` is true; an encoder or entailer is local if its attribute ``local`` is true.
    """
    capabilities = getattr(service, "capabilities", None)
    if capabilities is not None:
        return bool(capabilities.local)
    return bool(getattr(service, "local", False)) or hasattr(service, "retrieve_many")


def answer_effect(effect: Effect[Any], service: Any) -> Any:
    """Return the service's answer to one request of a method; the call runs in this thread."""
    return effect.checked(getattr(effect.owner(service), effect.VERB)(*effect.arguments), service)


def close_begun(call: Future[Any]) -> None:
    """Close all generations that a finished call has begun, because nobody will continue them."""
    if not call.cancelled() and not call.exception():
        with ExitStack() as closing:
            for begun in call.result():
                closing.callback(begun.close)


def answer_effects(effects: Sequence[Effect[Any]], service: Any) -> list[Any]:
    """Answer several requests to one service in as few calls as possible; equal requests are sent once.

    If a merged call fails, each half of the requests is sent in a call of its own, and so on, until only the
    requests that cause the failure fail.

    Returns:
        For each request, in order, the answer or :class:`Failed`.
    """
    groups: dict[Hashable, list[int]] = {}
    for index, effect in enumerate(effects):
        groups.setdefault((type(effect), *(getattr(effect, name) for name in effect.SAME)), []).append(index)
    outcomes: dict[int, Any] = {}
    for members in groups.values():
        answers = _answer_together([effects[index] for index in members], service)
        outcomes.update(zip(members, answers, strict=True))
    return [outcomes[index] for index in range(len(effects))]


def _answer_together(parts: Sequence[Effect[Any]], service: Any) -> list[Any]:
    try:
        return (
            parts[0].answer_merged(parts, service) if len(parts) > 1 else [answer_effect(parts[0], service)]
        )
    except Exception as error:
        if len(parts) == 1:
            return [Failed(error)]
        middle = len(parts) // 2
        return [*_answer_together(parts[:middle], service), *_answer_together(parts[middle:], service)]


_WINDOW = 0.005
"""Minimum time [s] without a further request before the worker calls the model."""
_WINDOW_SHARE = 0.1
"""Time without a further request before the worker calls the model, as a share of the last call's time."""
_LARGEST = 256
"""Maximum number of requests in one batch; the model's own token budget may make the batch smaller."""
_IDLE_SECONDS = 5.0
"""Time after which an idle worker thread ends, in seconds."""


class _QueuedEffect:
    def __init__(self, effect: Effect[Any]) -> None:
        self.effect = effect
        self.future: Future[Any] = Future()
        self.abandoned = False


class MergingQueue:
    """Gathers requests for one service and sends them in one call. Thread-safe."""

    def __init__(self, service: object) -> None:
        self._service = weakref.ref(service)
        self._arrival = threading.Condition(threading.Lock())
        self._pending: deque[_QueuedEffect] = deque()
        # _programs is used without the lock, because the garbage collector may close a method in the
        # thread that holds the lock.
        self._programs: set[object] = set()
        self._working = False
        self._company = True
        self._window = _WINDOW

    def enter(self, token: object) -> None:
        """Register a running RAG method under any object ``token``; the queue then waits for its requests."""
        self._programs.add(token)

    def leave(self, token: object) -> None:
        """Do not wait any longer for requests of the RAG method that was registered under ``token``."""
        self._programs.discard(token)

    def notify(self) -> None:
        """Wake the worker, so that it notices at once that a RAG method has left (see ``leave``)."""
        with self._arrival:
            self._arrival.notify()

    def answer(self, effect: Effect[Any]) -> Any:
        """Put a request into the queue, wait for the service, and return its answer or raise its error."""
        queued = self._put(effect)
        try:
            return queued.future.result()
        finally:
            self._abandon_unless_done(queued)

    async def aanswer(self, effect: Effect[Any]) -> Any:
        """Answer a request as :meth:`answer` does, without blocking the event loop."""
        queued = self._put(effect)
        try:
            return await asyncio.wrap_future(queued.future)
        finally:
            self._abandon_unless_done(queued)

    def _put(self, effect: Effect[Any]) -> _QueuedEffect:
        queued = _QueuedEffect(effect)
        with self._arrival:
            self._pending.append(queued)
            idle, self._working = not self._working, True
            self._arrival.notify()
        if idle:
            try:
                threading.Thread(target=self._work, name="surerag-model", daemon=True).start()
            except RuntimeError:
                self._working = False
                raise
        return queued

    def _work(self) -> None:
        while batch := self._next_batch():
            started = time.monotonic()
            self._answer([queued for queued in batch if queued.future.set_running_or_notify_cancel()])
            self._window = max(_WINDOW, _WINDOW_SHARE * (time.monotonic() - started))

    def _next_batch(self) -> list[_QueuedEffect]:
        with self._arrival:
            # The worker waits for further requests if several requests arrived while the model was busy.
            self._company = self._company or len(self._pending) > 1
            if not self._arrival.wait_for(lambda: self._pending, timeout=_IDLE_SECONDS):
                self._working = False
                return []
            # Wait until every running method waits here, or the batch is full.
            while self._company and len(self._pending) < min(len(self._programs), _LARGEST):
                if not self._arrival.wait(self._window):
                    self._company = len(self._pending) > 1
                    break
            return [self._pending.popleft() for _ in range(min(len(self._pending), _LARGEST))]

    def _answer(self, batch: list[_QueuedEffect]) -> None:
        if not batch:
            return
        try:
            with model_call(), cancel_when(lambda: all(queued.abandoned for queued in batch)):
                outcomes = answer_effects([queued.effect for queued in batch], self._service())
        except BaseException as error:
            for queued in batch:
                queued.future.set_exception(error)
            return
        for queued, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Failed):
                queued.future.set_exception(outcome.error)
            else:
                queued.future.set_result(outcome)

    def _abandon_unless_done(self, queued: _QueuedEffect) -> None:
        """If a request has no answer yet, mark it as abandoned, and close any generations that it begins."""
        if queued.future.done() and not queued.future.cancelled():
            return
        queued.abandoned = True
        if not queued.future.cancel() and isinstance(queued.effect, StartGeneration):
            queued.future.add_done_callback(close_begun)


_queues: weakref.WeakKeyDictionary[Any, MergingQueue] = weakref.WeakKeyDictionary()


def _renew() -> None:
    global _queues
    _queues = weakref.WeakKeyDictionary()


renew_after_fork(_renew)


def queues_of(services: Services) -> list[MergingQueue]:
    """Return the queue of each service whose calls are merged into batches."""
    distinct = {id(service): service for service in vars(services).values() if service is not None}
    return [queue_of(service) for service in distinct.values() if is_merged(service)]


def queue_of(service: object) -> MergingQueue:
    """Return the queue of a service, in which requests are merged into batches.

    Raises:
        ConfigurationError: If the service is not hashable, or does not accept weak references.
    """
    try:
        return _queues.get(service) or _queues.setdefault(service, MergingQueue(service))
    except TypeError as error:
        raise ConfigurationError(
            f"requests to {kind_of(service)} cannot be merged into batches: expected an object that "
            "is hashable and accepts weak references",
            hint="let the class hash its objects by identity, and add __weakref__ to its __slots__",
        ) from error
