"""Generations that were begun and wait: their memory, kept as long as anyone may go on from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from surerag.readers.transformers.flight import Flight
from surerag.readers.transformers.memory import Memory, Part
from surerag.readers.transformers.model import CausalModel, is_out_of_memory
from surerag.readers.transformers.sequences import GrowingSequence


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
    """

    def __init__(self, owner: CausalModel, sequence: GrowingSequence, block: Block | None, row: int) -> None:
        self.owner = owner
        self.sequence = sequence
        self.block = block
        self.row = row
        self.fate: Literal["waiting", "finished", "cancelled"] = "waiting"
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


def hold(flight: Flight) -> list[Handle]:
    """Put down a flight's sequences, so that those that still grow can go on later."""
    block = Block(flight.memory)
    rows = {id(sequence): row for row, sequence in enumerate(flight.sequences)}
    return [
        Handle(flight.model, sequence, block if sequence.ended is None else None, rows.get(id(sequence), 0))
        for sequence in flight.started
    ]
