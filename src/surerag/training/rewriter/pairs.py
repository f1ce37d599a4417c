"""From rewards to preferences (DynQR, section 2.2, Preference Alignment)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from surerag.errors import InputError


class Preference(NamedTuple):
    """One rewrite is better than another; both are named by their places."""

    better: int
    worse: int
    difference: float


def preference_pairs(
    rewards: Sequence[float], most: int = 3, *, least_difference: float = 0.0
) -> list[Preference]:
    """Pair every rewrite with every one of lower reward, and keep the pairs with the largest difference.

    Args:
        rewards: One for each distinct rewrite of a query, higher for a better one; the reward for
            uncertainty is its negative. May be infinite.
        most: Pairs to keep.
        least_difference: Pairs that differ by no more are no pairs.

    Returns:
        At most ``most`` pairs, largest difference first; of equal differences those that come first when
        all pairs ⟨i, j⟩ are counted in order of i, then j. Empty if all rewards are equal.

    Raises:
        InputError: If a reward is no number.

    Example:
        >>> [tuple(pair) for pair in preference_pairs([-1.5, -1.0, -1.5, -4.0])]
        [(1, 3, 3.0), (0, 3, 2.5), (2, 3, 2.5)]
        >>> preference_pairs([0.0, 0.0])
        []
    """
    if any(math.isnan(reward) for reward in rewards):
        raise InputError(f"a reward is no number: {list(rewards)!r}", hint="leave out what was not measured")
    found = [
        Preference(i, j, better - worse)
        for i, better in enumerate(rewards)
        for j, worse in enumerate(rewards)
        if better > worse and better - worse > least_difference
    ]
    return sorted(found, key=lambda pair: -pair.difference)[:most]
