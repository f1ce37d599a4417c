"""Memory of models that hold more than keys and values, or nothing that can be taken out of them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from surerag.readers.local.memory import AlignedMemory, Memory, Part
from surerag.readers.local.model import CausalModel

_BY_SLOT = frozenset({"keys", "values", "indexer_keys"})
"""What a layer holds of every token; everything else is a state of the whole row."""


class OpaqueMemory(AlignedMemory):
    """A cache of the model's own making: recurrent states, and keys and values where it has some.

    Whole rows are taken over, never their beginnings: a state cannot be rolled back. This kind holds rows of
    one length, read together; :class:`JoinedMemory` and :class:`PaddedMemory` can do more.
    """

    def __init__(self, model: CausalModel, cache: Cache, lengths: Sequence[int], slots: int) -> None:
        super().__init__(model, lengths, slots)
        self._cache = cache

    @classmethod
    def empty(cls, model: CausalModel, rows: int, room: int = 0) -> OpaqueMemory:
        """Return a memory of nothing; see :meth:`Memory.empty`."""
        return cls(model, model.fresh_cache(), [0] * rows, 0)

    @classmethod
    def gather(cls, parts: Sequence[Part], room: int) -> OpaqueMemory:
        """Copy whole rows; see :meth:`Memory.gather`."""
        sources = {id(part.memory): part.memory for part in parts}
        memories = [memory for memory in sources.values() if isinstance(memory, OpaqueMemory)]
        # Counters of a layer count the slots of its longest row.
        memories.sort(key=lambda memory: -memory.slots)
        rows = [[part.row for part in parts if part.memory is memory] for memory in memories]
        taken = [at for memory in memories for at, part in enumerate(parts) if part.memory is memory]
        device = memories[0]._model.device
        # From where a row comes to lie to where it belongs.
        order = torch.tensor(sorted(range(len(taken)), key=taken.__getitem__), device=device)
        chosen = [torch.tensor(some, device=device) for some in rows]
        cache = copy.copy(memories[0]._cache)
        cache.layers = [
            _joined(list(layers), chosen, order)
            for layers in zip(*(memory._cache.layers for memory in memories), strict=True)
        ]
        return cls(
            memories[0]._model, cache, [part.memory.lengths[part.row] for part in parts], memories[0].slots
        )

    def feed_until(self, lengths: Sequence[int], tokens: Tensor, keep: int = 1) -> Tensor:
        """Read tokens; see :meth:`Memory.feed_until`."""
        held, count = self.slots, tokens.shape[1]
        mask, positions = self._placed(lengths, tokens)
        if held and not self._attends:
            # A state has taken in its padding already, and what follows has none.
            mask = None
        if not held:
            return self._model.forward(tokens, self._cache, mask, positions, keep)
        # Not every recurrent layer reads on from its state in one pass.
        logits = [
            self._model.forward(
                tokens[:, i : i + 1],
                self._cache,
                None if mask is None else mask[:, : held + i + 1],
                positions[:, i : i + 1],
                1,
            )
            for i in range(count)
        ]
        return torch.cat(logits[-keep:], dim=1)

    def share(self) -> OpaqueMemory:
        """Return a copy, since states are overwritten in place; see :meth:`Memory.share`."""
        return self.gather([self.part(row) for row in range(len(self.lengths))], 0)

    @property
    def _attends(self) -> bool:
        """Whether any layer holds keys."""
        return any(getattr(layer, "keys", None) is not None for layer in self._cache.layers)


class JoinedMemory(OpaqueMemory):
    """Rows that were read apart, since the model does not leave padding out of its states, grow together."""

    joins = True


class PaddedMemory(JoinedMemory):
    """Rows of different lengths are read together: the model leaves masked tokens out of its states."""

    pads = True


def _joined(layers: list[Any], rows: list[Tensor], order: Tensor) -> Any:
    """Return a layer with rows of several, the one with most slots first."""
    joined = copy.copy(layers[0])
    for name, value in vars(layers[0]).items():
        held = [getattr(layer, name) for layer in layers]
        if isinstance(value, Tensor):
            setattr(joined, name, _joined_tensor(name, held, rows, order))
        elif isinstance(value, dict):
            setattr(
                joined,
                name,
                {
                    key: _joined_tensor(name, [one[key] for one in held], rows, order)
                    if isinstance(item, Tensor)
                    else item
                    for key, item in value.items()
                },
            )
    return joined


def _joined_tensor(name: str, held: list[Tensor], rows: list[Tensor], order: Tensor) -> Tensor:
    if not held[0].dim():
        return held[0].clone()
    if name in _BY_SLOT:
        most = held[0].shape[-2]
        held = [torch.nn.functional.pad(one, (0, 0, most - one.shape[-2], 0)) for one in held]
    return torch.cat(
        [one.index_select(0, some.to(one.device)) for one, some in zip(held, rows, strict=True)]
    ).index_select(0, order.to(held[0].device))


class RecomputedMemory(Memory):
    """The tokens themselves, for models whose state cannot be taken out of them."""

    def __init__(self, model: CausalModel, history: Tensor) -> None:
        super().__init__(model, [history.shape[1]] * len(history))
        self._history = history

    @classmethod
    def empty(cls, model: CausalModel, rows: int, room: int = 0) -> RecomputedMemory:
        """Return a memory of nothing; see :meth:`Memory.empty`."""
        return cls(model, model.tensor([[]] * rows))

    @classmethod
    def gather(cls, parts: Sequence[Part], room: int) -> RecomputedMemory:
        """Copy rows of one memory; see :meth:`Memory.gather`."""
        memory = parts[0].memory
        if not isinstance(memory, RecomputedMemory):
            raise TypeError(f"rows of a {type(memory).__name__} cannot be gathered")
        return cls(memory._model, memory._history[[part.row for part in parts]])

    def feed_until(self, lengths: Sequence[int], tokens: Tensor, keep: int = 1) -> Tensor:
        """Read everything again, and the new tokens; see :meth:`Memory.feed_until`."""
        self._history = torch.cat([self._history, tokens], dim=1)
        self.lengths = list(lengths)
        positions = torch.arange(self._history.shape[1], device=tokens.device).expand(len(tokens), -1)
        return self._model.forward(self._history, None, None, positions, keep)

    def share(self) -> RecomputedMemory:
        """Return a memory of the same tokens; see :meth:`Memory.share`."""
        return RecomputedMemory(self._model, self._history)
