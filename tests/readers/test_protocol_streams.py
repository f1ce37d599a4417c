"""Blocking streams, stepped through from an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from surerag.readers.protocol import _in_thread
from surerag.types import Chunk


async def test_a_consumer_cancelled_in_mid_step_is_cancelled_and_the_stream_is_closed() -> None:
    waiting, closed = threading.Event(), threading.Event()
    go_on = threading.Event()

    def chunks() -> Iterator[Chunk]:
        try:
            waiting.set()
            go_on.wait(10)
            yield Chunk("late")
        finally:
            closed.set()

    async def consume() -> None:
        async for _ in _in_thread(chunks()):
            raise AssertionError("nothing arrives before the consumer is cancelled")

    consumer = asyncio.create_task(consume())
    await asyncio.to_thread(waiting.wait, 10)
    consumer.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert closed.is_set()
