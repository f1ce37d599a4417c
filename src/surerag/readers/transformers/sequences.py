"""Sequences: one while it grows, a batch that grows together, and those that wait to go on.

A :class:`GrowingSequence` knows its tokens, what the model thought of them and when it ends. A
:class:`Flight` gives the sequences of a batch one token a step. A :class:`Handle` is a sequence that
was put down, with its memory, and can go on later.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from surerag.readers.transformers.decoding import (
    Detokenizer,
    Draw,
    Opinion,
    StopScanner,
    choose,
    sequence_key,
)
from surerag.readers.transformers.memory import Memory, Part, join
from surerag.readers.transformers.model import CausalModel, is_out_of_memory
from surerag.readers.transformers.prefill import Read, following
from surerag.types import EntropyTrace, FinishReason, Generation, Sampling, TokenTrace


class GrowingSequence:
    """A sample of a prompt, fed one token at a time.

    A token that reaches into a stop text belongs to the answer if it begins before it: its
    probability is then in the trace, and its text is cut. Tokens that begin at the stop text or
    after it are not in the trace. A character of which only some bytes came is not shown.

    Attributes:
        prompt: Token ids of the prompt.
        sampling: How it is sampled.
        ended: Why it ended, or None while it grows.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_tokens: frozenset[int],
        prompt: Sequence[int],
        sampling: Sampling,
        sample: int = 0,
    ) -> None:
        self.prompt = prompt
        self.sampling = sampling
        self.ended: Literal["stop", "length"] | None = None
        self._end_tokens = end_tokens
        self._key = sequence_key(prompt, sampling.seed, sample)
        self._detokenizer = Detokenizer(tokenizer)
        self._scanner = StopScanner(sampling.stop)
        self._opinions: list[Opinion] = []
        self._pieces: list[str] = []

    def __len__(self) -> int:
        return len(self._opinions)

    def fork(self) -> GrowingSequence:
        """Return a copy that grows on independently."""
        twin = copy.copy(self)
        twin._detokenizer = self._detokenizer.fork()
        twin._scanner = copy.copy(self._scanner)
        twin._opinions, twin._pieces = self._opinions[:], self._pieces[:]
        return twin

    @property
    def draw(self) -> Draw:
        """What the choice of the next token depends on."""
        return Draw(self.sampling, self._key, len(self))

    @property
    def last_token(self) -> int:
        """The newest token, which the model has not read yet."""
        return self._opinions[-1].token if self._opinions else self.prompt[-1]

    @property
    def remaining(self) -> int:
        """Tokens that may still come."""
        return self.sampling.max_tokens - len(self)

    def accept(self, opinion: Opinion) -> None:
        """Take the next token; an end token ends the sequence and is not kept."""
        if opinion.token in self._end_tokens:
            self.ended = "stop"
            return
        self._opinions.append(opinion)
        piece = self._detokenizer.feed(opinion.token)
        self._pieces.append(piece)
        if self._scanner.feed(piece):
            self.ended = "stop"
        elif self.remaining <= 0:
            self.ended = "length"

    @property
    def shown(self) -> str:
        """Text that is certain to be part of the answer, white space not yet stripped."""
        return self._scanner.text[: self._scanner.safe] if self.ended is None else self._scanner.text

    def generation(self) -> Generation:
        """Return the answer so far; ``"partial"`` while it grows."""
        finish: FinishReason = self.ended or "partial"
        kept, pieces = self._kept()
        columns = [opinion[1:] for opinion in self._opinions[:kept]]
        logprobs, entropies, logsumexps = zip(*columns, strict=True) if columns else ((), (), ())
        trace = TokenTrace(pieces, logprobs, EntropyTrace(entropies, entropies, exact=True), logsumexps)
        return Generation(self._scanner.text.strip(), len(self.prompt), trace, finish, len(self))

    def _kept(self) -> tuple[int, tuple[str, ...]]:
        """Return how many tokens belong to the answer, and their texts."""
        if not self._scanner.stopped:
            return len(self._pieces), tuple(self._pieces)
        end, position, pieces = len(self._scanner.text), 0, []
        for piece in self._pieces:
            if position >= end:
                break
            pieces.append(piece[: end - position])
            position += len(piece)
        return len(pieces), tuple(pieces)


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
