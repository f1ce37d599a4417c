"""Memory of models that hold keys and values, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from surerag.readers.local.memory import AlignedMemory, Part
from surerag.readers.local.model import CausalModel
from surerag.readers.local.shared_attention import Held


class _GrowingLayer(DynamicLayer):
    """Keys and values that grow in place, where the library's layer copies all of them every step."""

    def __init__(self, room: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the library leaves it without annotations
        self._room = max(room, 16)
        self._buffers: tuple[Tensor, Tensor] | None = None

    @classmethod
    def around(cls, keys: Tensor, values: Tensor, length: int, room: int) -> _GrowingLayer:
        """Return a layer that holds the first ``length`` slots of two buffers and grows into the rest."""
        layer = cls(room)
        layer.lazy_initialization(keys, values)
        layer._buffers = (keys, values)
        layer.keys, layer.values = keys[..., :length, :], values[..., :length, :]
        return layer

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append new keys and values [rows, heads, steps, dimensions]; return all of them."""
        if self.keys is None or self.values is None:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states, value_states
            return key_states, value_states
        held = self.keys.shape[-2]
        total = held + key_states.shape[-2]
        if self._buffers is None or self._buffers[0].shape[-2] < total:
            self._buffers = (
                _enlarged(self.keys, total + self._room),
                _enlarged(self.values, total + self._room),
            )
        keys, values = self._buffers
        keys[..., held:total, :] = key_states
        values[..., held:total, :] = value_states
        self.keys, self.values = keys[..., :total, :], values[..., :total, :]
        return self.keys, self.values


def _enlarged(held: Tensor, capacity: int) -> Tensor:
    larger = held.new_empty((*held.shape[:-2], capacity, held.shape[-1]))
    larger[..., : held.shape[-2], :] = held
    return larger


class _GrowingCache(DynamicCache):
    """A cache whose layers all keep every token, whatever the model's windows."""

    def __init__(self, layers: list[Any] | None = None, room: int = 0) -> None:
        if layers:
            Cache.__init__(self, layers=layers)
        else:
            # Called without arguments, once for each layer that turns up; any factory will do.
            Cache.__init__(
                self, layer_class_to_replicate=cast("type[DynamicLayer]", partial(_GrowingLayer, room))
            )


class AttentionMemory(AlignedMemory):
    """Keys and values of every token, in every layer; the model's own mask does the sliding."""

    joins = pads = True

    def __init__(self, model: CausalModel, cache: _GrowingCache, lengths: Sequence[int], slots: int) -> None:
        super().__init__(model, lengths, slots)
        self._cache = cache

    @classmethod
    def empty(cls, model: CausalModel, rows: int, room: int = 0) -> AttentionMemory:
        """Return a memory of nothing; see :meth:`Memory.empty`."""
        return cls(model, _GrowingCache(room=room), [0] * rows, 0)

    @classmethod
    def gather(cls, parts: Sequence[Part], room: int) -> AttentionMemory:
        """Copy rows, or the beginnings of rows; see :meth:`Memory.gather`."""
        return cls(_model_of(parts), *copied(parts, room))

    @classmethod
    def alone(cls, parts: Sequence[Part]) -> list[AttentionMemory]:
        """Copy each row into a memory of its own, without room to grow: whoever goes on from it copies it."""
        return [cls.gather([part], 0) for part in parts]

    @property
    def bytes(self) -> int:
        """Memory that its keys and values take."""
        return sum(of.nbytes for layer in range(self.depth) for of in self.held(layer))

    def feed_until(self, lengths: Sequence[int], tokens: Tensor, keep: int = 1) -> Tensor:
        """Read tokens; see :meth:`Memory.feed_until`."""
        return self._model.forward(tokens, self._cache, *self._placed(lengths, tokens), keep)

    def feed_hidden(self, tokens: Tensor) -> Tensor:
        """Read real tokens; return hidden states [rows, steps, width]; see ``CausalModel.head_apart``."""
        lengths = [length + tokens.shape[1] for length in self.lengths]
        return self._model.hidden(tokens, self._cache, *self._placed(lengths, tokens))

    def held(self, layer: int) -> Held:
        """Return what one layer holds, both [rows, heads, slots, dimensions]."""
        found = self._cache.layers[layer]
        if not isinstance(found, _GrowingLayer) or found.keys is None or found.values is None:
            raise RuntimeError("nothing was read yet")
        return Held(found.keys, found.values)

    @staticmethod
    def cache_of(layers: Sequence[Held], slots: int) -> _GrowingCache:
        """Return a cache that holds the first slots of these tensors."""
        return _GrowingCache([_GrowingLayer.around(*held, slots, 0) for held in layers])

    @property
    def depth(self) -> int:
        """Layers that hold something."""
        return len(self._cache.layers)

    @property
    def own_lengths(self) -> list[int]:
        """Tokens of each row that its own slots hold."""
        return self.lengths

    def share(self) -> AttentionMemory:
        """Return a second view of the same keys and values; see :meth:`Memory.share`."""
        return AttentionMemory(self._model, self._shared_cache(), self.lengths, self.slots)

    def _shared_cache(self) -> _GrowingCache:
        return _GrowingCache([copy.copy(layer) for layer in self._cache.layers])


def _model_of(parts: Sequence[Part]) -> CausalModel:
    return parts[0].memory._model


class Copied(NamedTuple):
    """Rows that were copied, as an :class:`AttentionMemory` takes them."""

    cache: _GrowingCache
    lengths: list[int]
    slots: int


def copied(parts: Sequence[Part], room: int) -> Copied:
    """Copy what rows, or the beginnings of rows, hold in slots of their own."""
    slots = max(part.length for part in parts)
    by_memory: dict[int, list[int]] = {}
    for target, part in enumerate(parts):
        if part.length:
            by_memory.setdefault(id(part.memory), []).append(target)
    copies = [_Copy(parts, targets) for targets in by_memory.values()]
    layers = []
    for index in range(copies[0].memory.depth if copies else 0):
        sources = [(copy_, copy_.memory.held(index)) for copy_ in copies]
        keys = _gathered([(copy_, held.keys) for copy_, held in sources], parts, slots, slots + room)
        values = _gathered([(copy_, held.values) for copy_, held in sources], parts, slots, slots + room)
        layers.append(_GrowingLayer.around(keys, values, slots, room))
    cache = _GrowingCache(layers) if layers else _GrowingCache(room=room)
    return Copied(cache, [part.length for part in parts], slots)


class _Copy:
    """The rows that a gathering takes from one memory."""

    def __init__(self, parts: Sequence[Part], targets: list[int]) -> None:
        memory = parts[targets[0]].memory
        if not isinstance(memory, AttentionMemory):
            raise TypeError(f"rows of a {type(memory).__name__} cannot be gathered")
        self.memory = memory
        self.targets = targets
        self.rows = [parts[target].row for target in targets]
        self.lengths = [parts[target].length for target in targets]
        self.whole = all(
            length == memory.own_lengths[row] for row, length in zip(self.rows, self.lengths, strict=True)
        )

    def into(self, target: Tensor, source: Tensor, slots: int) -> None:
        """Copy from ``source`` so that every row ends at ``slots``."""
        if self.whole:
            # Rows end together on both sides, so padding on the left comes along or falls away.
            span = min(source.shape[-2], slots)
            rows = self.rows[0] if len(set(self.rows)) == 1 else self.rows
            picked = source[rows, :, -span:]
            if self.targets == list(range(len(target))):
                target[:, :, slots - span : slots] = picked
            else:
                target[self.targets, :, slots - span : slots] = picked
            if span < slots:
                target[self.targets, :, : slots - span] = 0
            return
        for row, length, place in zip(self.rows, self.lengths, self.targets, strict=True):
            start = source.shape[-2] - self.memory.own_lengths[row]
            target[place, :, slots - length : slots] = source[row, :, start : start + length]
            # Masked slots still pass through a product with zero, which must not meet NaN.
            target[place, :, : slots - length] = 0


def _gathered(
    copies: Sequence[tuple[_Copy, Tensor]], parts: Sequence[Part], slots: int, capacity: int
) -> Tensor:
    like = copies[0][1]
    target = like.new_empty((len(parts), like.shape[1], capacity, like.shape[3]))
    bare = [place for place, part in enumerate(parts) if not part.length]
    if bare:
        target[bare, :, :slots] = 0
    for copy_, source in copies:
        copy_.into(target, source, slots)
    return target
