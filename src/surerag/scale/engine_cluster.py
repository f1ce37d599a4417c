"""A Ray cluster: begun here or joined, and looked at before anything is asked of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from surerag.errors import ConfigurationError, ServiceError
from surerag.extras import extra

_STARTS: Final = 3
"""Times that a node of a busy machine is begun."""


@dataclass(frozen=True)
class Actors:
    """How many workers there are, and what each takes.

    Attributes:
        least: That have to fit, or nothing begins.
        most: That are used, as far as the cluster has room.
        cpus: Of each.
        gpus: Of each; a part of one is shared.

    Raises:
        ConfigurationError: If they cannot be.
    """

    least: int = 1
    most: int = 1
    cpus: float = 1.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ConfigurationError(f"actors must be at least 1, got {self.least} to {self.most}")
        if self.cpus < 0 or self.gpus < 0 or self.cpus + self.gpus == 0:
            raise ConfigurationError(
                f"an actor needs some CPU or GPU, got {self.cpus:g} CPUs and {self.gpus:g} GPUs"
            )
        if self.gpus > 1 and self.gpus % 1:
            raise ConfigurationError(f"an actor has a part of one GPU, or whole ones, got {self.gpus:g}")

    @classmethod
    def parsed(cls, text: str, *, cpus: float = 1.0, gpus: float = 0.0) -> Self:
        """Read how many, as a user writes it.

        Raises:
            ConfigurationError: If it is neither a number nor two of them.

        Example:
            >>> Actors.parsed("1:8"), Actors.parsed("2").most
            (Actors(least=1, most=8, cpus=1.0, gpus=0.0), 2)
        """
        least, colon, most = text.partition(":")
        if not least.isdecimal() or (colon and not most.isdecimal()):
            raise ConfigurationError(
                f"actors are a number, or the least and the most, got {text!r}", hint="such as 1:8"
            )
        return cls(int(least), int(most or least), cpus, gpus)

    def __str__(self) -> str:
        many = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        gpus = f" and {self.gpus:g} GPUs" if self.gpus else ""
        return f"{many} actors of {self.cpus:g} CPUs{gpus}"


@contextmanager
def cluster(address: str | None = None) -> Iterator[Any]:
    """Join a Ray cluster, or begin one on this machine that ends with this context.

    A cluster that this process has joined already is used as it is. One that is joined is left running.

    Args:
        address: Of its head, such as ``ray://head:10001`` or ``auto``; the variable ``RAY_ADDRESS``
            if left out, and without that a cluster of this machine alone.

    Yields:
        The package ``ray``.

    Raises:
        ServiceError: If there is no cluster at that address.
        MissingExtraError: If Ray is not installed.
    """
    where = address or os.environ.get("RAY_ADDRESS") or "local"
    if where == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with extra("ray"):
        import ray
    if ray.is_initialized():
        yield ray
        return
    _join(ray, where)
    try:
        yield ray
    finally:
        ray.shutdown()


def _join(ray: Any, where: str) -> None:
    own: dict[str, Any] = {"include_dashboard": False} if where == "local" else {}
    for left in reversed(range(_STARTS if where == "local" else 1)):
        try:
            ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR, **own)
        except Exception as error:  # Ray raises this very class where a node takes more than 30 s to begin
            ray.shutdown()
            if left:
                continue
            why = (str(error).splitlines() or [type(error).__name__])[0]
            if where == "local":
                hint = "begin one with `ray start --head`, which says more, and join it with --address auto"
                raise ServiceError(f"Ray does not begin on this machine: {why}", hint=hint) from error
            hint = "begin one with `ray start --head`, or leave --address out for one of this machine"
            raise ServiceError(f"there is no Ray cluster at {where}: {why}", hint=hint) from error
        else:
            return


def room(ray: Any, actors: Actors) -> int:
    """Return for how many actors a cluster has room, where nothing else runs on it."""
    return sum(_fits(node.get("Resources", {}), actors) for node in ray.nodes() if node["Alive"])


def check_room(ray: Any, actors: Actors, wanted: int | None = None) -> None:
    """Refuse a cluster that has no room for the least number of actors.

    Args:
        ray: The package.
        actors: What is needed.
        wanted: How many of them have to fit; ``actors.least`` by default.

    Raises:
        ConfigurationError: With the numbers.
    """
    wanted = wanted or actors.least
    found = room(ray, actors)
    if found >= wanted:
        return
    there = ray.cluster_resources()
    alive = sum(node["Alive"] for node in ray.nodes())
    raise ConfigurationError(
        f"{actors}: at least {wanted} must fit, and there is room for {found}: the cluster has "
        f"{there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs on {alive} nodes",
        hint="ask for fewer with --actors, or less with --cpus-per-actor and --gpus-per-actor; or add nodes",
    )


def _fits(resources: dict[str, float], actors: Actors) -> int:
    each = {"CPU": actors.cpus, "GPU": actors.gpus}
    return min(int(resources.get(name, 0.0) / need + 1e-9) for name, need in each.items() if need)
