"""Entailment as equality: for speed, for short answers, and for tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from surerag.entailment.labels import CONTRADICTION, ENTAILMENT, LABELS
from surerag.measures import normalize_answer
from surerag.messages import Pair


class ExactEntailer:
    """Statements entail each other if they are equal after normalisation, and contradict otherwise.

    Normalisation is that of exact match: case, punctuation, English articles and white space.

    Example:
        >>> ExactEntailer().entail([Pair("The Orun.", "orun"), Pair("Velm", "Orun")]).tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """

    local = True
    name = "exact"

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """Return one-hot rows [pairs, 3]: contradiction, neutral, entailment."""
        rows = np.zeros((len(pairs), len(LABELS)))
        for row, pair in zip(rows, pairs, strict=True):
            same = normalize_answer(pair.premise) == normalize_answer(pair.hypothesis)
            row[ENTAILMENT if same else CONTRADICTION] = 1.0
        return rows
