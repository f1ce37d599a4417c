"""Several calls at once, in threads or as tasks: the first failure stops them, and contexts stay apart."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from contextvars import ContextVar

import pytest

from surerag.readers.calls import AWAITING, BLOCKING, Blocking, run_blocking

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def run(calls: Blocking, *arguments: object) -> list[str]:
    async def each() -> tuple[list[str], str]:
        return await calls.each(*arguments), tenant.get()  # type: ignore[arg-type]

    found, left = (
        asyncio.run(each()) if calls is AWAITING else contextvars.copy_context().run(run_blocking, each())
    )
    return [*found, left]


@pytest.mark.parametrize("calls", [BLOCKING, AWAITING])
@pytest.mark.parametrize("limit", [1, 2])
def test_after_a_failure_no_further_call_starts(calls: Blocking, limit: int) -> None:
    started: list[int] = []
    failed = threading.Event()

    async def call(number: int) -> str:
        started.append(number)
        if number == 1 - (limit == 1):
            failed.set()
            raise ZeroDivisionError
        if calls is BLOCKING:
            failed.wait(10)
            time.sleep(0.2)  # noqa: ASYNC251 - the coroutine runs in a thread
        else:
            await asyncio.sleep(10)
        return ""

    with pytest.raises(ZeroDivisionError):
        run(calls, call, range(10), limit)
    assert sorted(started) == list(range(limit))


@pytest.mark.parametrize("calls", [BLOCKING, AWAITING])
@pytest.mark.parametrize("limit", [1, 2])
def test_each_of_several_calls_has_its_own_context_whatever_the_limit(calls: Blocking, limit: int) -> None:
    async def call(name: str) -> str:
        before = tenant.get()
        tenant.set(name)
        return before

    assert run(calls, call, ["ada", "bo", "cy"], limit) == ["nobody"] * 4
    assert run(calls, call, [], limit) == ["nobody"]


@pytest.mark.parametrize("calls", [BLOCKING, AWAITING])
def test_a_single_call_runs_in_its_callers_context(calls: Blocking) -> None:
    async def call(name: str) -> str:
        tenant.set(name)
        return name

    async def each() -> str:
        await calls.each(call, ["ada"], 4)
        return tenant.get()

    assert (
        asyncio.run(each()) if calls is AWAITING else contextvars.copy_context().run(run_blocking, each())
    ) == "ada"
