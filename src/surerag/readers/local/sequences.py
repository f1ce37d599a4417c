"""Sequences: a batch that grows together, and those that wait to go on.

A :class:`Flight` gives the sequences of a batch one token a step. A :class:`Handle` is a sequence that
was put down, with its memory, and can go on later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from surerag.readers.local.decoding import choose
from surerag.readers.local.growing import GrowingSequence
from surerag.readers.local.memory import Memory, Part, join
from surerag.readers.local.model import CausalModel, is_out_of_memory
from surerag.readers.local.prefill import following
from surerag.readers.local.prompt_store import Read
from surerag.readers.threads import raise_if_cancelled


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
        memory = join([read.part for read in reads], _room(sequences))
        return cls(model, sequences, memory, following(reads))

    @classmethod
    def from_memory(
        cls, model: CausalModel, sequences: Sequence[GrowingSequence], parts: Sequence[Part]
    ) -> Flight:
        """Go on with sequences whose newest token the model has not read yet."""
        return cls(model, sequences, join(parts, _room(sequences)))

    @property
    def growing(self) -> bool:
        """Whether any sequence still grows."""
        return any(sequence.ended is None for sequence in self.sequences)

    def fly(self) -> Flight:
        """Grow until all have ended."""
        while self.growing:
            self.step()
        return self

    def begin(self, tokens: int) -> list[Handle]:
        """Grow until each has so many tokens of an answer, or has ended; put them down as they are there.

        Sequences that think get there at different times. Those that are there wait; the others go on.
        """
        there: dict[int, Handle] = {}
        while self.growing:
            self.step()
            rows = [row for row, sequence in enumerate(self.sequences) if sequence.ended is None]
            ready = [row for row in rows if has_begun(self.sequences[row], tokens)]
            if len(ready) == len(rows):
                break
            if ready:
                there |= self._put_down(ready)
        block = Block(self.memory)
        for row, sequence in enumerate(self.sequences):
            if sequence.ended is None:
                there[id(sequence)] = Handle(self.model, sequence, block, row)
        return [there.get(id(sequence)) or Handle(self.model, sequence, None, 0) for sequence in self.started]

    def _put_down(self, rows: Sequence[int]) -> dict[int, Handle]:
        """Take rows out of the flight, with their memory."""
        block = Block(self.memory.select(rows))
        gone = [Handle(self.model, self.sequences[row], block, place) for place, row in enumerate(rows)]
        self._keep([row for row in range(len(self.sequences)) if row not in rows])
        return {id(handle.sequence): handle for handle in gone}

    def step(self) -> None:
        """Give every sequence that grows one more token.

        Raises:
            CancelledWorkError: If nobody waits for them any more.
        """
        raise_if_cancelled()
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
            self._keep(rows)

    def _keep(self, rows: Sequence[int]) -> None:
        self.sequences = [self.sequences[row] for row in rows]
        self.memory = self.memory.select(rows, _room(self.sequences))


def _room(sequences: Sequence[GrowingSequence]) -> int:
    return max(sequence.room for sequence in sequences)


def has_begun(sequence: GrowingSequence, tokens: int) -> bool:
    """Tell whether there are so many tokens of an answer, and not of what may be thoughts."""
    return sequence.settled and len(sequence) >= tokens


class Block:
    """The memory that the generations of one Begin share.

    Attributes:
        memory: The rows of all handles, or None once all have been released.
        handles: Who still needs a row.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory: Memory | None = memory
        self.handles: list[Handle] = []

    def release(self, handles: Sequence[Handle]) -> None:
        """Let go of rows; the tensors shrink when half of them or more are not needed any more."""
        gone = set(map(id, handles))
        self.handles = [held for held in self.handles if id(held) not in gone]
        if not self.handles:
            self.memory = None
        elif self.memory is not None and 2 * len(self.handles) <= len(self.memory.lengths):
            self._shrink(self.memory)

    def _shrink(self, memory: Memory) -> None:
        try:
            self.memory = memory.select([held.row for held in self.handles])
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            # The smaller copy does not fit beside the whole: the whole stays until the last row is free.
            return
        for row, held in enumerate(self.handles):
            held.row = row


class Handle:
    """One generation that was begun.

    Attributes:
        owner: The model that began it.
        sequence: What there is of it.
        block: The memory it goes on from; None if it has ended.
        row: Its row there.
        fate: Whether it waits, or what became of it.
        unwanted: Whether it is to be cancelled, be it while it is finished.
    """

    def __init__(self, owner: CausalModel, sequence: GrowingSequence, block: Block | None, row: int) -> None:
        self.owner = owner
        self.sequence = sequence
        self.block = block
        self.row = row
        self.fate: Literal["waiting", "finished", "cancelled"] = "waiting"
        self.unwanted = False
        if block is not None:
            block.handles.append(self)

    @property
    def part(self) -> Part:
        """Its row of the block's memory."""
        if self.block is None or self.block.memory is None:
            raise RuntimeError("an ended generation has no memory")
        return self.block.memory.part(self.row)


def close(handles: Sequence[Handle], fate: Literal["finished", "cancelled"]) -> None:
    """Settle the fate of handles, and free their memory."""
    for handle in handles:
        handle.fate = fate
    release(handles)


def release(handles: Sequence[Handle]) -> None:
    """Free the memory of handles; those of one block at once, so that it shrinks once."""
    by_block: dict[int, list[Handle]] = {}
    for handle in handles:
        if handle.block is not None:
            by_block.setdefault(id(handle.block), []).append(handle)
    for members in by_block.values():
        block = members[0].block
        if block is not None:
            block.release(members)
        for handle in members:
            handle.block = None
