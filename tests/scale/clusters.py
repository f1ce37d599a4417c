"""A cluster as far as it is looked at before work begins, and one whose actors are in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any


def ray(*nodes: tuple[float, float]) -> SimpleNamespace:
    """Return a cluster of nodes with CPUs and GPUs, and one that is dead."""
    found = [{"Alive": True, "Resources": {"CPU": cpus, "GPU": gpus}} for cpus, gpus in nodes]
    total = {"CPU": sum(cpus for cpus, _ in nodes), "GPU": sum(gpus for _, gpus in nodes)}
    dead = {"Alive": False, "Resources": {"CPU": 99.0, "GPU": 99.0}}
    return SimpleNamespace(nodes=lambda: [*found, dead], cluster_resources=lambda: total)


class ActorEndedError(Exception):
    """An actor has ended."""


class _Ref:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call


class _Actor:
    def __init__(self, made: Any, ray: LocalRay) -> None:
        self._made, self._ray, self.alive = made, ray, True
        ray.begun.append(self)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._made, name)

        def remote(*given: Any) -> _Ref:
            if name == "make":
                self._ray.sent.append(given[0])
                if given[0] in self._ray.ending:
                    self._ray.ending.remove(given[0])
                    return _Ref(_ended)
            return _Ref(lambda: method(*given))

        return SimpleNamespace(remote=remote)


def _ended() -> None:
    raise ActorEndedError("out of memory")


class LocalRay:
    """As much of Ray as the engine uses: calls are answered in order, when somebody waits for them.

    Attributes:
        sent: Units, as they were sent.
        ending: Units whose actor ends.
        begun: Actors.
    """

    exceptions = SimpleNamespace(RayError=ActorEndedError)

    def __init__(self, *nodes: tuple[float, float]) -> None:
        found = ray(*nodes)
        self.nodes, self.cluster_resources = found.nodes, found.cluster_resources
        self.sent: list[int] = []
        self.ending: list[int] = []
        self.begun: list[Any] = []

    def remote(self, **options: Any) -> Any:
        """Return what begins actors of a class."""
        return lambda kind: SimpleNamespace(remote=lambda *given: _Actor(kind(*given), self))

    def wait(self, refs: Sequence[_Ref], timeout: float) -> tuple[list[_Ref], list[_Ref]]:
        """Return the call that was made first."""
        return [refs[0]], list(refs[1:])

    def get(self, ref: _Ref) -> Any:
        """Return what a call comes to."""
        return ref.call()

    def kill(self, actor: Any) -> None:
        """End an actor."""
        actor.alive = False
