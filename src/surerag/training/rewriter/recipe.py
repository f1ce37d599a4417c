"""Rates, epochs and batches where nobody sets them: from what there is to learn from, and who learns."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from surerag.training.rewriter.options import FineTuning

Stage = Literal["distil", "align"]

_RATE, _AT, _EXPONENT = 2e-5, 7e9, 0.45
"""A rule of thumb: 2e-5 for seven billion weights, more for fewer by a power of the size that passes 1e-3 at
one million, where our own readers learn. Between these it was not measured."""
_HIGHEST = 1e-3
_ADAPTERS = 10
"""Adapters want about ten times the rate of all weights (a rule of thumb as well)."""
_PREFERENCES = 20
"""Preferences want a small part of the rate: at more, what was distilled is unlearnt."""
_LOOKS = 10


class Recipe(NamedTuple):
    """How long, how fast and in which portions a model learns.

    Attributes:
        learning_rate: Highest rate.
        batch: Examples a step.
        turn: Of these in memory at once, in each process.
        turns: Such portions a step, in each process.
        epochs: Passes over the data, at most.
        steps: All steps, at most.
        save_every: Steps between checkpoints.
    """

    learning_rate: float
    batch: int
    turn: int
    turns: int
    epochs: int
    steps: int
    save_every: int


def settled(
    settings: FineTuning, stage: Stage, rows: int, weights: int, processes: int = 1, *, looks: bool = False
) -> Recipe:
    """Fill in what was left open.

    A step sees a thirty-second of the examples, at least 4 and at most 32; passes are repeated until there
    are about 150 steps (60 for preferences), at least two (one) and at most ten (three).

    Args:
        settings: What was set.
        stage: Rewrites to repeat, or preferences.
        rows: Examples to learn from.
        weights: Of the model.
        processes: That share a step.
        looks: Whether examples are held back, which are looked at ten times, wherever a checkpoint is made.

    Example:
        >>> settled(FineTuning(), "distil", 52, 600_000_000)[:3]
        (6e-05, 4, 4)
        >>> settled(FineTuning(), "distil", 52, 600_000_000).steps
        130
    """
    full = min(_RATE * (_AT / max(weights, 1)) ** _EXPONENT, _HIGHEST)
    rate = min(full * _ADAPTERS, _HIGHEST) if settings.lora is not None else full
    rate = rate if stage == "distil" else rate / _PREFERENCES
    wanted, least, most = (150, 2, 10) if stage == "distil" else (60, 1, 3)
    batch = settings.batch or min(max(2 ** math.floor(math.log2(max(rows / 32, 1))), 4), 32)
    epochs = settings.epochs or min(max(math.ceil(wanted * batch / rows), least), most)
    steps = epochs * math.ceil(rows / batch)
    share = max(batch // processes, 1)
    turn = max(n for n in range(1, min(share, settings.micro_batch) + 1) if share % n == 0)
    every = math.ceil(steps / _LOOKS)
    if settings.save_every is not None and not looks:
        every = settings.save_every
    learning_rate = settings.learning_rate or float(f"{rate:.1g}")
    return Recipe(learning_rate, batch, turn, share // turn, epochs, steps, every)
