"""As many requests at once as the server takes, within the user's limit."""

from __future__ import annotations

import asyncio
import heapq
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.servers.fake_openai import FakeOpenAI

from surerag.errors import TransientServiceError
from surerag.messages import SamplingParams
from surerag.readers.hosted import OpenAIReader, flow
from surerag.readers.hosted.flow import AsyncSlots, Flow
from surerag.readers.hosted.retry import OverloadedError

MANY = [f"question {number}" for number in range(60)]


def reader_of(server: FakeOpenAI, **settings: Any) -> OpenAIReader:
    settings = {"retries": 60, "max_concurrency": 16, "logprobs": False, **settings}
    return OpenAIReader("toy", base_url=server.base_url, **settings)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_server_that_takes_four_at_a_time_turns_few_away(server: FakeOpenAI, asynchronous: bool) -> None:
    server.become(most_at_once=4, seconds=0.1)
    reader = reader_of(server)
    sampling = SamplingParams(max_tokens=4)
    asked = asyncio.run(reader.agenerate(MANY, sampling)) if asynchronous else reader.generate(MANY, sampling)
    assert [len(row) for row in asked] == [1] * len(MANY)
    # Sixteen at once would have twelve turned away in every round.
    assert server.turned_away < len(MANY) / 2
    assert reader._clients.flow.limit <= 8


def test_a_server_that_takes_all_is_asked_for_all(server: FakeOpenAI) -> None:
    server.pause()
    reader = reader_of(server)
    asking = threading.Thread(target=reader.generate, args=(MANY[:16], SamplingParams(max_tokens=2)))
    asking.start()
    server.wait_for(16)
    server.release()
    asking.join(60)
    assert server.turned_away == 0
    assert reader._clients.flow.limit == 16


class Clock:
    """Tells the time that it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(flow, "time", clock)
    return clock


@contextmanager
def taking(paced: Flow, clock: Clock, seconds: float) -> Iterator[None]:
    with paced.observed():
        clock.now += seconds
        yield


def answered(paced: Flow, clock: Clock, seconds: float, times: int) -> None:
    for _ in range(times):
        with taking(paced, clock, seconds):
            pass


def test_a_refusal_halves_and_good_answers_raise_by_one_a_round(clock: Clock) -> None:
    paced = Flow(16)
    with pytest.raises(TransientServiceError), taking(paced, clock, 1):
        raise OverloadedError("too many", refused=True)
    assert paced.limit == 8
    answered(paced, clock, 1, 9)
    assert paced.limit == 9
    answered(paced, clock, 1, 300)
    assert paced.limit == 16


def test_refusals_of_one_burst_count_once(clock: Clock) -> None:
    paced = Flow(16)
    burst = [paced.observed() for _ in range(12)]
    for request in burst:
        request.__enter__()
    clock.now += 1
    for request in burst:
        refusal = OverloadedError("too many", refused=True)
        assert not request.__exit__(type(refusal), refusal, None)
    assert paced.limit == 8


def test_a_time_out_is_no_refusal(clock: Clock) -> None:
    paced = Flow(4)
    with pytest.raises(OverloadedError), taking(paced, clock, 1):
        raise OverloadedError("did not answer in time")
    assert paced.limit == 4


def test_answers_that_come_later_and_later_lower_it_until_they_are_usual(clock: Clock) -> None:
    paced = Flow(16)
    answered(paced, clock, 1, 60)
    assert paced.limit == 16
    answered(paced, clock, 6, 8)
    assert paced.limit < 12
    assert paced.limit >= 1
    # Longer answers, not a server out of breath: they become what is usual.
    answered(paced, clock, 6, 400)
    assert paced.limit == 16


def simulated(
    clock: Clock, seconds: Callable[[int], float], slow_from: int, answers: int = 3000
) -> list[int]:
    """Return the limit after each answer of a server that, once slow, takes longer for more at a time."""
    paced, rng = Flow(16), random.Random(1)
    under_way: list[tuple[float, float, float]] = []
    limits: list[int] = []
    for done in range(answers):
        while len(under_way) < paced.limit:
            takes = seconds(rng.randrange(10)) * (max(1, len(under_way) / 3) if done >= slow_from else 1)
            heapq.heappush(under_way, (clock.now + takes, clock.now, takes))
        clock.now, began, took = heapq.heappop(under_way)
        paced._answered(began, took)
        limits.append(paced.limit)
    return limits


def test_long_answers_among_short_ones_are_no_slow_server_and_a_slow_one_is_noticed(clock: Clock) -> None:
    mixed = simulated(clock, lambda dice: 1.0 if dice == 0 else 0.05, slow_from=10_000)
    assert sum(mixed[1000:]) / len(mixed[1000:]) > 15
    slow = simulated(clock, lambda _: 1.0, slow_from=1000)
    assert min(slow[:1000]) == 16
    assert min(slow[1000:1050]) < 16


def test_it_never_falls_below_one(clock: Clock) -> None:
    paced = Flow(2)
    for _ in range(9):
        clock.now += 1
        with pytest.raises(OverloadedError), taking(paced, clock, 1):
            raise OverloadedError("too many", refused=True)
    assert paced.limit == 1


async def test_a_task_that_is_cancelled_while_it_waits_leaves_its_turn_to_the_next() -> None:
    slots = AsyncSlots(Flow(1))
    entered: list[str] = []
    go = asyncio.Event()

    async def one(name: str) -> None:
        async with slots:
            entered.append(name)
            await go.wait()

    first = asyncio.ensure_future(one("first"))
    await asyncio.sleep(0)
    second, third = asyncio.ensure_future(one("second")), asyncio.ensure_future(one("third"))
    await asyncio.sleep(0)
    second.cancel()
    go.set()
    await asyncio.gather(first, third)
    assert entered == ["first", "third"]
    async with slots:
        entered.append("again")
    assert entered[-1] == "again"


async def test_a_task_that_is_cancelled_as_it_is_given_its_turn_gives_it_back() -> None:
    slots = AsyncSlots(Flow(1))
    await slots.__aenter__()
    waiting = asyncio.ensure_future(slots.__aenter__())
    await asyncio.sleep(0)
    await slots.__aexit__()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(5), slots:
        pass


async def test_who_pauses_leaves_the_turn_to_others_and_breaking_off_loses_none() -> None:
    slots = AsyncSlots(Flow(1))
    for broken_off in (False, True):
        gone = asyncio.Event()

        async def pausing(gone: asyncio.Event = gone) -> None:
            async with slots, slots.left():
                gone.set()
                await asyncio.sleep(0.05)

        pause = asyncio.ensure_future(pausing())
        await gone.wait()
        async with asyncio.timeout(5), slots:
            if broken_off:
                pause.cancel()
                await asyncio.gather(pause, return_exceptions=True)
        await asyncio.gather(pause, return_exceptions=True)
        assert slots._taken == 0


def test_connections_are_kept_for_as_many_as_may_be_under_way(server: FakeOpenAI) -> None:
    reader = reader_of(server, max_concurrency=40)
    pool: Any = reader._clients.client()._client._transport
    assert pool._pool._max_keepalive_connections == 40
    assert pool._pool._max_connections >= 160
