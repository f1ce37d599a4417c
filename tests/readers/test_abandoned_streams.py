"""Streams that are dropped: closed at once, and never by a finaliser inside the HTTP client's lock."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import Script

from surerag.errors import ServiceError
from surerag.messages import SamplingParams
from surerag.readers import closing
from surerag.readers.closing import (
    aawait_closed,
    await_closed,
    close_in_loop_when_dropped,
    close_when_dropped,
)
from surerag.readers.hosted import OpenAIReader
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
TEXT = "one two three four five six seven eight nine ten " * 5
TIMES = {"core": 120, "llama-index": 40, "langchain": 25}
"""Times each way of abandoning a stream, of 10, 10 and 18: over 2,000 streams in all."""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts sockets as Linux does")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", TIMES)
def test_abandoned_streams_hang_nothing_and_leave_no_sockets(family: str) -> None:
    with FakeOpenAI(Script(lambda _: TEXT), hold_after=24) as server:
        done = subprocess.run(
            [sys.executable, "-m", "tests.servers.abandoning", family, str(TIMES[family]), server.base_url],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(ROOT)])},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-6000:]}"


@pytest.fixture
def collecting() -> Iterator[None]:
    usual = gc.get_threshold()
    gc.set_threshold(1)
    yield
    gc.set_threshold(*usual)


@pytest.mark.usefixtures("collecting")
@pytest.mark.timeout(180)
def test_streams_that_are_none_hang_nothing_either() -> None:
    bodies = (b"", b"data: {not json\n\n", b"data: null\n\n", b"data: [DONE]\n\n")
    with FakeOpenAI() as server:
        reader = OpenAIReader("toy", base_url=server.base_url, retries=2, max_wait=0.001)
        for body in bodies * 12:
            server.fail(200, body=body, headers={"Content-Type": "text/event-stream"}, times=3)
            with pytest.raises(ServiceError):
                reader.begin(["q"], 2, SamplingParams())
            server._failures.clear()


class Handle:
    """What a caller holds."""


def test_what_is_open_is_closed_once_in_another_thread_when_its_handle_goes() -> None:
    threads: list[int] = []
    closed = threading.Event()

    def close() -> None:
        threads.append(threading.get_ident())
        closed.set()

    handle = Handle()
    hang_up = close_when_dropped(handle, close)
    assert not threads
    del handle
    assert closed.wait(timeout=60)
    hang_up()
    # What comes next has waited for the one before.
    after = threading.Event()
    close_when_dropped(Handle(), after.set)
    assert after.wait(timeout=60)
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_one_that_fails_to_close_leaves_the_others_closed() -> None:
    def fail() -> None:
        raise OSError("gone")

    close_when_dropped(Handle(), fail)
    closed = threading.Event()
    close_when_dropped(Handle(), closed.set)
    assert closed.wait(timeout=60)


def test_what_will_not_close_holds_up_nothing_else() -> None:
    class Handle:
        pass

    silent, closed = threading.Event(), threading.Event()
    hang_up = close_when_dropped(handle := Handle(), lambda: silent.wait(300))
    del handle
    close_when_dropped(Handle(), closed.set)
    try:
        assert closed.wait(60)
        await_closed(hang_up())
        assert not silent.is_set()
    finally:
        silent.set()


def test_whoever_hung_up_may_wait_until_it_is_closed() -> None:
    closed: list[int] = []

    def close() -> None:
        time.sleep(0.1)
        closed.append(1)

    hang_up = close_when_dropped(Handle(), close)
    assert hang_up() is None  # it was dropped before
    handle = Handle()
    await_closed(close_when_dropped(handle, close)())
    assert eventually(lambda: closed == [1, 1])


async def test_whoever_hung_up_in_a_loop_may_wait_as_well() -> None:
    closed: list[int] = []

    async def close() -> None:
        await asyncio.sleep(0.05)
        closed.append(1)

    handle = Handle()
    hang_up = close_in_loop_when_dropped(handle, close)
    await aawait_closed(hang_up())
    assert closed == [1]
    assert hang_up() is None


def loop_that_ends(close: Callable[[], Coroutine[Any, Any, None]], turns: int) -> asyncio.AbstractEventLoop:
    """Run an event loop that drops something, to be closed by this, so many turns before it ends."""

    async def pieces() -> AsyncIterator[None]:
        handle = Handle()
        close_in_loop_when_dropped(handle, close)
        try:
            yield
        finally:
            # Here is where a loop that ends closes the generators that were left.
            for _ in range(turns):
                await asyncio.sleep(0)

    async def leave() -> asyncio.AbstractEventLoop:
        left.append(pieces())
        await anext(left[0])
        return asyncio.get_running_loop()

    left: list[AsyncIterator[None]] = []
    return asyncio.run(leave())


@pytest.mark.parametrize("turns", range(6))
def test_what_is_dropped_while_its_loop_ends_leaves_no_task(turns: int) -> None:
    async def close() -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    assert not asyncio.all_tasks(loop_that_ends(close, turns))


def test_what_takes_too_long_to_close_does_not_keep_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "_MOMENT", 0.1)
    cancelled = threading.Event()

    async def close() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    assert not asyncio.all_tasks(loop_that_ends(close, 0))
    assert cancelled.is_set()
