"""The memory of a model: what it holds of the tokens it has read, for a batch of rows.

Three kinds of model, three kinds of memory behind one interface:

- :class:`~.attention_memory.AttentionMemory`: keys and values. Any prefix can be gone on from.
- :class:`~.opaque_memory.OpaqueMemory`: recurrent states, beside keys and values or without them.
- :class:`~.opaque_memory.RecomputedMemory`: no cache at all; the tokens are read again at every step.

Rows of different lengths share a batch aligned at their ends (padding on the left, masked, with positions
counted from each row's first token), so that the distance between two slots is the distance between two
tokens, as sliding windows need.

A memory knows its model and feeds it; a model knows nothing of memories. Which kind serves a model,
:func:`~.memory_kinds.memory_kind` finds out by trying.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from surerag.readers.local.model import CausalModel


class Part(NamedTuple):
    """One row of a memory, or the first ``length`` tokens of it."""

    memory: Memory
    row: int
    length: int


class Placed(NamedTuple):
    """Where new tokens stand: a mask [rows, slots], or None without padding, and positions [rows, steps]."""

    mask: Tensor | None
    positions: Tensor


class Memory(ABC):
    """What was read so far, for each row of a batch.

    Attributes:
        joins: Whether rows of several memories can be joined into one.
        pads: Whether rows of different lengths can be read together.
        forks: Whether rows that begin alike can share their beginning.
        lengths: Tokens read, one count a row; padding is not counted.
    """

    joins: ClassVar[bool] = False
    pads: ClassVar[bool] = False
    forks: ClassVar[bool] = False

    def __init__(self, model: CausalModel, lengths: Sequence[int]) -> None:
        self._model = model
        self.lengths = list(lengths)

    @classmethod
    @abstractmethod
    def empty(cls, model: CausalModel, rows: int, room: int = 0) -> Memory:
        """Return a memory of nothing, with room to grow."""

    @classmethod
    @abstractmethod
    def gather(cls, parts: Sequence[Part], room: int) -> Memory:
        """Copy rows of one memory, or of many where they can be joined, into a new one with room to grow."""

    @classmethod
    def fork(cls, parts: Sequence[Part], room: int) -> Memory:
        """Like :meth:`gather`, of rows that may be the same ones: they share what they can share."""
        return cls.gather(parts, room)

    def part(self, row: int) -> Part:
        """Return a whole row."""
        return Part(self, row, self.lengths[row])

    def feed(self, tokens: Tensor, keep: int = 1) -> Tensor:
        """Read ``tokens`` [rows, steps]; return the logits [rows, keep, vocabulary] of the last steps."""
        return self.feed_until([length + tokens.shape[1] for length in self.lengths], tokens, keep)

    @abstractmethod
    def feed_until(self, lengths: Sequence[int], tokens: Tensor, keep: int = 1) -> Tensor:
        """Read ``tokens`` so that each row then has its length; whatever is left of that is padding."""

    def select(self, rows: Sequence[int], room: int = 0) -> Memory:
        """Return a copy that holds these rows, each as often as it is named, with room to grow."""
        return self.gather([self.part(row) for row in rows], room)

    @abstractmethod
    def share(self) -> Memory:
        """Return a memory of the same rows; feeding it leaves this one as it is.

        Two that are shared from one may not be fed in turns: they grow into the same space.
        """


class AlignedMemory(Memory):
    """A memory whose rows end together.

    Attributes:
        slots: Places for tokens in each row, padding included.
    """

    def __init__(self, model: CausalModel, lengths: Sequence[int], slots: int) -> None:
        super().__init__(model, lengths)
        self.slots = slots

    def _placed(self, lengths: Sequence[int], tokens: Tensor) -> Placed:
        """Make room for tokens after which each row has its length."""
        self.slots += tokens.shape[1]
        self.lengths = list(lengths)
        mask = None
        if min(lengths) < self.slots:
            padding = torch.tensor([[self.slots - length] for length in lengths], device=tokens.device)
            mask = (torch.arange(self.slots, device=tokens.device) >= padding).long()
        return Placed(mask, self._positions(lengths, tokens))

    def _positions(self, lengths: Sequence[int], tokens: Tensor) -> Tensor:
        """Return the positions of tokens after which each row has its length."""
        count = tokens.shape[1]
        first = torch.tensor([[length - count] for length in lengths], device=tokens.device)
        # Padding, and rows that ended but are still in the batch, must stay inside the table of positions.
        last = None if self._model.window is None else self._model.window - 1
        return (first + torch.arange(count, device=tokens.device)).clamp(min=0, max=last)


def joinable(one: Part, other: Part) -> bool:
    """Tell whether two rows of one model can be joined."""
    return one.memory is other.memory or one.memory.joins


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
    return memory.fork(parts, room)
