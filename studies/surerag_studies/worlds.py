"""The worlds that studies ask: today's, or one of a regime."""

from __future__ import annotations

import math

from surerag.world import World
from surerag.world.regimes import TODAY, Regime
from surerag.world.spec import DEFAULT_SIZE

_FEWEST, _PER_QUESTION = 120, 0.3


def world_of(which: Regime, n: int, seed: int) -> World:
    """Return the world of a regime that n questions are asked about.

    Today's always has its usual size. What misleads is text to be indexed, so that worlds of the others are
    no larger than n questions need.
    """
    if which == TODAY:
        return World(seed=seed)
    size = min(DEFAULT_SIZE, max(_FEWEST, math.ceil(_PER_QUESTION * n)))
    return World(seed=seed, size=size, spec=which.spec)


def place_of(regime: str) -> str:
    """Name the world in a heading.

    Example:
        >>> place_of("today"), place_of("namesakes")
        ('the closed world', 'the closed world, regime namesakes')
    """
    return "the closed world" if regime == TODAY.name else f"the closed world, regime {regime}"
