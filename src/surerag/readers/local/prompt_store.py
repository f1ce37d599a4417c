"""Prompts that were read, kept from call to call: what the next call's prompts begin with is read once."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from torch import Tensor

from surerag.readers.local.memory import Part


class Read(NamedTuple):
    """A prompt that was read: where its memory is, and the logits [vocabulary] of what follows."""

    part: Part
    logits: Tensor


class PromptStore:
    """Whole prompts by their tokens, those that were used last. Not thread-safe.

    Attributes:
        most: Bytes that they may take.
        size: Bytes that they take.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        self._kept: OrderedDict[tuple[int, ...], tuple[Read, int]] = OrderedDict()
        self._ordered: list[tuple[int, ...]] = []
        self._state: Hashable = None

    def known(self, prompts: Sequence[Sequence[int]], state: Hashable) -> dict[int, Read]:
        """Return what was read of prompts by a model in this state, by their numbers."""
        if state != self._state:
            self.clear()
            self._state = state
        keys = {number: tuple(prompt) for number, prompt in enumerate(prompts)}
        found = {number: self._kept[key][0] for number, key in keys.items() if key in self._kept}
        for number in found:
            self._kept.move_to_end(keys[number])
        return found

    def beginnings(self, prompts: Sequence[Sequence[int]], least: int) -> dict[tuple[int, ...], Read]:
        """Return those kept prompts, by their tokens, that begin as some of these do, for so many tokens."""
        found = {}
        for prompt in map(tuple, prompts):
            place = bisect_left(self._ordered, prompt)
            # The one with the longest common beginning is a neighbour in lexicographic order.
            for key in self._ordered[max(place - 1, 0) : place + 1]:
                if key[:least] == prompt[:least] and len(prompt) > least:
                    self._kept.move_to_end(key)
                    found[key] = self._kept[key][0]
        return found

    def keep(self, prompt: Sequence[int], read: Read, size: int) -> None:
        """Keep a prompt that takes so many bytes, and let go of those that were used longest ago."""
        if size > self.most or tuple(prompt) in self._kept:
            return
        self._kept[tuple(prompt)] = read, size
        insort(self._ordered, tuple(prompt))
        self.size += size
        while self.size > self.most:
            key, (_, freed) = self._kept.popitem(last=False)
            del self._ordered[bisect_left(self._ordered, key)]
            self.size -= freed

    def clear(self) -> None:
        """Let go of all."""
        self._kept.clear()
        self._ordered.clear()
        self.size = 0
