"""Attention over a prefix that many rows share, and over what each row has of its own.

The keys and values of the prefix are held, and read, once: the queries of all rows that share it are laid
side by side and meet it in one product. What is said is that of one softmax over prefix and own tokens.

The library asks for attention by the name in a model's config. While memories with a shared prefix are fed,
and only then, that name is ours; whoever uses the same model meanwhile, in another thread, is given the
library's own function.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

PLAIN, SHARED = "sdpa", "surerag_shared"


class Held(NamedTuple):
    """Keys and values of one layer, both [rows, heads, slots, dimensions]."""

    keys: Tensor
    values: Tensor


class Stem(NamedTuple):
    """What a row shares: the group of rows that it shares with, and how many tokens of the group's prefix."""

    group: int
    length: int


class Fan:
    """How rows are laid side by side before the prefixes that they share.

    Args:
        layers: Keys and values of the prefixes in each layer, [groups, heads, slots, dimensions].
        starts: The slot of each group's first token.
        stems: What each row shares.
    """

    def __init__(self, layers: Sequence[Held], starts: Sequence[int], stems: Sequence[Stem]) -> None:
        self.layers = layers
        keys = layers[0].keys
        self._groups = len(starts)
        places: list[int] = []
        counts = [0] * self._groups
        for group, _ in stems:
            places.append(counts[group])
            counts[group] += 1
        self._most = max(counts)
        at = [group * self._most + place for (group, _), place in zip(stems, places, strict=True)]
        even = at == list(range(self._groups * self._most))
        self._at = None if even else torch.tensor(at, device=keys.device)
        first = torch.tensor([starts[group] for group, _ in stems], device=keys.device)[:, None]
        last = first + torch.tensor([length for _, length in stems], device=keys.device)[:, None]
        slots = torch.arange(keys.shape[-2], device=keys.device)
        seen = (slots >= first) & (slots < last)
        self._hidden = None if bool(seen.all()) else ~seen[:, None, None]

    def scores(self, queries: Tensor, layer: int) -> Tensor:
        """Return the products [rows, heads, steps, slots] of queries [rows, heads, steps, dimensions]."""
        keys = self.layers[layer].keys
        found = self._collected(self._spread(queries) @ keys.transpose(-1, -2), queries.shape[2])
        return found if self._hidden is None else found.masked_fill(self._hidden, -torch.inf)

    def values(self, weights: Tensor, layer: int) -> Tensor:
        """Return sums [rows, heads, steps, dimensions] of values by weights [rows, heads, steps, slots]."""
        return self._collected(self._spread(weights) @ self.layers[layer].values, weights.shape[2])

    def _spread(self, rows: Tensor) -> Tensor:
        """Lay rows [rows, heads, steps, width] side by side, [groups, heads, rows × steps, width]."""
        if self._at is not None:
            wide = rows.new_zeros((self._groups * self._most, *rows.shape[1:]))
            wide[self._at] = rows
            rows = wide
        heads, steps, width = rows.shape[1:]
        grouped = rows.reshape(self._groups, self._most, heads, steps, width).transpose(1, 2)
        return grouped.reshape(self._groups, heads, self._most * steps, width)

    def _collected(self, found: Tensor, steps: int) -> Tensor:
        groups, heads, _, width = found.shape
        rows = found.reshape(groups, heads, self._most, steps, width).transpose(1, 2)
        rows = rows.reshape(groups * self._most, heads, steps, width)
        return rows if self._at is None else rows[self._at]


class _Active(threading.local):
    fan: Fan | None = None


_active = _Active()
_using: Counter[int] = Counter()
"""Threads that share at this moment, by the identity of a config: two readers may have one model."""
_counting = threading.Lock()


@contextmanager
def sharing(config: Any, fan: Fan | None) -> Iterator[None]:
    """Have a model with this config attend to a shared prefix as well, in this thread."""
    if fan is None:
        yield
        return
    with _counting:
        _using[id(config)] += 1
        config._attn_implementation = SHARED
    _active.fan = fan
    try:
        yield
    finally:
        _active.fan = None
        with _counting:
            _using[id(config)] -= 1
            if not _using[id(config)]:
                del _using[id(config)]
                config._attn_implementation = PLAIN


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend to the active fan's prefixes and to a row's own tokens; shapes as the library's functions."""
    fan = _active.fan
    if fan is None:
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **others
        )
        return found
    rows, heads, steps, width = query.shape
    shared, own = key.shape[1], key.shape[2]
    scale = width**-0.5 if scaling is None else scaling
    # The query heads that share keys stand below each other, as if they were steps.
    queries = (query * scale).reshape(rows, shared, heads // shared * steps, width)
    before = fan.scores(queries, module.layer_idx)
    after = queries @ key.transpose(-1, -2)
    if attention_mask is None and steps > 1:
        attention_mask = torch.ones(steps, own, dtype=torch.bool, device=key.device).tril(own - steps)
        attention_mask = attention_mask[None, None]
    if attention_mask is not None:
        by_head = after.reshape(rows, shared, heads // shared, steps, own)
        mask = attention_mask[..., :own].unsqueeze(2)
        masked = by_head.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else by_head + mask
        after = masked.reshape(after.shape)
    weights = torch.cat([before, after], dim=-1).softmax(-1, dtype=torch.float32).to(query.dtype)
    said = fan.values(weights[..., :-own], module.layer_idx) + weights[..., -own:] @ value
    return said.reshape(rows, heads, steps, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(SHARED, _attend)
AttentionMaskInterface.register(SHARED, sdpa_mask)
