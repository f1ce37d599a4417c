"""The memory of a model: the cache of the tokens it has read, for a batch of rows.

Three kinds of model, three kinds of memory behind one interface:

- :class:`AttentionMemory`: keys and values. Rows of any length share a batch, aligned at their ends
  (padding on the left, masked, with positions counted from each row's first token), so that the
  distance between two slots is the distance between two tokens, as sliding windows need. Every layer
  keeps all keys; the model's own mask does the sliding. So any prefix can be gone on from.
- :class:`OpaqueMemory`: recurrent states and other caches that only the model understands. Rows have
  equal lengths, are never padded and share no prefixes.
- :class:`RecomputedMemory`: no cache at all; the tokens are read again at every step.

A memory knows its model and feeds it; a model knows nothing of memories. Which kind serves a model,
:func:`memory_kind` finds out by trying.
"""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from surerag.errors import ConfigurationError
from surerag.readers.transformers.model import CausalModel


class Part(NamedTuple):
    """One row of a memory, or the first ``length`` tokens of it."""

    memory: Memory
    row: int
    length: int


class Held(NamedTuple):
    """Keys and values of one layer."""

    keys: Tensor
    values: Tensor


class Memory(ABC):
    """What was read so far, for each row of a batch.

    Attributes:
        lengths: Tokens read, one count a row; padding is not counted.
    """

    def __init__(self, model: CausalModel, lengths: Sequence[int]) -> None:
        self._model = model
        self.lengths = list(lengths)

    @classmethod
    @abstractmethod
    def empty(cls, model: CausalModel, rows: int, room: int = 0) -> Memory:
        """Return a memory of nothing, with room to grow."""

    def part(self, row: int) -> Part:
        """Return a whole row."""
        return Part(self, row, self.lengths[row])

    @abstractmethod
    def feed(self, tokens: Tensor, keep: int = 1) -> Tensor:
        """Read ``tokens`` [rows, steps]; return the logits [rows, keep, vocabulary] of the last steps."""

    @abstractmethod
    def select(self, rows: Sequence[int], room: int = 0) -> Memory:
        """Return a copy that holds these rows, each as often as it is named, with room to grow."""

    @abstractmethod
    def share(self) -> Memory:
        """Return a memory of the same rows; feeding it leaves this one as it is.

        Two that are shared from one may not be fed in turns: they grow into the same space.
        """


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


class AttentionMemory(Memory):
    """Keys and values of every token; rows are aligned at their ends."""

    def __init__(self, model: CausalModel, cache: _GrowingCache, lengths: Sequence[int], slots: int) -> None:
        super().__init__(model, lengths)
        self._cache = cache
        self._slots = slots

    @classmethod
    def empty(cls, model: CausalModel, rows: int, room: int = 0) -> AttentionMemory:
        """Return a memory of nothing; see :meth:`Memory.empty`."""
        return cls(model, _GrowingCache(room=room), [0] * rows, 0)

    @classmethod
    def gather(cls, parts: Sequence[Part], room: int) -> AttentionMemory:
        """Copy rows, or the beginnings of rows, of one or many memories into a new one."""
        slots = max(part.length for part in parts)
        by_memory: dict[int, list[int]] = {}
        for target, part in enumerate(parts):
            by_memory.setdefault(id(part.memory), []).append(target)
        copies = [_Copy(parts, targets) for targets in by_memory.values()]
        depth = len(copies[0].memory._cache.layers)
        layers = []
        for index in range(depth):
            sources = [(copy_, copy_.memory.held(index)) for copy_ in copies]
            keys = _gathered([(copy_, held.keys) for copy_, held in sources], len(parts), slots, slots + room)
            values = _gathered(
                [(copy_, held.values) for copy_, held in sources], len(parts), slots, slots + room
            )
            layers.append(_GrowingLayer.around(keys, values, slots, room))
        model = copies[0].memory._model
        return cls(model, _GrowingCache(layers), [part.length for part in parts], slots)

    def feed(self, tokens: Tensor, keep: int = 1) -> Tensor:
        """Read real tokens only; see :meth:`Memory.feed`."""
        return self.feed_until([length + tokens.shape[1] for length in self.lengths], tokens, keep)

    def feed_until(self, lengths: Sequence[int], tokens: Tensor, keep: int = 1) -> Tensor:
        """Read ``tokens`` so that each row then has its length; whatever is left of that is padding."""
        return self._model.forward(tokens, self._cache, *self._placed(lengths, tokens), keep)

    def feed_hidden(self, tokens: Tensor) -> Tensor:
        """Read real tokens; return hidden states [rows, steps, width]; see ``CausalModel.head_apart``."""
        lengths = [length + tokens.shape[1] for length in self.lengths]
        return self._model.hidden(tokens, self._cache, *self._placed(lengths, tokens))

    def _placed(self, lengths: Sequence[int], tokens: Tensor) -> tuple[Tensor | None, Tensor]:
        """Make room for tokens after which each row has its length; return their mask and positions."""
        self._slots += tokens.shape[1]
        self.lengths = list(lengths)
        padding = torch.tensor([[self._slots - length] for length in lengths], device=tokens.device)
        slots = torch.arange(self._slots, device=tokens.device)
        # Padding, and rows that ended but are still in the batch, must stay inside the table of positions.
        last = None if self._model.window is None else self._model.window - 1
        positions = (slots[-tokens.shape[1] :] - padding).clamp(min=0, max=last)
        mask = None if min(lengths) == self._slots else (slots >= padding).long()
        return mask, positions

    def select(self, rows: Sequence[int], room: int = 0) -> AttentionMemory:
        """Copy rows; see :meth:`Memory.select`."""
        return self.gather([self.part(row) for row in rows], room)

    def held(self, layer: int) -> Held:
        """Return what one layer holds, both [rows, heads, slots, dimensions]."""
        found = self._cache.layers[layer]
        if not isinstance(found, _GrowingLayer) or found.keys is None or found.values is None:
            raise RuntimeError("nothing was read yet")
        return Held(found.keys, found.values)

    def share(self) -> AttentionMemory:
        """Return a second view of the same keys and values; see :meth:`Memory.share`."""
        layers = [copy.copy(layer) for layer in self._cache.layers]
        return AttentionMemory(self._model, _GrowingCache(layers), self.lengths, self._slots)


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
            length == memory.lengths[row] for row, length in zip(self.rows, self.lengths, strict=True)
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
            start = source.shape[-2] - self.memory.lengths[row]
            target[place, :, slots - length : slots] = source[row, :, start : start + length]
            # Masked slots still pass through a product with zero, which must not meet NaN.
            target[place, :, : slots - length] = 0


