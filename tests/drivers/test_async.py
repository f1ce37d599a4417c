"""The event loop is never blocked, tasks merge, and what is cancelled is freed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from surerag.drivers import arun, arun_many
from surerag.effects import Program, Retrieve, StartGeneration, perform
from surerag.errors import ServiceError
from surerag.messages import Passage, SamplingParams
from surerag.readers.fake import FakeReader
from surerag.services import Services
from tests.drivers.local_reader import LocalReader, ask_once

label: ContextVar[str] = ContextVar("label", default="none")


async def test_concurrent_callers_of_a_local_model_share_batches() -> None:
    reader = LocalReader()
    services = Services(reader)
    prompts = [f"q{i}" for i in range(16)]
    assert await asyncio.gather(*(arun(ask_once(prompt), services) for prompt in prompts)) == prompts
    assert sum(size for _, size in reader.batches) == 16
    assert len(reader.batches) <= 2


async def test_the_loop_goes_on_while_a_local_model_works() -> None:
    reader = LocalReader()
    reader.gate.clear()
    task = asyncio.create_task(arun(ask_once("q"), Services(reader)))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    reader.gate.set()
    assert await task == "q"
    assert threading.get_ident() not in reader.threads


async def test_native_async_services_are_awaited_in_the_callers_context() -> None:
    class Corpus:
        def retrieve(self, query: str, k: int) -> list[Passage]:
            raise AssertionError("the blocking method was called")

        async def aretrieve(self, query: str, k: int) -> list[Passage]:
            await asyncio.sleep(0)
            return [Passage(label.get())]

    def program() -> Program[str]:
        [passage] = yield from perform(Retrieve("q", 1))
        return passage.text

    label.set("task")
    assert await arun(program(), Services(retriever=Corpus())) == "task"


async def test_services_that_only_block_work_in_a_thread_with_the_callers_context() -> None:
    seen: list[tuple[bool, str]] = []

    class Corpus:
        def retrieve(self, query: str, k: int) -> list[Passage]:
            seen.append((threading.current_thread() is threading.main_thread(), label.get()))
            return []

    def program() -> Program[None]:
        yield from perform(Retrieve("q", 1))

    label.set("task")
    await arun(program(), Services(retriever=Corpus()))
    assert seen == [(False, "task")]


async def test_cancelling_frees_what_was_begun() -> None:
    reader = FakeReader(lambda prompt: "one two three")
    reached = asyncio.Event()

    class Slow:
        def retrieve(self, query: str, k: int) -> list[Passage]:
            raise AssertionError

        async def aretrieve(self, query: str, k: int) -> list[Passage]:
            reached.set()
            await asyncio.Event().wait()
            return []

    def program() -> Program[None]:
        yield from perform(StartGeneration(["q"], 1, SamplingParams()))
        yield from perform(Retrieve("q", 1))

    task = asyncio.create_task(arun(program(), Services(reader, retriever=Slow())))
    await reached.wait()
    assert reader.open_handles == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reader.open_handles == 0


async def test_cancelling_while_a_local_model_begins_frees_it_too() -> None:
    reader = LocalReader(answer=lambda prompt: "one two three")
    reader.gate.clear()

    def program() -> Program[None]:
        yield from perform(StartGeneration(["q"], 1, SamplingParams()))

    task = asyncio.create_task(arun(program(), Services(reader)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    reader.gate.set()
    for _ in range(200):
        if ("begin", 1) in reader.batches and not reader.open:
            break
        await asyncio.sleep(0.01)
    assert reader.batches == [("begin", 1)]
    assert reader.open == set()


async def test_many_in_order_with_failures_in_place() -> None:
    reader = LocalReader()
    done: list[int] = []
    results = await arun_many(
        [ask_once("a"), ask_once("poison"), ask_once("b")],
        Services(reader),
        return_exceptions=True,
        progress=lambda n, total: done.append(n),
    )
    assert (results[0], results[2]) == ("a", "b")
    assert isinstance(results[1], ServiceError)
    assert done == [1, 2, 3]


async def test_a_generator_of_programs_is_read_only_as_there_is_room() -> None:
    started: list[int] = []
    release = asyncio.Event()

    class Slow:
        def retrieve(self, query: str, k: int) -> list[Passage]:
            raise AssertionError

        async def aretrieve(self, query: str, k: int) -> list[Passage]:
            await release.wait()
            return [Passage(query)]

    def program(query: str) -> Program[str]:
        [passage] = yield from perform(Retrieve(query, 1))
        return passage.text

    def programs() -> Iterator[Program[str]]:
        for i in range(10):
            started.append(i)
            yield program(f"q{i}")

    task = asyncio.create_task(arun_many(programs(), Services(retriever=Slow()), window=4))
    for _ in range(50):
        await asyncio.sleep(0)
    assert started == [0, 1, 2, 3]
    release.set()
    assert await task == [f"q{i}" for i in range(10)]
