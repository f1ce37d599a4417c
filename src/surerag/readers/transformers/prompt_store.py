"""Prompts that were read, kept from call to call: to generate and then to score reads a prompt once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from torch import Tensor

from surerag.readers.transformers.memory import Part


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

    def keep(self, prompt: Sequence[int], read: Read, size: int) -> None:
        """Keep a prompt that takes so many bytes, and let go of those that were used longest ago."""
        if size > self.most or tuple(prompt) in self._kept:
            return
        self._kept[tuple(prompt)] = read, size
        self.size += size
        while self.size > self.most:
            _, (_, freed) = self._kept.popitem(last=False)
            self.size -= freed

    def clear(self) -> None:
        """Let go of all."""
        self._kept.clear()
        self.size = 0
