"""Units made by actors of a Ray cluster, and committed here."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from surerag.errors import ServiceError
from surerag.runs import Maker, Part, Run, Task
from surerag.scale.engine_cluster import Actors, check_room, cluster
from surerag.scale.units import Failure, Job, Made, UnitActor, surerag_version

TRIES: Final = 3
"""Times that a unit may end the actor that makes it, and that actors may end before they are ready."""
_LOOK: Final = 5.0
"""Seconds between looks at a cluster in which nothing happens."""


@dataclass(frozen=True)
class RayUnits:
    """Has units made by actors, each of which makes one at a time and has its own models.

    What goes into a unit is read here and sent with it. What it holds comes back as bytes, which this process
    writes, so that a unit is there whole or not at all, and once, whatever ends: an actor, its node, or this.
    What ends is asked for again: the units that were under way, and no others.

    Args:
        job: What actors are built of.
        actors: How many there are, and what each takes.
        address: Of a cluster; see :func:`surerag.scale.engine_cluster.cluster`.

    Raises:
        ConfigurationError: When it begins, if the cluster has too few CPUs or GPUs; or as a worker raised it.
        ServiceError: If units end their workers again and again, or no node is left for one.
    """

    job: Job
    actors: Actors = field(default_factory=Actors)
    address: str | None = None

    @property
    def at_once(self) -> int:
        """Units under way at a time: one for each actor."""
        return self.actors.most

    def __call__(self, run: Run, tasks: Iterable[Task], maker: Maker) -> Generator[Part]:
        """Commit units, and yield each when it is there."""
        remaining = iter(tasks)
        if (first := next(remaining, None)) is None:
            return  # nothing is missing, and nobody is needed
        with cluster(self.address) as ray:
            check_room(ray, self.actors)
            pool = _Pool(ray, self.job, self.actors)
            try:
                yield from pool.made(run, first, remaining)
            finally:
                pool.end()


class _Pool:
    """Actors, and what each of them is at.

    Args:
        ray: The package.
        job: What they are built of.
        actors: How many, and what each takes.
    """

    def __init__(self, ray: Any, job: Job, actors: Actors) -> None:
        self._ray, self._actors = ray, actors
        options = {"num_cpus": actors.cpus, "num_gpus": actors.gpus, "max_restarts": 0, "max_task_retries": 0}
        kind: Any = ray.remote(**options)(UnitActor)
        self._begin: Callable[[], Any] = lambda: kind.remote(job, surerag_version())
        self._starting: dict[Any, Any] = {}
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, Task]] = {}
        self._held: deque[Task] = deque()
        self._ended: Counter[int] = Counter()
        self._false_starts = 0
        self._stop: Exception | None = None

    def made(self, run: Run, first: Task, remaining: Iterator[Task]) -> Generator[Part]:
        """Yield units as they are committed.

        Raises:
            Exception: Whatever ends the run, once the units that are under way are committed: they are paid.
        """
        self._held.append(first)
        while True:
            self._fill(remaining)
            if not self._held and not self._busy:
                if self._stop is not None:
                    raise self._stop
                return
            self._staff()
            while self._held and self._idle:
                self._hand_out(run)
            done, _ = self._ray.wait([*self._busy, *self._starting], timeout=_LOOK)
            if not done and not self._busy:
                check_room(self._ray, self._actors, 1)  # nodes may have gone
            for ref in done:
                if ref in self._starting:
                    self._started(ref)
                elif made := self._finished(ref):
                    yield made.adopted(run)
                    del made

    def end(self) -> None:
        """End all actors, whatever they are at."""
        for actor in (*self._starting.values(), *self._idle, *(actor for actor, _ in self._busy.values())):
            self._ray.kill(actor)

    def _fill(self, remaining: Iterator[Task]) -> None:
        """Hold as many units as there may be actors, so that these begin together; none is read yet."""
        try:
            while self._stop is None and len(self._held) + len(self._busy) < self._actors.most:
                if (task := next(remaining, None)) is None:
                    return
                self._held.append(task)
        except Exception as error:
            self._stop = error
        if self._stop is not None:
            self._held.clear()

    def _staff(self) -> None:
        wanted = min(self._actors.most, len(self._held) + len(self._busy))
        while len(self._starting) + len(self._idle) + len(self._busy) < wanted:
            actor = self._begin()
            self._starting[actor.ready.remote()] = actor

    def _hand_out(self, run: Run) -> None:
        actor, task = self._idle.pop(), self._held.popleft()
        ref = actor.make.remote(task.unit, task.read(), task.source, run.begun(task.unit))
        self._busy[ref] = actor, task

    def _started(self, ref: Any) -> None:
        actor = self._starting.pop(ref)
        try:
            failure: Failure | None = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            self._false_starts += 1
            if self._false_starts >= TRIES:
                self._stop = self._stop or ServiceError(
                    f"{TRIES} actors ended before they were ready: {_first_line(error)}",
                    hint="give each more memory, or fewer to a node (--cpus-per-actor, --gpus-per-actor)",
                )
            return
        if failure is None:
            self._idle.append(actor)
        else:
            self._stop = self._stop or failure.raised()

    def _finished(self, ref: Any) -> Made | None:
        """Return a unit; None if whoever made it has ended, and it is to be made again."""
        actor, task = self._busy.pop(ref)
        try:
            found: Made | Failure = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            self._ray.kill(actor)
            self._ended[task.unit] += 1
            if self._ended[task.unit] >= TRIES:
                self._stop = self._stop or ServiceError(
                    f"unit {task.unit} ended its worker {TRIES} times: {_first_line(error)}",
                    hint="what is committed is kept; give each actor more memory (--cpus-per-actor)",
                )
            self._held.appendleft(task)
            return None
        self._idle.append(actor)
        if isinstance(found, Failure):
            self._stop = self._stop or found.raised()
            return None
        return found


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
