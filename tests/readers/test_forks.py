"""A process that is forked from one that has asked already, as web servers fork their workers."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable

import pytest
from tests.servers.fake_openai import FakeOpenAI

from surerag import OpenAIReader, SamplingParams
from surerag.drivers import arun
from surerag.readers.closing import close_when_dropped
from surerag.services import Services
from tests.drivers.local_reader import LocalReader, ask_once
from tests.waiting import eventually


class Handle:
    """What a caller holds."""


pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def in_child(work: Callable[[], object]) -> int:
    """Do some work in a forked process; return its exit code, or -9 if it hangs."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            os._exit(2)
    ended: list[int] = []

    def over() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        ended.extend([os.waitstatus_to_exitcode(status)] if pid else [])
        return bool(pid)

    if not eventually(over):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return (ended or [-9])[0]


def test_it_closes_what_it_opens() -> None:
    close_when_dropped(Handle(), int)

    def closes() -> bool:
        closed = threading.Event()
        close_when_dropped(Handle(), closed.set)
        return closed.wait(timeout=60)

    assert in_child(closes) == 0


def test_it_asks_a_server_over_connections_of_its_own(server: FakeOpenAI) -> None:
    reader = OpenAIReader("toy", base_url=server.base_url)

    def asks() -> bool:
        asked = reader.generate(["q"], SamplingParams())
        return asyncio.run(reader.agenerate(["q"], SamplingParams())) == asked

    assert asks()
    parents = {request.port for request in server.requests}
    n = len(server.requests)
    assert in_child(asks) == 0
    childs = {request.port for request in server.requests[n:]}
    assert len(childs) == 2
    assert not childs & parents
    assert asks()
    assert server.requests[-2].port in parents  # which stayed open


def test_its_limit_on_requests_is_free(server: FakeOpenAI) -> None:
    reader = OpenAIReader("toy", base_url=server.base_url, max_concurrency=1)
    server.pause()
    asking = threading.Thread(target=reader.generate, args=(["q"], SamplingParams()))
    asking.start()
    assert eventually(lambda: server.requests)

    def asks() -> bool:
        return bool(reader.generate(["q"], SamplingParams()))

    threading.Timer(0.3, server.release).start()
    assert in_child(asks) == 0
    asking.join()


def test_it_asks_a_local_model() -> None:
    services = Services(LocalReader())

    def asks() -> bool:
        return asyncio.run(arun(ask_once("q"), services)) == "q"

    assert asks()
    assert in_child(asks) == 0
