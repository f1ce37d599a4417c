"""Where a command's units are made, and which; what is told of them meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, TypeVar

import typer

from surerag.cli.display import Bar
from surerag.cli.options import given_by
from surerag.prices import Costs, Prices
from surerag.runs import IN_PROCESS, WHOLE, Engine, Part, Shard, Watched
from surerag.runs.units import MAX_FAILED
from surerag.scale.engine import RayUnits
from surerag.scale.engine_cluster import Actors, check_room, cluster
from surerag.scale.units import Job

R = TypeVar("R")

EngineOption = Annotated[
    Literal["local", "ray"],
    typer.Option(help="Who does the work: this process, or actors on Ray, each with models of its own."),
]
ActorsOption = Annotated[
    str | None,
    typer.Option(
        help="With ray: how many; or the least that must fit, and the most. Default: 1.", metavar="N|N:M"
    ),
]
CpusOption = Annotated[
    float | None, typer.Option(help="With ray: CPUs of each actor. Default: 1.", metavar="CPUS")
]
GpusOption = Annotated[
    float | None, typer.Option(help="With ray: GPUs of each actor. Default: 0.", metavar="GPUS")
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        help="With ray: the cluster to join, such as auto or head:6379. Default: RAY_ADDRESS, or one of this "
        "machine that ends with the command.",
    ),
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        help="Do only a part of the work, such as 3/16: other processes, anywhere, do the others. Give each "
        "an output of its own.",
        metavar="N/OF",
    ),
]
MaxFailedOption = Annotated[
    float,
    typer.Option(
        min=0.0,
        max=1.0,
        help="Stop when more than this share of the rows fails, of 100 at least.",
        metavar="SHARE",
    ),
]
OPTIONS: Final[Sequence[tuple[str, Any, Any]]] = (
    ("engine", EngineOption, "local"),
    ("actors", ActorsOption, None),
    ("cpus_per_actor", CpusOption, None),
    ("gpus_per_actor", GpusOption, None),
    ("address", AddressOption, None),
    ("shard", ShardOption, None),
    ("max_failed", MaxFailedOption, MAX_FAILED),
)


@dataclass(frozen=True, slots=True)
class Scaling:
    """What the user asked for.

    Attributes:
        actors: Of a Ray cluster; None for this process.
        address: Of the cluster.
        shard: Which units to make.
        max_failed: Share of rows that may fail.
    """

    actors: Actors | None = None
    address: str | None = None
    shard: Shard = WHOLE
    max_failed: float = MAX_FAILED

    @property
    def kept_beside(self) -> str:
        """What is kept beside finished units when a run is interrupted, in words."""
        return ", and what was answered since" if self.actors is None else ""

    @property
    def away(self) -> bool:
        """Whether not all of the work is done in this process."""
        return self.actors is not None or self.shard != WHOLE

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Join or begin the cluster, if there is one to be, before any model is loaded.

        GPUs are then the workers': what this process loads, it loads without them.

        Raises:
            ConfigurationError: If there is no room for the actors.
            ServiceError: If there is no cluster.
        """
        if self.actors is None:
            yield
            return
        with cluster(self.address) as ray:
            check_room(ray, self.actors)
            if self.actors.gpus:
                os.environ["CUDA_VISIBLE_DEVICES"] = ""
            yield

    def engine(self, job: Callable[[], Job] | None, made: Callable[[Part], None]) -> Engine:
        """Return who makes units.

        Args:
            job: What workers are told; None where there is nothing that they could do.
            made: Told of each unit.
        """
        engine: Engine = IN_PROCESS
        if self.actors is not None and job is not None:
            engine = RayUnits(job(), self.actors, self.address)
        return Watched(engine, max_failed=self.max_failed, told=made)


HERE: Final = Scaling()


def chosen(
    engine: str,
    actors: str | None,
    cpus_per_actor: float | None,
    gpus_per_actor: float | None,
    address: str | None,
    shard: str | None,
    max_failed: float,
) -> Scaling:
    """Read what the options say.

    Raises:
        BadParameter: If one goes with another.
        ConfigurationError: If one has a value that cannot work.
    """
    given = {
        "--actors": actors,
        "--cpus-per-actor": cpus_per_actor,
        "--gpus-per-actor": gpus_per_actor,
        "--address": address,
    }
    named = [name for name, value in given.items() if value is not None]
    if engine == "local" and named:
        raise typer.BadParameter("goes with --engine ray", param_hint=named[0])
    workers = None
    if engine == "ray":
        cpus = 1.0 if cpus_per_actor is None else cpus_per_actor
        workers = Actors.parsed(actors or "1", cpus=cpus, gpus=gpus_per_actor or 0.0)
    return Scaling(workers, address, WHOLE if shard is None else Shard.parsed(shard), max_failed)


def with_scaling(command: Callable[..., R]) -> Callable[..., R]:
    """Give a command the options that say where it works, in place of its parameter ``scaling``."""
    return given_by(command, "scaling", OPTIONS, chosen)


class Counting:
    """Shows how far a run is: questions or rows, units, tokens, money where it is known, and the time left.

    Args:
        bar: Where.
        total: Questions or rows.
        prices: What tokens cost, where units do not tell it themselves.
        model: Whose tokens they are.
    """

    def __init__(self, bar: Bar, total: int, prices: Prices | None = None, model: str = "") -> None:
        self._bar, self._total, self._prices, self._model = bar, total, prices, model
        self.units = self.rows = 0
        self.costs: Costs | None = None

    def __call__(self, done: int, _: int | None = None) -> None:
        """Show that so many are done."""
        self._bar(done, self._total)

    def made(self, part: Part) -> None:
        """Count a unit."""
        costs = Costs.from_dict(part.note["spent"])
        if "money" in part.note:
            costs = replace(costs, money=part.note["money"])
        elif self._prices is not None:
            costs = self._prices.priced(costs, self._model)
        self.units, self.rows = self.units + 1, self.rows + part.rows
        self.costs = costs if self.costs is None else self.costs + costs
        self._bar.note(str(self))

    def __str__(self) -> str:
        many = "1 unit" if self.units == 1 else f"{self.units:,} units"
        costs = self.costs or Costs()
        money = f", {costs.money:.3g} {costs.currency}".rstrip() if costs.money else ""
        return f"{many}, {self.rows:,} rows, {costs.tokens:,} tokens{money}"
