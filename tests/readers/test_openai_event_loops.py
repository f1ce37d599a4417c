"""One reader over many event loops: each has connections of its own, and takes them along when it ends."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path

import pytest
from tests.servers.abandoning import sockets
from tests.servers.fake_openai import FakeOpenAI

from surerag.messages import SamplingParams
from surerag.readers.hosted import OpenAIReader

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts sockets as Linux does")


def few_left(before: int) -> bool:
    """Whether the sockets are gone; the server's ends of them go a moment later."""
    for _ in range(500):
        if sockets() - before <= 2:
            return True
        time.sleep(0.01)
    return False


def test_a_loop_for_each_call_leaves_nothing_behind(
    server: FakeOpenAI, recwarn: pytest.WarningsRecorder
) -> None:
    # What tests before this one left is none of its business.
    gc.collect()
    recwarn.clear()
    reader = OpenAIReader("toy", base_url=server.base_url)
    before = sockets()
    for _ in range(20):
        asyncio.run(reader.agenerate(["q"], SamplingParams()))
    assert few_left(before)
    gc.collect()
    assert not [str(warning.message) for warning in recwarn if "unclosed" in str(warning.message)]


def test_so_do_loops_that_are_closed_without_ado(server: FakeOpenAI) -> None:
    reader = OpenAIReader("toy", base_url=server.base_url)
    for _ in range(5):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(reader.agenerate(["q"], SamplingParams()))
        loop.close()
    assert len(reader._clients._in_loops) == 1


async def test_a_closed_reader_opens_again(server: FakeOpenAI) -> None:
    reader = OpenAIReader("toy", base_url=server.base_url)
    for _ in range(2):
        assert (await reader.agenerate(["q"], SamplingParams()))[0][0].trace is not None
        await reader.aclose()
    assert not reader._clients._in_loops


def test_a_reader_that_is_dropped_closes_its_connections(server: FakeOpenAI) -> None:
    before = sockets()
    for _ in range(10):
        OpenAIReader("toy", base_url=server.base_url).generate(["q"], SamplingParams())
    assert few_left(before)
