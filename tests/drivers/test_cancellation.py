"""A cancelled call ends at once, frees what it began, and leaves nothing that later calls wait for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from surerag.drivers import arun, arun_many, astream, run
from surerag.effects import ContinueGeneration, Generate, Program, Retrieve, StartGeneration, perform
from surerag.messages import Chunk, Generation, Passage, Prompt, SamplingParams
from surerag.readers.fake import FakeReader
from surerag.readers.protocol import BaseReader, BegunGeneration, Capabilities
from surerag.services import Services

SOON = 15.0
"""Seconds within which what does not block has happened, on a busy machine."""


class Blocking:
    """A retriever that blocks until it is released."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()

    def retrieve(self, query: str, k: int) -> list[Passage]:
        self.entered.set()
        self.released.wait(60)
        return [Passage(query)]


class BlockingReader(BaseReader):
    """A reader without async of its own, that blocks where it is told to."""

    name = "blocking"
    capabilities = Capabilities(logprobs=False, entropy=None, begin="native", stream=True)

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()
        self.open: set[BegunGeneration] = set()

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        self._wait()
        return [[Generation(str(prompt))] for prompt in prompts]

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[BegunGeneration]:
        self._wait()
        self.open = {Open(self, str(prompt)) for prompt in prompts}
        return list(self.open)

    def stream(self, prompt: Prompt, sampling: SamplingParams) -> Iterator[Chunk]:
        yield Chunk("first ")
        self._wait()
        yield Chunk("second", Generation("first second"))

    def _wait(self) -> None:
        self.entered.set()
        self.released.wait(60)


class Open(BegunGeneration):
    """Counts as open until it is closed."""

    def __init__(self, reader: BlockingReader, text: str) -> None:
        super().__init__(Generation(text))
        self.reader = reader

    def close(self) -> None:
        self.reader.open.discard(self)


def look_up() -> Program[str]:
    [passage] = yield from perform(Retrieve("q", 1))
    return passage.text


@contextmanager
def quickly() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < SOON


def test_a_timeout_is_a_timeout_and_the_loop_ends_at_once() -> None:
    corpus = Blocking()
    with quickly(), pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(arun(look_up(), Services(retriever=corpus)), 0.1))
    corpus.released.set()


async def test_a_cancelled_task_is_cancelled() -> None:
    corpus = Blocking()
    task = asyncio.create_task(arun(look_up(), Services(retriever=corpus)))
    await asyncio.to_thread(corpus.entered.wait, 10)
    task.cancel()
    with quickly(), pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    corpus.released.set()


async def test_later_calls_do_not_wait_for_those_that_were_cancelled() -> None:
    stuck, free = Blocking(), Blocking()
    free.released.set()
    services = Services(retriever=stuck)
    with quickly():
        many = [arun(look_up(), services) for _ in range(40)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*many), 0.2)
        assert await arun(look_up(), Services(retriever=free)) == "q"
    stuck.released.set()


async def test_what_a_blocking_reader_began_for_a_cancelled_call_is_freed() -> None:
    reader = BlockingReader()

    def program() -> Program[None]:
        yield from perform(StartGeneration(["q"], 1, SamplingParams()))

    task = asyncio.create_task(arun(program(), Services(reader)))
    await asyncio.to_thread(reader.entered.wait, 10)
    task.cancel()
    with quickly(), pytest.raises(asyncio.CancelledError):
        await task
    reader.released.set()
    for _ in range(500):
        if not reader.open:
            break
        await asyncio.sleep(0.01)
    assert not reader.open


async def test_what_was_begun_before_is_freed_when_another_service_blocks() -> None:
    reader, corpus = FakeReader(lambda prompt: "one two three"), Blocking()

    def program() -> Program[None]:
        [begun] = yield from perform(StartGeneration(["q"], 1, SamplingParams()))
        yield from perform(Retrieve("q", 1))
        yield from perform(ContinueGeneration(begun))

    with quickly(), pytest.raises(TimeoutError):
        await asyncio.wait_for(arun(program(), Services(reader, retriever=corpus)), 0.2)
    assert reader.open_handles == 0
    corpus.released.set()


async def test_all_that_was_begun_is_freed_though_a_second_cancellation_comes_while_the_first_closes() -> (
    None
):
    class SlowlyClosed(BegunGeneration):
        async def aclose(self) -> None:
            closing.set()
            await asyncio.sleep(0.05)
            closed.append(self)

    class Reader(FakeReader):
        def begin(
            self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
        ) -> list[BegunGeneration]:
            return [SlowlyClosed(Generation(str(prompt))) for prompt in prompts]

    closing, closed = asyncio.Event(), list[BegunGeneration]()
    corpus = Blocking()

    def program() -> Program[None]:
        yield from perform(StartGeneration(["q", "r"], 1, SamplingParams()))
        yield from perform(Retrieve("q", 1))

    task = asyncio.create_task(arun(program(), Services(Reader(), retriever=corpus)))
    await asyncio.to_thread(corpus.entered.wait, 10)
    task.cancel()
    await closing.wait()
    task.cancel()
    with quickly(), pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(500):
        if len(closed) == 2:
            break
        await asyncio.sleep(0.01)
    assert len(closed) == 2
    corpus.released.set()


class _FailsToClose(BegunGeneration):
    def __init__(self, text: str, closed: list[str]) -> None:
        super().__init__(Generation(text))
        self.closed = closed

    def close(self) -> None:
        self.closed.append(self.partial.text)
        raise ConnectionError("reset")

    async def aclose(self) -> None:
        await asyncio.sleep(0.01)
        self.close()


class _Leaves(FakeReader):
    """A reader whose begun generations fail to close."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: list[str] = []

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[BegunGeneration]:
        return [_FailsToClose(str(prompt), self.closed) for prompt in prompts]


def _begin_two() -> Program[str]:
    yield from perform(StartGeneration(["q", "r"], 1, SamplingParams()))
    return "result"


@pytest.mark.parametrize("twin", [run, lambda *arguments: asyncio.run(arun(*arguments))])
def test_a_failure_to_close_loses_neither_the_result_nor_what_else_was_begun(
    twin: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    reader = _Leaves()
    assert twin(_begin_two(), Services(reader)) == "result"
    assert reader.closed == ["q", "r"]
    assert caplog.text.count("could not be closed: ConnectionError: reset") == 2


def test_all_is_closed_though_the_event_loop_ends_first() -> None:
    reader = _Leaves()

    async def main() -> None:
        task = asyncio.create_task(arun(_begin_two(), Services(reader)))
        await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(main())
    assert "r" in reader.closed


async def test_a_stream_that_blocks_is_left_at_once_and_closed_later() -> None:
    reader = BlockingReader()

    def program() -> Program[str]:
        [[answer]] = yield from perform(Generate(["q"], SamplingParams(), answer=True))
        return answer.text

    async def read() -> None:
        async for _ in await astream(program(), Services(reader)):
            pass

    with quickly(), pytest.raises(TimeoutError):
        await asyncio.wait_for(read(), 0.2)
    reader.released.set()


async def test_of_many_programs_none_goes_on_after_a_cancellation() -> None:
    corpus = Blocking()
    ended: list[str] = []

    def program(name: str) -> Program[None]:
        try:
            yield from perform(Retrieve("q", 1))
        finally:
            ended.append(name)

    many = arun_many([program(name) for name in "abc"], Services(retriever=corpus))
    with quickly(), pytest.raises(TimeoutError):
        await asyncio.wait_for(many, 0.2)
    assert sorted(ended) == ["a", "b", "c"]
    corpus.released.set()
