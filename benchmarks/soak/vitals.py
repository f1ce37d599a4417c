"""What a process holds: memory, sockets, threads, tasks; and a watchdog that tells where it hangs."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import math
import os
import resource
import statistics
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple


class Vitals(NamedTuple):
    """What the process holds at one moment.

    Attributes:
        seconds: Since the beginning.
        questions: Done so far.
        memory: Resident, in MiB.
        blocks: Blocks that Python has allocated: memory without what the allocator keeps back.
        sockets: Open ones.
        threads: Alive.
        tasks: Of all event loops, not yet done.
    """

    seconds: float
    questions: int
    memory: float
    blocks: int
    sockets: int
    threads: int
    tasks: int


def vitals(started: float, questions: int) -> Vitals:
    """Measure."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Vitals(
        time.monotonic() - started,
        questions,
        pages * resource.getpagesize() / 2**20,
        sys.getallocatedblocks(),
        sockets(),
        threading.active_count(),
        len(running_tasks()),
    )


_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
_loops_lock = threading.Lock()


def count_tasks_here() -> None:
    """Have the tasks of the event loop that runs in this thread counted, for as long as there are any."""
    with _loops_lock:
        _loops.add(asyncio.get_running_loop())


def running_tasks() -> list[asyncio.Task[Any]]:
    """Return the tasks of all event loops that are counted and not done."""
    # The collector could name them, too; but whoever asks it for all objects while other threads run gets
    # tuples that are still being made, whose makers then fail (SystemError in tupleobject.c).
    with _loops_lock:
        loops = list(_loops)
    return [task for loop in loops for task in asyncio.all_tasks(loop)]


def _waiting_at(task: asyncio.Task[Any]) -> list[str]:
    """Return where a task waits, from its own coroutine to the innermost."""
    found, at = [], task.get_coro()
    while at is not None:
        frame = (
            getattr(at, "cr_frame", None) or getattr(at, "ag_frame", None) or getattr(at, "gi_frame", None)
        )
        found.append(
            f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" if frame else repr(at)
        )
        at = next(
            (
                inner
                for name in ("cr_await", "ag_await", "gi_yieldfrom")
                if (inner := getattr(at, name, None))
            ),
            None,
        )
    return found


def sockets() -> int:
    """Count this process's open sockets."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += str(entry.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return found


class Watch:
    """Measures every now and then; if nothing moves, prints all stacks and ends the process.

    Args:
        questions: Tells how many are done.
        every: Seconds between measurements.
        patience: Seconds without a single question done, before the process counts as hanging.
    """

    def __init__(self, questions: Callable[[], int], every: float, patience: float = 60.0) -> None:
        self.taken: list[Vitals] = []
        self._questions, self._every, self._patience = questions, every, patience
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        started = time.monotonic()
        last, moved, due = -1, started, started + self._every
        while not self._over.wait(0.5):
            if (done := self._questions()) != last:
                last, moved = done, time.monotonic()
                # A thread of the interpreter's own: it also fires while a lock is held that all others want.
                faulthandler.dump_traceback_later(self._patience, exit=True)
            elif time.monotonic() - moved > 0.75 * self._patience:
                moved = math.inf
                for task in running_tasks():
                    # A waiting coroutine is on no thread's stack.
                    print(task, *_waiting_at(task), sep="\n  ", flush=True)
            if time.monotonic() >= due:
                due += self._every
                self.taken.append(vitals(started, done))
                print(row(self.taken[-1]), flush=True)


HEADER = "seconds  questions  memory MiB  blocks (thousands)  sockets  threads  tasks"


def row(taken: Vitals) -> str:
    """Return a line of the table under :data:`HEADER`."""
    return (
        f"{taken.seconds:7.0f}  {taken.questions:9}  {taken.memory:10.0f}  {taken.blocks / 1000:18.0f}  "
        f"{taken.sockets:7}  {taken.threads:7}  {taken.tasks:5}"
    )


class Bound(NamedTuple):
    """How much something may grow under load: by a share, or by an absolute amount if that is more."""

    name: str
    share: float
    amount: float


GROWTH = (
    Bound("memory", 0.25, 100),
    Bound("blocks", 0.20, 200_000),
    Bound("sockets", 0.50, 50),
    Bound("threads", 0.30, 30),
    Bound("tasks", 0.50, 100),
)
"""From the beginning of the load to its end, as medians of a quarter of the measurements each.

Sockets and tasks go up and down with what is under way at the moment; a leak of one in a hundred questions
exceeds each of the bounds on 20,000 questions.
"""


def grown(taken: Sequence[Vitals]) -> list[str]:
    """Return what grew beyond its bound; the first tenth of the measurements is warming up."""
    steady = taken[max(1, len(taken) // 10) :]
    if len(steady) < 2:
        return [f"only {len(taken)} measurements: nothing can be said of growth"]
    quarter = max(1, len(steady) // 4)
    found = []
    for bound in GROWTH:
        values = [float(getattr(item, bound.name)) for item in steady]
        first, last = statistics.median(values[:quarter]), statistics.median(values[-quarter:])
        if last - first > max(bound.share * first, bound.amount):
            found.append(f"{bound.name} grew from {first:.0f} to {last:.0f}")
    return found


class Rest(NamedTuple):
    """How much more a process may hold when all is done than before it began."""

    sockets: int = 20
    threads: int = 4
    tasks: int = 0


def at_rest(
    before: Vitals, started: float, questions: int, patience: float = 30.0
) -> tuple[Vitals, list[str]]:
    """Wait until what is left over has ended; return what is left, and what should not be."""
    deadline = time.monotonic() + patience
    while True:
        gc.collect()
        now = vitals(started, questions)
        found = [
            f"{name} at rest: {getattr(now, name)}, and {getattr(before, name)} before"
            for name, more in Rest()._asdict().items()
            if getattr(now, name) > getattr(before, name) + more
        ]
        if not found:
            return now, []
        if time.monotonic() > deadline:
            return now, found + _left_over()
        time.sleep(0.5)


def _left_over() -> list[str]:
    """Describe the tasks that are left: whose loop, where they wait, and what still holds them."""
    told = []
    for task in running_tasks():
        holders = [holder for holder in gc.get_referrers(task) if not isinstance(holder, (list, FrameType))]
        told.append(
            "\n  ".join(
                [
                    f"left over: {task!r} of {task.get_loop()!r}",
                    *_waiting_at(task),
                    *(f"held by {type(holder).__qualname__}: {holder!r:.300}" for holder in holders),
                ]
            )
        )
    return told


def allow_many_files() -> None:
    """Raise this process's limit on open files as far as it goes."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def lower_priority() -> None:
    """Leave the processor to others first."""
    os.nice(5)
