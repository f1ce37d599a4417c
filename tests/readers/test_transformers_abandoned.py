"""A generation that nobody waits for stops at its next step, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from surerag.drivers.merging import queue_of
from surerag.effects import Generate
from surerag.errors import InputError
from surerag.messages import SamplingParams
from surerag.readers.threads import CancelledWorkError, cancel_when
from surerag.readers.local import TransformersReader
from tests.readers.tiny_models import tiny_model, tiny_tokenizer
from tests.waiting import eventually

LONG = SamplingParams(temperature=1.0, max_tokens=400, seed=4)
PROMPTS = ["Where was Ada born?", "The Orun"]


class Pace:
    """Lets the model make so many passes, then holds it until it is let go."""

    def __init__(self, passes: int) -> None:
        self.made = 0
        self.there, self.go = threading.Event(), threading.Event()
        self._passes = passes

    def __call__(self, *_: Any) -> None:
        self.made += 1
        if self.made == self._passes:
            self.there.set()
            self.go.wait(20)


@pytest.fixture
def pace() -> Iterator[Pace]:
    pace = Pace(5)
    hook = tiny_model("llama").register_forward_pre_hook(lambda *_: pace())
    yield pace
    pace.go.set()
    hook.remove()


@pytest.fixture
def reader() -> TransformersReader:
    made = TransformersReader(tiny_model("llama"), tiny_tokenizer())
    made._model.end_tokens = frozenset()
    made._engine._vocabulary = made._engine._vocabulary.__class__(
        made._engine._vocabulary.detokenizer, frozenset(), frozenset(), {}
    )
    return made


async def wait_for(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, 20)


async def test_a_cancelled_task_stops_its_generation(reader: TransformersReader, pace: Pace) -> None:
    task = asyncio.ensure_future(reader.agenerate(PROMPTS, LONG))
    await wait_for(pace.there)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pace.go.set()
    assert reader._lock.acquire(timeout=20)
    reader._lock.release()
    assert pace.made <= 6


async def test_a_merged_call_stops_once_all_who_asked_have_gone(
    reader: TransformersReader, pace: Pace
) -> None:
    queue = queue_of(reader)
    tasks = [asyncio.ensure_future(queue.aask(Generate((prompt,), LONG))) for prompt in PROMPTS]
    await wait_for(pace.there)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    pace.go.set()
    assert await asyncio.to_thread(eventually, lambda: not queue._leading.locked())
    assert pace.made <= 6
    # The queue serves whoever comes next.
    short = SamplingParams(max_tokens=3)
    assert (await queue.aask(Generate((PROMPTS[0],), short)))[0][0].completion_tokens == 3


async def test_one_who_still_waits_keeps_a_merged_call_going(reader: TransformersReader, pace: Pace) -> None:
    queue = queue_of(reader)
    sampling = SamplingParams(temperature=1.0, max_tokens=20, seed=4)
    tasks = [asyncio.ensure_future(queue.aask(Generate((prompt,), sampling))) for prompt in PROMPTS]
    await wait_for(pace.there)
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    pace.go.set()
    assert (await tasks[1])[0][0].completion_tokens == 20


def test_a_thread_is_stopped_from_another(reader: TransformersReader, pace: Pace) -> None:
    stop = threading.Event()
    outcome: list[BaseException] = []

    def ask() -> None:
        try:
            with cancel_when(stop.is_set):
                reader.generate(PROMPTS, LONG)
        except CancelledWorkError as error:
            outcome.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert pace.there.wait(20)
    stop.set()
    pace.go.set()
    asking.join(20)
    assert len(outcome) == 1
    assert pace.made <= 6
    assert reader.generate(PROMPTS[:1], SamplingParams(max_tokens=2))[0][0].completion_tokens == 2


def test_what_is_being_finished_can_be_cancelled(reader: TransformersReader) -> None:
    begun = reader.begin(PROMPTS, 2, LONG)
    held = weakref.ref(begun[0].state.block.memory.held(0).keys)
    pace = Pace(5)
    hook = tiny_model("llama").register_forward_pre_hook(lambda *_: pace())
    outcome: list[Exception] = []

    def finish() -> None:
        try:
            reader.finish(begun)
        except InputError as error:
            outcome.append(error)

    finishing = threading.Thread(target=finish)
    finishing.start()
    try:
        assert pace.there.wait(20)
        cancelling = threading.Thread(target=reader.cancel, args=(begun,))
        cancelling.start()
        assert eventually(lambda: all(item.state.unwanted for item in begun))
        pace.go.set()
        finishing.join(20)
        cancelling.join(20)
    finally:
        hook.remove()
    assert "cancelled" in str(outcome[0])
    assert pace.made <= 6
    outcome.clear()
    gc.collect()
    assert held() is None
    assert all(item.state.block is None for item in begun)