def _gathered(copies: Sequence[tuple[_Copy, Tensor]], rows: int, slots: int, capacity: int) -> Tensor:
    like = copies[0][1]
    target = like.new_empty((rows, like.shape[1], capacity, like.shape[3]))
    for copy_, source in copies:
        copy_.into(target, source, slots)
    return target


class OpaqueMemory(Memory):
    """A cache that only its model understands, for rows of equal length without padding."""

    def __init__(self, model: CausalModel, cache: Cache, lengths: Sequence[int]) -> None:
        super().__init__(model, lengths)
        self._cache = cache

    @classmethod
    def empty(cls, model: CausalModel, rows: int, room: int = 0) -> OpaqueMemory:
        """Return a memory of nothing; see :meth:`Memory.empty`."""
        return cls(model, model.fresh_cache(), [0] * rows)

    def feed(self, tokens: Tensor, keep: int = 1) -> Tensor:
        """Read tokens; see :meth:`Memory.feed`."""
        start = self.lengths[0]
        self.lengths = [length + tokens.shape[1] for length in self.lengths]
        positions = torch.arange(start, self.lengths[0], device=tokens.device).expand(len(tokens), -1)
        if not start:
            return self._model.forward(tokens, self._cache, None, positions, keep)
        # Recurrent layers take one token at a time once they have a state.
        steps = [
            self._model.forward(tokens[:, i : i + 1], self._cache, None, positions[:, i : i + 1], 1)
            for i in range(tokens.shape[1])
        ]
        return torch.cat(steps[-keep:], dim=1)

    def select(self, rows: Sequence[int], room: int = 0) -> OpaqueMemory:
        """Copy rows; see :meth:`Memory.select`."""
        cache = copy.deepcopy(self._cache)
        cache.reorder_cache(cast("torch.LongTensor", torch.tensor(list(rows), device=self._model.device)))
        return OpaqueMemory(self._model, cache, [self.lengths[row] for row in rows])

    def share(self) -> OpaqueMemory:
        """Return a copy, since states are overwritten in place; see :meth:`Memory.share`."""
        return OpaqueMemory(self._model, copy.deepcopy(self._cache), self.lengths)


