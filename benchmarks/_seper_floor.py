"""The least that SePer could take with given models: their forward passes, and nothing around them.

Each prompt is read once, all sequences are decoded together, as many at a time as fit, and each distinct
pair is judged once, in batches of similar length. No tokens are chosen, no texts made, nothing encoded: what
a real run takes on top is its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, DynamicLayer

_BATCH_TOKENS, _JUDGED_TOKENS = 32_768, 2_048
"""Tokens of a batch that is decoded, and of one that is judged: the package's own defaults on a CPU."""


class Encoded(NamedTuple):
    """A prompt, and how many tokens each of its samples has; the end token is one of them."""

    ids: list[int]
    lengths: tuple[int, ...]


def decoding_seconds(
    model: PreTrainedModel, prompts: Sequence[Encoded], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Time the passes that read prompts and grow all their samples, apart from choosing tokens.

    Rows leave as they end, so every step has as many rows as there are samples of that length or more.
    """
    cost = max(len(prompt.ids) + max(prompt.lengths) for prompt in prompts)
    fitting = max(1, _BATCH_TOKENS // cost)
    total = 0.0
    waiting: list[tuple[Any, int, int]] = []
    with torch.inference_mode():
        for prompt in prompts:
            started = clock()
            found = model(torch.tensor([prompt.ids]), use_cache=True, logits_to_keep=1)
            total += clock() - started
            # What the first token comes from is read already.
            waiting += [(found.past_key_values, len(prompt.ids), length - 1) for length in prompt.lengths]
            while len(waiting) >= fitting or (waiting and prompt is prompts[-1]):
                batch, waiting = waiting[:fitting], waiting[fitting:]
                total += _steps(model, batch, clock)
    return total


def _steps(
    model: PreTrainedModel, batch: Sequence[tuple[Any, int, int]], clock: Callable[[], float]
) -> float:
    batch = sorted(batch, key=lambda row: -row[2])
    # All rows get the length of the shortest prompt, which can only make the floor lower.
    slots = min(length for _, length, _ in batch)
    caches = [cache for cache, _, _ in batch]
    layers = [
        _Fixed(*(torch.cat([getattr(c.layers[at], name)[:, :, -slots:] for c in caches]) for name in _KV))
        for at in range(len(caches[0].layers))
    ]
    started = clock()
    for step in range(batch[0][2]):
        tokens = torch.zeros(sum(left > step for _, _, left in batch), 1, dtype=torch.long)
        model(tokens, past_key_values=Cache(layers=list(layers)), use_cache=True)
    return clock() - started


_KV = ("keys", "values")


class _Fixed(DynamicLayer):
    """Keys and values of a batch that are read and never copied; the newest token's take one slot."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values
        self._room = [torch.nn.functional.pad(held, (0, 0, 0, 1)) for held in (keys, values)]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Put the newest token's into the last slot; return those of as many rows as there are."""
        rows = len(key_states)
        for room, new in zip(self._room, (key_states, value_states), strict=True):
            room[:rows, :, -1:] = new
        return self._room[0][:rows], self._room[1][:rows]


def judging_seconds(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[str, str]],
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Time the classifier's passes over distinct pairs, longest first."""
    encoded = sorted((tokenizer(*pair) for pair in dict.fromkeys(pairs)), key=lambda e: -len(e["input_ids"]))
    batches: list[Any] = []
    while encoded:
        size = max(1, _JUDGED_TOKENS // len(encoded[0]["input_ids"]))
        batch, encoded = encoded[:size], encoded[size:]
        batches.append(tokenizer.pad([dict(one) for one in batch], return_tensors="pt"))
    started = clock()
    with torch.inference_mode():
        for batch in batches:
            model(**batch)
    return clock() - started
