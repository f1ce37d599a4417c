"""How many actors there are, and whether a cluster has room for them."""

from __future__ import annotations

import pytest

from surerag.errors import ConfigurationError
from surerag.scale.engine_cluster import Actors, check_room, room
from tests.scale.clusters import ray


@pytest.mark.parametrize("text", ["", "0", "3:2", "a", "1:", ":2", "-1", "1:2:3", "2.5"])
def test_what_is_no_number_of_actors_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="actors"):
        Actors.parsed(text)


@pytest.mark.parametrize(("cpus", "gpus"), [(0, 0), (-1, 1), (1, -1), (1, 1.5)])
def test_what_an_actor_cannot_take_is_refused(cpus: float, gpus: float) -> None:
    with pytest.raises(ConfigurationError, match="an actor"):
        Actors.parsed("1", cpus=cpus, gpus=gpus)


def test_an_actor_fits_on_one_node_or_not_at_all() -> None:
    assert room(ray((3, 0), (3, 0)), Actors(cpus=4)) == 0
    assert room(ray((4, 1), (9, 3)), Actors(cpus=2, gpus=1)) == 1 + 3
    assert room(ray((1, 1)), Actors(cpus=0.1, gpus=0.1)) == 10
    assert room(ray((0, 2)), Actors(cpus=0, gpus=0.5)) == 4
    told = r"2 to 8 actors of 4 CPUs and 1 GPUs: at least 2 must fit, .* room for 1: .* 6 CPUs and 1 GPUs"
    with pytest.raises(ConfigurationError, match=told):
        check_room(ray((4, 1), (2, 0)), Actors(2, 8, 4, 1))