class RecomputedMemory(Memory):
    """The tokens themselves, for models whose state cannot be taken out of them."""

    def __init__(self, model: CausalModel, history: Tensor) -> None:
        super().__init__(model, [history.shape[1]] * len(history))
        self._history = history

    @classmethod
    def empty(cls, model: CausalModel, rows: int, room: int = 0) -> RecomputedMemory:
        """Return a memory of nothing; see :meth:`Memory.empty`."""
        return cls(model, model.tensor([[]] * rows))

    def feed(self, tokens: Tensor, keep: int = 1) -> Tensor:
        """Read everything again, and the new tokens; see :meth:`Memory.feed`."""
        self._history = torch.cat([self._history, tokens], dim=1)
        self.lengths = [self._history.shape[1]] * len(self._history)
        positions = torch.arange(self._history.shape[1], device=tokens.device).expand(len(tokens), -1)
        return self._model.forward(self._history, None, None, positions, keep)

    def select(self, rows: Sequence[int], room: int = 0) -> RecomputedMemory:
        """Copy rows; see :meth:`Memory.select`."""
        return RecomputedMemory(self._model, self._history[list(rows)])

    def share(self) -> RecomputedMemory:
        """Return a memory of the same tokens; see :meth:`Memory.share`."""
        return RecomputedMemory(self._model, self._history)


def joinable(one: Part, other: Part) -> bool:
    """Tell whether two rows of one model can be joined: keys and values always, others within a memory."""
    return one.memory is other.memory or isinstance(one.memory, AttentionMemory)


def join(parts: Sequence[Part], room: int) -> Memory:
    """Bring rows into one memory of their own, without copying where they already are just that.

    Args:
        parts: Rows of one model, all :func:`joinable`.
        room: Tokens that the memory should be able to grow by without being copied.
    """
    memory = parts[0].memory
    if all(part.memory is memory for part in parts) and [(part.row, part.length) for part in parts] == list(
        enumerate(memory.lengths)
    ):
        return memory.share()
    if isinstance(memory, AttentionMemory):
        return AttentionMemory.gather(parts, room)
    return memory.select([part.row for part in parts], room)


def memory_kind(model: CausalModel) -> type[Memory]:
    """Find out what a model can remember by: the first of the three kinds that holds when it is tried.

    Raises:
        ConfigurationError: If the model does not even answer when it reads everything anew.
    """
    try:
        expected = RecomputedMemory.empty(model, 1).feed(model.tensor([[0, 1]]))
    except Exception as error:
        raise ConfigurationError(
            f"{model.origin} does not say what follows a text: {type(error).__name__}: {error}",
            hint="pass a model that AutoModelForCausalLM loads",
        ) from error
    if not model.arguments & {"past_key_values", "cache_params"}:
        return RecomputedMemory
    try:
        layers = model.fresh_cache().layers
        plain = all(type(layer) in {DynamicLayer, DynamicSlidingWindowLayer} for layer in layers)
        masked = {"past_key_values", "attention_mask", "position_ids"} <= model.arguments
        if plain and masked and not model.stateful and _pads_well(model):
            return AttentionMemory
        if _goes_on_from_cache(model, expected):
            return OpaqueMemory
        reason = "it does not go on from a cache as if it read everything anew"
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    warnings.warn(
        f"{model.origin} reads its whole text again for every token, which is slow, since its cache cannot "
        f"be used: {reason}",
        stacklevel=5,
    )
    return RecomputedMemory


def _pads_well(model: CausalModel) -> bool:
    """Try whether a row says the same alone and behind padding, before and after it goes on."""
    token, row = model.tensor([[1]]), model.tensor([[0, 1, 0]])
    alone = AttentionMemory.empty(model, 1, 1)
    padded = AttentionMemory.empty(model, 2, 1)
    expected = [alone.feed(row), alone.feed(token)]
    longer = torch.cat([model.tensor([[model.pad_token] * 4, [1, 1, 0, 1]]), row.expand(2, -1)], dim=1)
    found = [padded.feed_until([3, 7], longer)[:1], padded.feed(token.expand(2, -1))[:1]]
    return all(_alike(one, other) for one, other in zip(expected, found, strict=True))


def _goes_on_from_cache(model: CausalModel, expected: Tensor) -> bool:
    """Try whether the model's state is in the cache that it is given, and nowhere else.

    Some models keep their state in their own modules: reading something else in between, as every
    batch does, would overwrite it.
    """
    first, second = model.tensor([[0]]), model.tensor([[1]])
    memory, other = OpaqueMemory.empty(model, 1), OpaqueMemory.empty(model, 1)
    memory.feed(first)
    other.feed(second)
    return _alike(memory.feed(second), expected)


def _alike(one: Tensor, other: Tensor) -> bool:
    # Wide enough for half precision, which is off by a hundredth; a wrong mask is off by most of it.
    return bool((one - other).square().mean().sqrt() <= 0.1 * one.std())
