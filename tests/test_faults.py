"""Many users at once, a server that fails, quotes and writes tags: everybody gets what he would get alone."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.faults import CLIENTS, KINDS, PLAIN, kind_of, main, run


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("client", CLIENTS)
def test_no_answer_differs_from_what_the_same_question_gets_alone(client: str) -> None:
    outcome = asyncio.run(run(client, requests=100, concurrency=50, bad=0.3, limit=60))
    assert (outcome.hung, outcome.lost, outcome.different) == ([], 0, [])
    assert outcome.kinds["answer"] > 70
    assert outcome.grown < 100


def test_every_kind_has_its_turn() -> None:
    kinds = [kind_of(number, 0.3) for number in range(10_000)]
    assert set(kinds) == {*KINDS, PLAIN}
    assert kinds.count(PLAIN) == 7_000


@pytest.mark.filterwarnings("ignore")
def test_the_command_says_what_became_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-n", "10", "--concurrency", "5", "--clients", "core"]) == 0
    assert "0 hung, 0 lost, 0 different from alone" in capsys.readouterr().out
