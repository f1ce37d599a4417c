"""What is at hand beside a reader's doubt when a decision is made: scores of what was found."""

from __future__ import annotations

from collections.abc import Sequence

SCORES = ("top_score", "score_gap")
"""Names of what scores tell: the best one, and how far the next lies below it."""


def score_features(scores: Sequence[float | None]) -> dict[str, float]:
    """Return what the scores of passages or summaries tell, best first; those without one are passed over.

    Example:
        >>> score_features([0.75, 0.5, None]), score_features([None])
        ({'top_score': 0.75, 'score_gap': 0.25}, {})
    """
    known = [float(score) for score in scores if score is not None]
    told = known[:1] if len(known) < 2 else [known[0], known[0] - known[1]]
    return dict(zip(SCORES, told, strict=False))
