"""Blocking streams, stepped through from an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from surerag.messages import Chunk
from surerag.readers.protocol import _stepped


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
        async for _ in _stepped(chunks()):
            raise AssertionError("nothing arrives before the consumer is cancelled")

    consumer = asyncio.create_task(consume())
    await asyncio.to_thread(waiting.wait, 10)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert not closed.is_set()
    go_on.set()
    assert await asyncio.to_thread(closed.wait, 10)
