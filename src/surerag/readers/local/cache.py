"""A cache of attention keys and values that grows in place; rows can be taken out and joined again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class GrowingLayer(DynamicLayer):
    """A layer of ``DynamicCache`` that appends in place, and is copied only if no free slots are left."""

    keys: Tensor
    values: Tensor
    _buffers: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values [rows, heads, steps, width]; return all keys and values of the layer."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states, value_states
            return key_states, value_states
        start, end = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        if self._buffers is None or self._buffers[0].shape[-2] < end:
            self._buffers = (_with_spare_slots(self.keys, end), _with_spare_slots(self.values, end))
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[..., start:end, :] = states
        self.load(*self._buffers, end)
        return self.keys, self.values

    def load(self, keys: Tensor, values: Tensor, length: int) -> None:
        """Use these buffers, whose first ``length`` slots are filled, as the layer's keys and values."""
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self._buffers = (keys, values)
        self.keys, self.values = keys[..., :length, :], values[..., :length, :]

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the rows with these indices."""
        keys, values = self._buffers or (self.keys, self.values)
        indices = indices.to(keys.device)
        self.load(keys[indices], values[indices], self.keys.shape[-2])


def _with_spare_slots(states: Tensor, needed: int) -> Tensor:
    rows, heads, length, width = states.shape
    buffer = states.new_zeros(rows, heads, needed + max(64, needed // 4), width)
    buffer[..., :length, :] = states
    return buffer


def new_cache() -> Cache:
    """Return an empty cache that will keep every token, even of a model with a sliding window."""
    return Cache(layer_class_to_replicate=GrowingLayer)


class CachedRow(NamedTuple):
    """Keys and values of one sequence in every layer, [heads, tokens, width] each."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    length: int


def take_row(cache: Cache, row: int, start: int, end: int) -> CachedRow:
    """Return a view of one row's keys and values in the slots from ``start`` to ``end``."""
    layers: list[Any] = cache.layers
    parts = tuple((layer.keys[row, :, start:end], layer.values[row, :, start:end]) for layer in layers)
    return CachedRow(parts, end - start)


def join_rows(rows: Sequence[CachedRow], spare: int) -> Cache:
    """Copy rows into one cache, aligned at their ends, with ``spare`` empty slots for further tokens."""
    longest = max(row.length for row in rows)
    cache = new_cache()
    for place in range(len(rows[0].layers)):
        buffers = []
        for part in (0, 1):
            heads, _, width = rows[0].layers[place][part].shape
            buffer = rows[0].layers[place][part].new_empty(len(rows), heads, longest + spare, width)
            for number, row in enumerate(rows):
                buffer[number, :, : longest - row.length] = 0
                buffer[number, :, longest - row.length : longest] = row.layers[place][part]
            buffers.append(buffer)
        layer: Any = GrowingLayer()  # type: ignore[no-untyped-call]  # the library's
        layer.load(buffers[0], buffers[1], longest)
        cache.layers.append(layer)
    return cache
