"""Which units are sent to whom, and what is kept where something ends; without Ray."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from surerag.errors import BudgetError, ConfigurationError, ServiceError
from surerag.runs import Part, Run, Task
from surerag.scale.engine import RayUnits
from surerag.scale.engine_cluster import Actors
from surerag.scale.units import Job
from tests.scale.clusters import LocalRay
from tests.scale.things import Things, opened, tasks


class Choosy(Things):
    """Cannot make the unit 3."""

    def make(self, run: Run, unit: int, rows: Sequence[Any], source: str) -> Part:
        if unit == 3:
            raise ConfigurationError("no such model", hint="name another")
        return super().make(run, unit, rows, source)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> LocalRay:
    local = LocalRay((4, 0))

    @contextmanager
    def cluster(address: str | None) -> Iterator[LocalRay]:
        yield local

    monkeypatch.setattr("surerag.scale.engine.cluster", cluster)
    return local


def engine(most: int, kind: type[Things] = Things) -> RayUnits:
    return RayUnits(Job(lambda _: kind(), {}), Actors(1, most))


def made(run: Run, given: Iterable[Task], most: int = 2, kind: type[Things] = Things) -> list[int]:
    return [part.unit for part in engine(most, kind)(run, given, Things())]


def test_no_more_units_are_read_than_there_are_actors(tmp_path: Path, ray: LocalRay) -> None:
    reads: list[int] = []

    def read(task: Task) -> Any:
        reads.append(task.unit)
        return task.read()

    given = [task._replace(read=lambda task=task: read(task)) for task in tasks(7)]
    with opened(tmp_path) as run:
        for count, part in enumerate(engine(3)(run, given, Things())):
            assert part.unit in run.units and len(reads) <= count + 3
        assert run.units == list(range(7)) and reads == list(range(7))
    assert len(ray.begun) == 3 and not any(actor.alive for actor in ray.begun)


def test_few_units_need_few_actors_and_none_needs_none(tmp_path: Path, ray: LocalRay) -> None:
    with opened(tmp_path) as run:
        assert made(run, tasks(1), most=4) == [0] and len(ray.begun) == 1
        assert made(run, []) == [] and len(ray.begun) == 1


def test_what_is_under_way_when_the_money_ends_is_kept(tmp_path: Path, ray: LocalRay) -> None:
    def given() -> Iterator[Task]:
        yield from tasks(3)
        raise BudgetError("spent")

    with opened(tmp_path) as run:
        with pytest.raises(BudgetError):
            made(run, given())
        assert ray.sent and run.units == sorted(ray.sent)


def test_a_unit_that_fails_ends_the_run_and_the_others_under_way_are_kept(
    tmp_path: Path, ray: LocalRay
) -> None:
    with opened(tmp_path) as run:
        with pytest.raises(ConfigurationError, match="no such model"):
            made(run, tasks(9), kind=Choosy)
        assert 3 in ray.sent and run.units == sorted(set(ray.sent) - {3})


def test_a_unit_whose_actor_ends_is_made_by_another(tmp_path: Path, ray: LocalRay) -> None:
    ray.ending = [1, 1]
    with opened(tmp_path) as run:
        assert sorted(made(run, tasks(4))) == [0, 1, 2, 3]
        assert sorted(ray.sent) == [0, 1, 1, 1, 2, 3] and len(ray.begun) == 4
    assert not any(actor.alive for actor in ray.begun)


def test_a_unit_that_ends_every_actor_ends_the_run(tmp_path: Path, ray: LocalRay) -> None:
    ray.ending = [1] * 9
    with opened(tmp_path) as run:
        with pytest.raises(ServiceError, match="unit 1 ended its worker 3 times: out of memory"):
            made(run, tasks(4))
        assert ray.sent.count(1) == 3 and run.units == sorted({*ray.sent} - {1})
