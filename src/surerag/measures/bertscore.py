"""BERTScore: how near an answer's tokens come to those of a gold answer, in their contexts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def bert_score(answer: ArrayLike, gold: ArrayLike) -> float:
    """F of greedily matched token vectors (Zhang et al., 2020, Eq. 1 to 3), without weights or rescaling.

    Args:
        answer: Vectors of the answer's tokens, of length 1, shape [tokens, dimensions].
        gold: Those of the gold answer, shape [tokens, dimensions].

    Returns:
        At most 1; 0 where either has no token.

    Example:
        >>> bert_score([[1, 0], [0, 1]], [[1, 0], [0, 1]]), round(bert_score([[1, 0]], [[1, 0], [0, 1]]), 3)
        (1.0, 0.667)
    """
    said, wanted = np.asarray(answer, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    if not said.size or not wanted.size:
        return 0.0
    near = said @ wanted.T
    precision, recall = float(near.max(axis=1).mean()), float(near.max(axis=0).mean())
    return 0.0 if precision + recall <= 0 else 2 * precision * recall / (precision + recall)
