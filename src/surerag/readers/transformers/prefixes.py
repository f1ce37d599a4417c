"""Which prompts read what: a prefix that several prompts share is read once.

The prompts of one call form a trie. Each prompt attaches to the longest prefix that a prompt before
it has read already, so that all of them together read as many tokens as the trie has, whatever the
order. ``k`` contexts that differ from a first one in one passage each cost their tails only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


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


def plan_readings(prompts: Sequence[Sequence[int]], minimum: int) -> list[Reading]:
    """Find for each prompt the longest useful prefix that another one has read.

    Args:
        prompts: Token ids of each prompt, all different.
        minimum: Shorter prefixes are not worth a pass of their own.

    Returns:
        One reading a prompt. At least one token is always left to read, since the model's opinion
        on what follows a prompt comes from reading its last token.

    Example:
        >>> plan_readings([[1, 2, 3, 4], [1, 2, 9], [7]], minimum=2)[1]
        Reading(parent=0, shared=2, wave=1)
    """
    arrays = [np.asarray(prompt, dtype=np.int64) for prompt in prompts]
    plan: dict[int, Reading] = {}
    # The prompt with the longest common prefix is a neighbour in lexicographic order.
    seen: list[tuple[tuple[int, ...], int]] = []
    for index in sorted(range(len(prompts)), key=lambda i: -len(prompts[i])):
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
            # A prefix that the parent itself took over is its parent's as well: fewer waves.
            while (above := plan[parent].parent) is not None and shared <= plan[parent].shared:
                parent = above
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
