"""Several requests at once: order, limits, context, and what a failure stops."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from surerag.readers.fan_out import aeach, each

WHO = contextvars.ContextVar("who", default="nobody")


@pytest.mark.parametrize("at_once", [1, 3, 50])
def test_results_come_in_order_under_the_limit_in_the_callers_context(at_once: int) -> None:
    WHO.set("me")
    lock, under_way, peak = threading.Lock(), 0, 0

    def call(item: int) -> tuple[int, str]:
        nonlocal under_way, peak
        with lock:
            under_way += 1
            peak = max(peak, under_way)
        try:
            return item * item, WHO.get()
        finally:
            with lock:
                under_way -= 1

    assert each(call, range(20), at_once) == [(item * item, "me") for item in range(20)]
    assert peak <= at_once
    assert each(call, [], at_once) == []


def test_one_at_a_time_stays_in_the_callers_thread() -> None:
    here = threading.get_ident()
    assert each(lambda _: threading.get_ident(), [1, 2, 3], 1) == [here] * 3
    assert each(lambda _: threading.get_ident(), [1], 8) == [here]


def test_after_a_failure_no_further_call_is_started() -> None:
    failed, started = threading.Event(), []

    def call(item: int) -> None:
        started.append(item)
        if item == 0:
            failed.set()
            raise ValueError("no")
        failed.wait(5)
        threading.Event().wait(0.05)

    with pytest.raises(ValueError, match="no"):
        each(call, range(100), 2)
    assert len(started) < 10


async def test_async_calls_keep_to_their_turn_and_a_failure_cancels_the_others() -> None:
    peak = under_way = 0
    cancelled = []

    async def call(item: int) -> int:
        nonlocal peak, under_way
        under_way += 1
        peak = max(peak, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return item

    assert await aeach(call, range(9), asyncio.Semaphore(3)) == list(range(9))
    assert peak == 3

    async def fail(item: int) -> None:
        if item == 2:
            raise ValueError("no")
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(item)
            raise

    with pytest.raises(ValueError, match="no"):
        await aeach(fail, range(5), asyncio.Semaphore(3))
    # Those behind, which get the turn of the one that failed, are not started.
    assert cancelled == [0, 1]
