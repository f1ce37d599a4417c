"""Samples and verdicts that are worked by hand, for tests of SePer in the core and in both frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surerag.messages import Pair
from surerag.readers.fake import reply


class Judge:
    """Says what a table says, and remembers what it was asked."""

    name = "table"
    local = True

    def __init__(self, table: dict[tuple[str, str], tuple[float, float, float]]) -> None:
        self.table = table
        self.asked: list[Pair] = []

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        self.asked += pairs
        return np.array([self.table.get((p.premise, p.hypothesis), (1.0, 0.0, 0.0)) for p in pairs])


def sampled(*answers: tuple[str, float]) -> list[Any]:
    """Generations of one token each, with their probabilities."""
    return [reply(text, entropy=None, logprobs=float(np.log(p)), end_logprob=0.0) for text, p in answers]


BEFORE = (("Orun", 0.5), ("Orun", 0.5), ("Toren", 0.3), ("Velm", 0.2))
AFTER = (("Velm", 0.6), ("Velm", 0.6), ("Velm", 0.6), ("Velmtown", 0.2))
LIKE = {("Velmtown", "Velm"): (0.1, 0.2, 0.7), ("Velm", "Velmtown"): (0.1, 0.7, 0.2)}
