"""Ten thousand prompts in one call: full batches, little padding, and the memory of one batch at a time."""

from __future__ import annotations

import random
import weakref
from typing import Any

import pytest
import torch

from surerag.messages import SamplingParams
from surerag.readers.local import TransformersReader
from surerag.readers.local.forking_memory import ForkingMemory
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

MANY, BUDGET, FURTHER = 10_000, 16_384, 2


def prompts() -> list[str]:
    rng = random.Random(6)
    return ["".join(rng.choices("bdfgklmn", k=rng.randint(4, 40))) for _ in range(MANY)]


def test_a_long_list_streams_through(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = prompts()
    lengths = [len(ids) for ids in tiny_tokenizer()(asked)["input_ids"]]
    alive: weakref.WeakSet[ForkingMemory] = weakref.WeakSet()
    fed: list[tuple[int, int, int]] = []
    held: list[int] = []
    start, feed = ForkingMemory.__init__, ForkingMemory.feed_until

    def starting(memory: ForkingMemory, *arguments: Any, **keywords: Any) -> None:
        start(memory, *arguments, **keywords)
        alive.add(memory)

    def feeding(memory: ForkingMemory, until: list[int], tokens: torch.Tensor, *others: Any) -> Any:
        found = feed(memory, until, tokens, *others)
        real = sum(until) if memory.slots == tokens.shape[1] else len(until)
        fed.append((*tokens.shape, real))  # type: ignore[arg-type]  # rows, steps, real tokens
        held.append(sum(len(each.lengths) * each.slots for each in alive))
        return found

    monkeypatch.setattr(ForkingMemory, "__init__", starting)
    monkeypatch.setattr(ForkingMemory, "feed_until", feeding)
    reader = TransformersReader(tiny_model("llama"), tiny_tokenizer(), max_batch_tokens=BUDGET)
    fed.clear()
    found = reader.generate(asked, SamplingParams(max_tokens=FURTHER))
    passes, most = fed[:], max(held)
    assert [len(row) for row in found] == [1] * MANY
    places = random.Random(1).sample(range(MANY), 20)
    for place in places:
        (alone,) = reader.generate([asked[place]], SamplingParams(max_tokens=FURTHER))
        assert alone[0].text == found[place][0].text
    reading = [one for one in passes if one[1] > 1]
    # Few passes: as many batches as the budget asks for, each read in few passes and grown in two more.
    least = sum(length + FURTHER for length in lengths) / BUDGET
    assert len(passes) <= 4 * least * (FURTHER + 1)
    # Little is read in vain.
    padded = sum(rows * steps for rows, steps, _ in reading)
    assert sum(lengths) <= padded <= 1.2 * sum(lengths)
    # One batch is held at a time, and while rows are brought together, what they were read into.
    assert most <= 3 * BUDGET
