"""Sequences that grow together, one token a step."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from surerag.readers.transformers.memory import Memory, Part
from surerag.readers.transformers.model import CausalModel, Read
from surerag.readers.transformers.sampling import choose
from surerag.readers.transformers.sequences import GrowingSequence


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
