"""Blocking calls that are cancelled, and what they must leave alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

SOON = 20.0
"""Seconds within which what does not block has happened, on a busy machine."""


class Gate:
    """Where a call blocks until it is let through."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()

    def wait(self) -> None:
        """Block, though not for ever: a test that fails also ends."""
        self.entered.set()
        self.released.wait(60)


async def cancelled_without_trace(call: Callable[[], Awaitable[object]], gate: Gate) -> None:
    """Cancel a call that blocks at a gate: it ends at once, and the loop's own pool of threads stays free."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    task = asyncio.ensure_future(call())
    while not gate.entered.is_set():
        assert not task.done(), await task
        await asyncio.sleep(0.005)
    task.cancel()
    try:
        done, _ = await asyncio.wait([task], timeout=SOON)
        assert done and task.cancelled()
        assert await asyncio.wait_for(asyncio.to_thread(str, "free"), SOON) == "free"
    finally:
        gate.released.set()
