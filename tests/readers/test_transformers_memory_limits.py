"""PartialGeneration generations survive when the device runs out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from surerag.errors import InputError, ServiceError
from surerag.messages import Generation, SamplingParams
from surerag.readers.local import TransformersReader
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

PROMPTS = ["Where was Ada born?", "The Orun", "A longer prompt about hills", "Who is the mayor of Velm?", "x"]
SAMPLED = SamplingParams(temperature=1.0, max_tokens=12, seed=8)
WHOLE_BATCH, ONE_BY_ONE = 32_768, 1


@dataclass
class Device:
    """A device that has room for so many rows, and for so many further passes."""

    rows: int = 1000
    passes: int = 100_000
    seen: list[int] = field(default_factory=list)

    def admit(self, module: Any, arguments: Any, keywords: dict[str, Any]) -> None:
        rows = len(keywords["input_ids"])
        if rows > self.rows or len(self.seen) >= self.passes:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.seen.append(rows)


@pytest.fixture
def device() -> Iterator[Device]:
    device = Device()
    hook = tiny_model("llama").register_forward_pre_hook(device.admit, with_kwargs=True)
    yield device
    hook.remove()


def reader_with(budget: int) -> TransformersReader:
    return TransformersReader(tiny_model("llama"), tiny_tokenizer(), max_batch_tokens=budget)


def whole(reader: TransformersReader) -> list[Generation]:
    return [row[0] for row in reader.generate(PROMPTS, SAMPLED)]


def test_a_later_batch_that_does_not_fit_costs_no_earlier_answer(device: Device) -> None:
    reader = reader_with(ONE_BY_ONE)
    expected = whole(reader)
    begun = reader.begin(PROMPTS, 2, SAMPLED)
    counted = reader.usage.completion_tokens
    device.seen.clear()
    reader.finish(begun)
    # Each of the five goes on alone; every step is one pass.
    needed = len(device.seen)
    total = reader.usage.completion_tokens - counted

    begun = reader.begin(PROMPTS, 2, SAMPLED)
    counted = reader.usage.completion_tokens
    device.seen.clear()
    device.passes = needed - 1
    with pytest.raises(ServiceError, match="single sequence"):
        reader.finish(begun)
    survived = reader.usage.completion_tokens - counted
    assert 0 < survived < total

    device.passes = 100_000
    device.seen.clear()
    found = reader.finish(begun)
    assert [answer.text for answer in found] == [answer.text for answer in expected]
    # Only the one that failed was grown, and nothing is counted twice.
    assert 0 < len(device.seen) < needed / 2
    assert reader.usage.completion_tokens - counted == total
    with pytest.raises(InputError, match="finished before"):
        reader.finish(begun)


def test_those_that_survived_can_be_asked_for_alone_and_the_rest_cancelled(device: Device) -> None:
    reader = reader_with(ONE_BY_ONE)
    expected = whole(reader)
    begun = reader.begin(PROMPTS, 2, SAMPLED)
    device.seen.clear()
    reader.finish(begun)
    needed = len(device.seen)
    begun = reader.begin(PROMPTS, 2, SAMPLED)
    device.seen.clear()
    device.passes = needed - 1
    with pytest.raises(ServiceError, match="single sequence"):
        reader.finish(begun)
    ended = [item.state.sequence.ended is not None for item in begun]
    assert ended.count(False) == 1
    for item, answer, survived in zip(begun, expected, ended, strict=True):
        if survived:
            assert reader.finish([item])[0].text == answer.text
    reader.cancel(begun)
    assert all(item.state.block is None for item in begun)


def test_the_half_that_is_done_makes_room_for_the_other(device: Device) -> None:
    reader = reader_with(WHOLE_BATCH)
    expected = whole(reader)
    begun = reader.begin(PROMPTS, 2, SAMPLED)
    block = begun[0].state.block
    held: list[int] = []

    def note(module: Any, arguments: Any, keywords: dict[str, Any]) -> None:
        held.append(len(block.memory.lengths))

    watch = tiny_model("llama").register_forward_pre_hook(note, with_kwargs=True)
    device.rows = 2
    found = reader.finish(begun)
    watch.remove()
    assert [answer.text for answer in found] == [answer.text for answer in expected]
    # All five rows wait at first; when the last ones grow, those that are done are no longer held.
    assert held[0] == 5
    assert held[-1] < 5


def test_a_copy_that_does_not_fit_leaves_the_memory_as_it_is(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_with(WHOLE_BATCH)
    expected = whole(reader)
    begun = reader.begin(PROMPTS, 2, SAMPLED)
    memory = begun[0].state.block.memory

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(type(memory), "select", full)
        reader.cancel(begun[:3])
    assert begun[3].state.block.memory is memory
    found = reader.finish(begun[3:])
    assert [answer.text for answer in found] == [answer.text for answer in expected[3:]]
