"""Reading prompts: a prefix that several of them share is read once.

The prompts of one call form a trie. Each prompt attaches to the longest prefix that a prompt before
it has read already, so that all of them together read as many tokens as the trie has, whatever the
order. ``k`` contexts that differ from a first one in one passage each cost their tails only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surerag.readers.local.attention_memory import AttentionMemory
from surerag.readers.local.memory import Part
from surerag.readers.local.memory_kinds import memory_kind
from surerag.readers.local.model import CausalModel
from surerag.readers.local.prompt_store import PromptStore, Read

# A further pass costs about as much as reading this many tokens; padding beyond that does not pay.
_PASS_COST_CPU = 32
_PASS_COST_ACCELERATOR = 512
_TOKENS_A_PASS = 8192
_NEVER = 1 << 62


class Prefill:
    """Reads prompts into memory, in as few and as full passes as pay.

    Args:
        model: The model.
        kept_bytes: Memory for prompts that are kept from call to call.

    Attributes:
        store: Those prompts.
        tokens_read: Tokens that went through the model as prompts: each shared prefix once, and again
            what was read twice to bring rows to one length. Padding is not counted.
    """

    def __init__(self, model: CausalModel, kept_bytes: int = 0) -> None:
        self._model = model
        self._kind = memory_kind(model)
        self.store = PromptStore(kept_bytes)
        self.tokens_read = 0

    @property
    def shares(self) -> bool:
        """Whether prompts can go on from a prefix that was read before."""
        return issubclass(self._kind, AttentionMemory)

    @property
    def forks(self) -> bool:
        """Whether rows of one prompt share what was read of it."""
        return self._kind.forks

    def passes(self, lengths: Sequence[int]) -> list[list[int]]:
        """Cut rows, by their lengths, into passes that read little in vain."""
        return self._passes(dict(enumerate(lengths)))

    def pays_apart(self, apart: int, steps: int, whole: int) -> bool:
        """Whether to read ``apart`` tokens and go on for so many steps, rather than ``whole`` at once."""
        return apart + steps * self._pass_cost < whole

    def read(self, prompts: Sequence[Sequence[int]], room: int, min_shared: int) -> list[Read]:
        """Read different prompts, each shared prefix once.

        Args:
            prompts: Token ids of each.
            room: Tokens that each memory should be able to grow by without being copied.
            min_shared: Shortest prefix worth sharing.

        Returns:
            One :class:`Read` a prompt, in order.
        """
        if self.shares:
            return self._read_once(prompts, room, min_shared)
        reads: dict[int, Read] = {}
        lengths = {index: len(prompt) for index, prompt in enumerate(prompts)}
        for batch in self._passes(lengths):
            memory = self._kind.empty(self._model, len(batch))
            tokens = self._model.tensor([self._behind_padding(prompts[i], lengths[batch[0]]) for i in batch])
            logits = memory.feed_until([lengths[i] for i in batch], tokens)[:, -1]
            reads |= {i: Read(memory.part(row), logits[row]) for row, i in enumerate(batch)}
        self.tokens_read += sum(lengths.values())
        return [reads[index] for index in range(len(prompts))]

    def _read_once(self, prompts: Sequence[Sequence[int]], room: int, min_shared: int) -> list[Read]:
        """Read what no call before has read; keep it, as far as there is room."""
        state = self._model.state if self.store.most else None
        if state is None:
            return self._read_tree(prompts, room, min_shared)
        reads = self.store.known(prompts, state)
        numbers = [number for number in range(len(prompts)) if number not in reads]
        if numbers:
            fresh = [prompts[number] for number in numbers]
            found = self._read_tree(fresh, room, min_shared, self.store.beginnings(fresh, min_shared))
            reads |= dict(zip(numbers, found, strict=True))
            self._keep(fresh, found)
        return [reads[number] for number in range(len(prompts))]

    def _keep(self, prompts: Sequence[Sequence[int]], reads: Sequence[Read]) -> None:
        """Keep copies: what was read grows in place, and may be part of something larger."""
        room, chosen = self.store.most, []
        for number in reversed(range(len(prompts))):
            room -= self._model.bytes_per_token * len(prompts[number])
            if room < 0:
                break
            chosen.append(number)
        copies = cast("type[AttentionMemory]", self._kind).alone([reads[number].part for number in chosen])
        for number, memory in zip(chosen, copies, strict=True):
            logits = reads[number].logits.clone()
            self.store.keep(prompts[number], Read(memory.part(0), logits), memory.bytes + logits.nbytes)

    def _read_tree(
        self,
        fresh_prompts: Sequence[Sequence[int]],
        room: int,
        min_shared: int,
        known: Mapping[tuple[int, ...], Read] = MappingProxyType({}),
    ) -> list[Read]:
        prompts = [*known, *fresh_prompts]
        plan = plan_readings(prompts, min_shared, len(known))
        reads = dict(enumerate(known.values()))
        for wave in range(max(reading.wave for reading in plan) + 1):
            members = [i for i, reading in enumerate(plan) if reading.wave == wave and i >= len(known)]
            if not members:
                continue
            tails = {i: len(prompts[i]) - plan[i].shared for i in members}
            shared = max(plan[i].shared for i in members)
            for batch in self._passes(tails, self._model.tokens_before(shared)):
                steps = max(tails[i] for i in batch)
                # Rows with a shorter tail read the end of their prefix again: padding would cost the
                # same, and would tear slots and positions apart.
                kept = [max(len(prompts[i]) - steps, 0) if wave else 0 for i in batch]
                memory = self._prefixes([plan[i] for i in batch], kept, reads, steps, room)
                fresh = [prompts[i][start:] for i, start in zip(batch, kept, strict=True)]
                tokens = self._model.tensor([self._behind_padding(ids, steps) for ids in fresh])
                logits = memory.feed_until([len(prompts[i]) for i in batch], tokens)[:, -1]
                self.tokens_read += sum(map(len, fresh))
                reads |= {i: Read(memory.part(row), logits[row]) for row, i in enumerate(batch)}
        return [reads[index] for index in range(len(known), len(prompts))]

    def _prefixes(
        self, plan: Sequence[Reading], kept: Sequence[int], reads: dict[int, Read], steps: int, room: int
    ) -> AttentionMemory:
        parents = [reads[reading.parent].part for reading in plan if reading.parent is not None]
        if not any(kept):
            empty = self._kind.empty(self._model, len(kept), steps + room)
            return cast("AttentionMemory", empty)
        parts = [Part(parent.memory, parent.row, n) for parent, n in zip(parents, kept, strict=True)]
        fresh = steps * len(parts)
        # Beside long tails, what is copied costs little, and a product for each prefix more.
        gather = self._kind.fork if 2 * fresh <= sum(kept) else self._kind.gather
        return cast("AttentionMemory", gather(parts, steps + room))

    @property
    def _pass_cost(self) -> int:
        return _PASS_COST_CPU if self._model.device.type == "cpu" else _PASS_COST_ACCELERATOR

    def _behind_padding(self, ids: Sequence[int], length: int) -> list[int]:
        return [*[self._model.pad_token] * (length - len(ids)), *ids]

    def _passes(self, tails: dict[int, int], most: int = _TOKENS_A_PASS) -> list[list[int]]:
        """Cut a wave into passes of similar lengths, so that little is read in vain."""
        passes: list[list[int]] = []
        waste = 0
        for index in sorted(tails, key=lambda i: -tails[i]):
            if passes:
                longest = tails[passes[-1][0]]
                waste += longest - tails[index]
                if waste and not self._kind.pads:
                    waste = _NEVER
                fits = longest * (len(passes[-1]) + 1) <= min(most, _TOKENS_A_PASS)
                if fits and waste <= self._pass_cost + longest * len(passes[-1]) // 8:
                    passes[-1].append(index)
                    continue
            passes.append([index])
            waste = 0
        return passes


def following(reads: Sequence[Read]) -> Tensor:
    """Return what follows each prompt, as logits [rows, vocabulary]."""
    return torch.stack([read.logits for read in reads])


class Reading(NamedTuple):
    """How one prompt is read.

    Attributes:
        parent: The prompt whose memory it goes on from, or None.
        shared: Leading tokens that need not be read again.
        wave: 0 for prompts without a parent; otherwise one more than the parent's.
    """

    parent: int | None
    shared: int
    wave: int


def plan_readings(prompts: Sequence[Sequence[int]], minimum: int, known: int = 0) -> list[Reading]:
    """Find for each prompt the longest useful prefix that another one has read.

    Args:
        prompts: Token ids of each prompt, all different.
        minimum: Shorter prefixes are not worth a pass of their own.
        known: How many of them, the first ones, were read before and have no parent.

    Returns:
        One reading a prompt. At least one token is always left to read, since the model's opinion
        on what follows a prompt comes from reading its last token.

    Example:
        >>> plan_readings([[1, 2, 3, 4], [1, 2, 9], [7]], minimum=2)[1]
        Reading(parent=0, shared=2, wave=1)
    """
    arrays = [np.asarray(prompt, dtype=np.int64) for prompt in prompts]
    plan = dict.fromkeys(range(known), Reading(None, 0, 0))
    # The prompt with the longest common prefix is a neighbour in lexicographic order.
    seen = sorted((tuple(prompts[index]), index) for index in range(known))
    for index in sorted(range(known, len(prompts)), key=lambda i: -len(prompts[i])):
        key = (tuple(prompts[index]), index)
        place = bisect_left(seen, key)
        parent, shared = None, 0
        for _, neighbour in seen[max(place - 1, 0) : place + 1]:
            common = min(_common_prefix(arrays[index], arrays[neighbour]), len(prompts[index]) - 1)
            if common > shared:
                parent, shared = neighbour, common
        if parent is None or shared < minimum:
            plan[index] = Reading(None, 0, 0)
        else:
            # A prefix that the parent took over itself, but for a little, is its parent's as well: fewer
            # waves, and one prefix for more of them to share.
            while (above := plan[parent].parent) is not None and shared - plan[parent].shared < minimum:
                parent, shared = above, min(shared, plan[parent].shared)
            plan[index] = Reading(parent, shared, plan[parent].wave + 1)
        seen.insert(place, key)
    return [plan[index] for index in range(len(prompts))]


def families(plan: Sequence[Reading]) -> list[list[int]]:
    """Group prompts that share reading, directly or through others.

    Example:
        >>> families([Reading(None, 0, 0), Reading(0, 2, 1), Reading(None, 0, 0)])
        [[0, 1], [2]]
    """
    members: dict[int, list[int]] = {}
    for index in range(len(plan)):
        root = index
        while (parent := plan[root].parent) is not None:
            root = parent
        members.setdefault(root, []).append(index)
    return list(members.values())


def _common_prefix(first: NDArray[np.int64], second: NDArray[np.int64]) -> int:
    length = min(len(first), len(second))
    different = first[:length] != second[:length]
    return int(different.argmax()) if different.any() else length
