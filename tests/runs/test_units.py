"""Who makes units, which are a shard's, and units that were made elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from surerag.errors import ConfigurationError, InputError, ServiceError
from surerag.runs import IN_PROCESS, Shard, Watched
from surerag.scale.units import Failure, Job, made_alone
from tests.scale.things import Things, opened, tasks


def test_a_unit_that_was_made_elsewhere_is_the_same(tmp_path: Path) -> None:
    with opened(tmp_path / "here") as here, opened(tmp_path / "away") as away:
        list(IN_PROCESS(here, tasks(3), Things()))
        for unit, source, read in tasks(3):
            made_alone(Things(), unit, read(), source).adopted(away)
        here.finish()
        away.finish()
    files = {file.name: file.read_bytes() for file in (tmp_path / "here").iterdir()}
    assert {file.name: file.read_bytes() for file in (tmp_path / "away").iterdir()} == files
    assert len(files) == 7  # rows, answers, and the manifest


def test_a_unit_that_arrives_damaged_is_not_committed(tmp_path: Path) -> None:
    made = made_alone(Things(), 0, ["a"], "")
    with opened(tmp_path) as run:
        with pytest.raises(InputError, match="arrived otherwise than it was sent"):
            made._replace(files={**made.files, "rows": made.files["rows"][:-1]}).adopted(run)
        assert not run.units and not list(tmp_path.glob("rows-*"))


def test_what_was_answered_before_travels_with_the_unit(tmp_path: Path) -> None:
    things = Things()
    with opened(tmp_path) as run:
        with run.answers(0) as journal:
            journal.put({"before": "Velm"})
        made_alone(things, 0, ["a"], "", run.begun(0)).adopted(run)
        assert things.known == ["Velm"] and run.units == [0]
        assert not list(tmp_path.glob("open-*"))
        made_alone(things, 0, ["a"], "", run.begun(0)).adopted(
            run
        )  # measured again, from what was folded away
    assert things.known == ["Velm", "Velm"]


def test_too_many_failed_rows_end_a_run_before_its_next_unit(tmp_path: Path) -> None:
    few = Things(failed=4)
    with opened(tmp_path) as run:
        with pytest.raises(ServiceError, match=r"12 of the 120 rows .* more than 0\.09 of them"):
            list(Watched(IN_PROCESS, max_failed=0.09)(run, tasks(9, 40), few))
        assert few.made == [0, 1, 2] and run.units == [0, 1, 2]
        assert len(list(Watched(IN_PROCESS, max_failed=0.1)(run, tasks(9, 40), few))) == 9
    with pytest.raises(ConfigurationError, match="share from 0 to 1"):
        Watched(IN_PROCESS, max_failed=2.0)


def test_a_run_whose_last_unit_failed_is_finished(tmp_path: Path) -> None:
    with opened(tmp_path) as run:
        assert len(list(Watched(IN_PROCESS, max_failed=0.0)(run, tasks(1, 200), Things(failed=200)))) == 1


@pytest.mark.parametrize("text", ["", "3", "0/4", "5/4", "a/b", "-1/4", "1/0", "1/2/3"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="Such as 3/16"):
        Shard.parsed(text)


def test_shards_together_are_the_whole() -> None:
    shards = [Shard.parsed(f"{number}/3") for number in (1, 2, 3)]
    assert [[unit for unit in range(7) if shard.has(unit)] for shard in shards] == [[0, 3, 6], [1, 4], [2, 5]]
    assert Shard().about == {} and shards[2].about == {"shard": "3/3"}


def test_a_division_that_leaves_a_shard_nothing_is_refused() -> None:
    Shard.parsed("2/3").check(129, 64)
    Shard().check(0, 64)  # no questions at all are told of by whoever reads them
    with pytest.raises(
        ConfigurationError, match=r"128 questions make 2 units of at most 64,.* 3 shards.*Take 2"
    ):
        Shard.parsed("1/3").check(128, 64)
    with pytest.raises(ConfigurationError, match=r"one unit of .*Leave --shard out"):
        Shard.parsed("2/2").check(64, 64)


def test_errors_travel_in_plain_values() -> None:
    error = Failure.of(ConfigurationError("no model", hint="name one")).raised()
    assert isinstance(error, ConfigurationError) and error.hint == "name one"
    assert str(error).startswith("no model (on a worker at ") and str(error).endswith("). Name one.")
    other = Failure.of(KeyError("x")).raised()
    assert isinstance(other, ServiceError) and str(other).startswith("KeyError: 'x' (on a worker at ")


def test_workers_are_told_plain_values_only() -> None:
    with pytest.raises(ConfigurationError, match="plain values"):
        Job(lambda _: Things(), {"reader": object()})
