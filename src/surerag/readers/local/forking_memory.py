"""Memory of models whose rows can share a prefix without each having a copy of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from surerag.readers.local.attention_memory import AttentionMemory, copied
from surerag.readers.local.memory import Part, Placed
from surerag.readers.local.model import CausalModel
from surerag.readers.local.shared_attention import Fan, Held, Stem, sharing

_SHORTEST = 128
"""Tokens of a prefix that are worth a product of their own in every layer and step (measured on a CPU)."""


class Trunk:
    """Prefixes that rows share: rows of a memory, which nothing is appended to for as long as they are used.

    Attributes:
        source: The memory. None of its rows shares anything itself.
        groups: The group that each of its rows is; those that nobody shares may be missing.
        starts: The slot of each group's first token.
        layers: Their keys and values.
    """

    def __init__(self, source: AttentionMemory, rows: Sequence[int]) -> None:
        self.source = source
        self.groups = {row: group for group, row in enumerate(rows)}
        self.starts = [source.slots - source.lengths[row] for row in rows]
        together = list(rows) == list(range(rows[0], rows[0] + len(rows)))
        taken: Any = slice(rows[0], rows[0] + len(rows)) if together else list(rows)
        self.layers = [
            Held(*(of[taken, :, : source.slots] for of in source.held(i))) for i in range(source.depth)
        ]


class ForkingMemory(AttentionMemory):
    """Keys and values, of which the beginnings of rows may be those of a :class:`Trunk`.

    Attributes:
        trunk: What rows share, or None.
        stems: What each row shares of it.
    """

    forks: ClassVar[bool] = True

    def __init__(
        self,
        model: CausalModel,
        cache: Any,
        lengths: Sequence[int],
        slots: int,
        trunk: Trunk | None = None,
        stems: Sequence[Stem] = (),
    ) -> None:
        super().__init__(model, cache, lengths, slots)
        self.trunk = trunk
        self.stems = list(stems) or [Stem(0, 0)] * len(lengths)
        self._fan = None if trunk is None else Fan(trunk.layers, trunk.starts, self.stems)

    @classmethod
    def gather(cls, parts: Sequence[Part], room: int) -> ForkingMemory:
        """Copy rows; what they share they go on sharing, where it is the same for all."""
        trunk = _common_trunk(parts)
        if trunk is None:
            parts = _on_their_own(parts)
            stems = [Stem(0, 0)] * len(parts)
        else:
            stems = [_stem(part, trunk) for part in parts]
        own = [
            Part(part.memory, part.row, part.length - stem.length)
            for part, stem in zip(parts, stems, strict=True)
        ]
        cache, lengths, slots = copied(own, room)
        lengths = [length + stem.length for length, stem in zip(lengths, stems, strict=True)]
        return cls(parts[0].memory._model, cache, lengths, slots, trunk, stems)

    @classmethod
    def alone(cls, parts: Sequence[Part]) -> list[AttentionMemory]:
        """Copy each row, and what it shares; see :meth:`AttentionMemory.alone`."""
        return [cls.gather([part], 0) for part in _on_their_own(parts)]

    @classmethod
    def fork(cls, parts: Sequence[Part], room: int) -> ForkingMemory:
        """Return rows that share what they begin with, where :func:`pays` says so; else copies."""
        counts = Counter((id(part.memory), part.row) for part in parts)
        plain = all(isinstance(part.memory, ForkingMemory) and part.memory.trunk is None for part in parts)
        if not plain or not pays(list(counts.values()), max(part.length for part in parts)):
            return cls.gather(parts, room)
        return cls.forked(parts, room)

    @classmethod
    def forked(cls, parts: Sequence[Part], room: int) -> ForkingMemory:
        """Return rows that share what they begin with. None of their sources shares anything itself."""
        sources = [part.memory for part in parts]
        distinct = list(dict.fromkeys((id(part.memory), part.row) for part in parts))
        place = {key: group for group, key in enumerate(distinct)}
        found = {(id(part.memory), part.row): part for part in parts}
        source, rows = sources[0], [found[key].row for key in distinct]
        if any(memory is not source for memory in sources):
            whole = [found[key].memory.part(found[key].row) for key in distinct]
            source, rows = cls.gather(whole, 0), list(range(len(distinct)))
        if not isinstance(source, ForkingMemory):
            raise TypeError(f"rows of a {type(source).__name__} cannot be shared")
        trunk = Trunk(source, rows)
        stems = [Stem(place[id(part.memory), part.row], part.length) for part in parts]
        empty = cls.empty(source._model, len(parts), room)
        return cls(source._model, empty._cache, [part.length for part in parts], 0, trunk, stems)

    @property
    def own_lengths(self) -> list[int]:
        """Tokens of each row that its own slots hold."""
        return [length - stem.length for length, stem in zip(self.lengths, self.stems, strict=True)]

    def feed_until(self, lengths: Sequence[int], tokens: Tensor, keep: int = 1) -> Tensor:
        """Read tokens; see :meth:`Memory.feed_until`."""
        with sharing(self._model.config, self._fan):
            return super().feed_until(lengths, tokens, keep)

    def feed_hidden(self, tokens: Tensor) -> Tensor:
        """Read real tokens; see :meth:`AttentionMemory.feed_hidden`."""
        with sharing(self._model.config, self._fan):
            return super().feed_hidden(tokens)

    def share(self) -> ForkingMemory:
        """Return a second view of the same keys and values; see :meth:`Memory.share`."""
        return ForkingMemory(
            self._model, self._shared_cache(), self.lengths, self.slots, self.trunk, self.stems
        )

    def _placed(self, lengths: Sequence[int], tokens: Tensor) -> Placed:
        if self.trunk is None:
            return super()._placed(lengths, tokens)
        stems = [stem.length for stem in self.stems]
        own = [length - stem for length, stem in zip(lengths, stems, strict=True)]
        mask, _ = super()._placed(own, tokens)
        self.lengths = list(lengths)
        return Placed(mask, self._positions(lengths, tokens))


def pays(counts: Sequence[int], length: int) -> bool:
    """Tell whether rows had better share prefixes than copy them.

    Args:
        counts: How many rows share each prefix.
        length: Tokens of the longest prefix.
    """
    rows, groups = sum(counts), len(counts)
    # Rows are laid side by side for each prefix, and what is missing to the largest group is padding.
    return length >= _SHORTEST and rows >= 2 * groups and max(counts) * groups <= 2 * rows


def _common_trunk(parts: Sequence[Part]) -> Trunk | None:
    """Return what some rows share, if the others share nothing else."""
    trunks = {
        id(memory.trunk): memory.trunk
        for memory in (part.memory for part in parts)
        if isinstance(memory, ForkingMemory) and memory.trunk is not None
    }
    return next(iter(trunks.values())) if len(trunks) == 1 else None


def _stem(part: Part, trunk: Trunk) -> Stem:
    memory = part.memory
    if isinstance(memory, ForkingMemory) and memory.trunk is trunk:
        group, length = memory.stems[part.row]
        return Stem(group, min(length, part.length))
    if memory is trunk.source and part.row in trunk.groups:
        return Stem(trunk.groups[part.row], part.length)
    return Stem(0, 0)


def _on_their_own(parts: Sequence[Part]) -> list[Part]:
    """Return the same rows, each with a copy of what it shared."""
    alone: dict[int, ForkingMemory] = {}
    for memory in (part.memory for part in parts):
        if isinstance(memory, ForkingMemory) and memory.trunk is not None and id(memory) not in alone:
            alone[id(memory)] = _unshared(memory, memory.trunk)
    return [Part(alone.get(id(part.memory), part.memory), part.row, part.length) for part in parts]


def _unshared(memory: ForkingMemory, trunk: Trunk) -> ForkingMemory:
    slots, own = max(memory.lengths), memory.own_lengths
    layers = []
    for index, shared in enumerate(trunk.layers):
        pair = []
        for ours, theirs in zip(memory.held(index) if memory.slots else (None, None), shared, strict=True):
            whole = theirs.new_zeros((len(own), theirs.shape[1], slots, theirs.shape[3]))
            for row, (group, length) in enumerate(memory.stems):
                start, end = trunk.starts[group], slots - own[row]
                whole[row, :, end - length : end] = theirs[group, :, start : start + length]
                if ours is not None and own[row]:
                    whole[row, :, end:] = ours[row, :, ours.shape[-2] - own[row] :]
            pair.append(whole)
        layers.append(Held(*pair))
    return ForkingMemory(memory._model, memory.cache_of(layers, slots), memory.lengths, slots)
