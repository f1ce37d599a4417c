"""Sequences that grow together, one token a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import Tensor

from surerag.errors import ServiceError
from surerag.readers.transformers.memory import Memory, Part
from surerag.readers.transformers.model import CausalModel, Read, is_out_of_memory, release_memory
from surerag.readers.transformers.sampling import choose
from surerag.readers.transformers.sequences import GrowingSequence

T = TypeVar("T")
R = TypeVar("R")


class Flight:
    """A batch of sequences and the memory that they share.

    Ended sequences leave the batch once a quarter of it has ended, so that one long answer does not
    keep the memory of all others alive and read.

    Attributes:
        model: The model that grows them.
        started: All sequences that the flight started with.
        sequences: The sequence of each row of the memory.
        memory: What the model has read of them: all but the newest token of each.
    """

    def __init__(
        self,
        model: CausalModel,
        sequences: Sequence[GrowingSequence],
        memory: Memory,
        logits: Tensor | None = None,
    ) -> None:
        self.started = self.sequences = list(sequences)
        self.memory = memory
        self.model = model
        self._logits = logits

    @classmethod
    def from_reads(
        cls, model: CausalModel, sequences: Sequence[GrowingSequence], reads: Sequence[Read]
    ) -> Flight:
        """Start sequences from their prompts, which may be the same for several."""
        memory = model.join([read.part for read in reads], _room(sequences))
        return cls(model, sequences, memory, model.stack(reads))

    @classmethod
    def from_memory(
        cls, model: CausalModel, sequences: Sequence[GrowingSequence], parts: Sequence[Part]
    ) -> Flight:
        """Go on with sequences whose newest token the model has not read yet."""
        return cls(model, sequences, model.join(parts, _room(sequences)))

    @property
    def growing(self) -> bool:
        """Whether any sequence still grows."""
        return any(sequence.ended is None for sequence in self.sequences)

    def fly(self, tokens: int | None = None) -> Flight:
        """Grow until all have ended, or by so many tokens."""
        while self.growing and tokens != 0:
            self.step()
            tokens = None if tokens is None else tokens - 1
        return self

    def step(self) -> None:
        """Give every sequence that grows one more token."""
        logits = self._logits
        if logits is None:
            self._shed()
            tokens = self.model.column([sequence.last_token for sequence in self.sequences])
            logits = self.memory.feed(tokens)[:, -1]
        self._logits = None
        opinions = choose(logits, [sequence.draw for sequence in self.sequences])
        for sequence, opinion in zip(self.sequences, opinions, strict=True):
            if sequence.ended is None:
                sequence.accept(opinion)

    def _shed(self) -> None:
        rows = [row for row, sequence in enumerate(self.sequences) if sequence.ended is None]
        if len(rows) <= len(self.sequences) * 3 // 4:
            self.sequences = [self.sequences[row] for row in rows]
            self.memory = self.memory.select(rows, _room(self.sequences))


def _room(sequences: Sequence[GrowingSequence]) -> int:
    return max(sequence.remaining for sequence in sequences)


def in_halves(items: Sequence[T], work: Callable[[Sequence[T]], list[R]]) -> list[R]:
    """Do work on a batch; where the device's memory does not suffice, on its halves, one after the other.

    Raises:
        ServiceError: If memory does not suffice for a single item.
    """
    try:
        return work(items)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        if len(items) == 1:
            raise ServiceError(
                "the device has too little memory for a single sequence",
                hint="use a shorter prompt, a smaller max_tokens, a smaller dtype or another device",
            ) from error
    # Outside the handler, so that the failed attempt's tensors are not kept by its traceback.
    release_memory()
    middle = len(items) // 2
    return [*in_halves(items[:middle], work), *in_halves(items[middle:], work)]


def pack(costs: Sequence[tuple[int, int]], budget: int) -> list[list[int]]:
    """Cut items into batches of a token budget, in order.

    Args:
        costs: Length and number of rows of each item; a batch costs its longest length times its rows.
        budget: Tokens a batch; an item that alone costs more gets a batch of its own.

    Example:
        >>> pack([(10, 1), (10, 2), (30, 1)], budget=40)
        [[0, 1], [2]]
    """
    batches: list[list[int]] = []
    longest = rows = 0
    for index, (length, count) in enumerate(costs):
        longest, rows = max(longest, length), rows + count
        if not batches or longest * rows > budget:
            batches.append([])
            longest, rows = length, count
        batches[-1].append(index)
    return batches
