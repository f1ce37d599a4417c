"""Blocking calls for event loops, in threads that nobody has to wait for.

An event loop's own pool of threads is small, and the loop waits for it when it ends: a call that was
cancelled, but still blocks, holds up the calls after it and the end of the program. Here each call has a
thread to itself, used again when it is free.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from surerag.readers.abandoned import abandoned_when
from surerag.readers.forks import in_child

R = TypeVar("R")

_IDLE = 10.0
"""Seconds after which a thread that has nothing to do ends."""


class _Job:
    """A call, and the future that holds its result."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()
        self._call = call

    def run(self) -> None:
        try:
            result = self._call()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class _Threads:
    """Threads that wait for a job; a new one is started where none does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[SimpleQueue[_Job]] = []

    def run(self, job: _Job) -> None:
        with self._lock:
            jobs = self._free.pop() if self._free else None
        if jobs is None:
            jobs = SimpleQueue()
            threading.Thread(target=self._work, args=(jobs,), name="surerag-blocking", daemon=True).start()
        jobs.put(job)

    def _work(self, jobs: SimpleQueue[_Job]) -> None:
        while True:
            try:
                job = jobs.get(timeout=_IDLE)
            except Empty:
                with self._lock:
                    # Otherwise a job is on its way.
                    if jobs in self._free:
                        self._free.remove(jobs)
                        return
                continue
            job.run()
            del job
            with self._lock:
                self._free.append(jobs)


_threads = _Threads()


def _reset() -> None:
    global _threads
    _threads = _Threads()


in_child(_reset)


def start_in_thread(call: Callable[..., R], *arguments: Any) -> Future[R]:
    """Call a blocking function in a thread, in a copy of the present context.

    Returns:
        Its result to come; it cannot be cancelled, only left behind.
    """
    job = _Job(partial(contextvars.copy_context().run, call, *arguments))
    _threads.run(job)
    return job.future


async def in_thread(call: Callable[..., R], *arguments: Any) -> R:
    """Await a blocking function; a task that is cancelled goes on at once, and leaves it behind.

    The function is told that it was left: see :mod:`surerag.readers.abandoned`.
    """
    left = threading.Event()

    def unless_left() -> R:
        with abandoned_when(left.is_set):
            return call(*arguments)

    try:
        return await asyncio.wrap_future(start_in_thread(unless_left))
    except asyncio.CancelledError:
        left.set()
        raise
