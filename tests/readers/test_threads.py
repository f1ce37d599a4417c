"""Blocking calls in threads: left behind when cancelled, and stopped at their next step."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from surerag.messages import Chunk
from surerag.readers.calls import (
    CancelledWorkError,
    cancel_when,
    close_in_loop_when_dropped,
    in_thread,
    raise_if_cancelled,
    start_in_thread,
)
from surerag.readers.protocol import _stepped
from tests.waiting import eventually

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def test_a_call_has_its_callers_context_and_returns_its_result_or_error() -> None:
    tenant.set("ada")
    assert start_in_thread(tenant.get).result(10) == "ada"
    with pytest.raises(ZeroDivisionError):
        start_in_thread(lambda: 1 / 0).result(10)


def test_work_stops_at_its_next_step_once_nobody_waits() -> None:
    gone = threading.Event()
    with cancel_when(gone.is_set), cancel_when(lambda: False):
        raise_if_cancelled()
        gone.set()
        with pytest.raises(CancelledWorkError):
            raise_if_cancelled()
    raise_if_cancelled()


async def test_a_cancelled_task_leaves_its_thread_behind_and_stops_it() -> None:
    stopped = threading.Event()

    def work() -> None:
        try:
            while True:
                raise_if_cancelled()
                time.sleep(0.001)
        except CancelledWorkError:
            stopped.set()
            raise

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await in_thread(work)
    assert await asyncio.to_thread(stopped.wait, 10)


async def test_what_stands_behind_a_dropped_handle_is_closed_in_its_loop() -> None:
    class Handle:
        """What a caller holds."""

    closed: list[Any] = []

    async def aclose() -> None:
        closed.append(asyncio.get_running_loop())

    handle = Handle()
    close_in_loop_when_dropped(handle, aclose)
    del handle
    await asyncio.sleep(0.05)
    assert closed == [asyncio.get_running_loop()]


async def test_a_consumer_cancelled_in_mid_step_is_cancelled_and_the_stream_is_closed() -> None:
    waiting, closed, go_on = threading.Event(), threading.Event(), threading.Event()

    def chunks() -> Iterator[Chunk]:
        try:
            waiting.set()
            go_on.wait(10)
            yield Chunk("late")
        finally:
            closed.set()

    async def consume() -> None:
        async for _ in _stepped(chunks()):
            raise AssertionError("nothing arrives before the consumer is cancelled")

    consumer = asyncio.create_task(consume())
    await asyncio.to_thread(waiting.wait, 10)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert not closed.is_set()
    go_on.set()
    assert eventually(closed.is_set)
