"""A process that is forked from one that has asked already, as web servers fork their workers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from surerag.drivers import arun
from surerag.services import Services
from tests.drivers.local_reader import LocalReader, ask_once
from tests.waiting import eventually

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


def test_it_asks_a_local_model() -> None:
    services = Services(LocalReader())

    def asks() -> bool:
        return asyncio.run(arun(ask_once("q"), services)) == "q"

    assert asks()
    assert in_child(asks) == 0
