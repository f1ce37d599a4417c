"""How many questions would decide a difference that is undecided."""

from __future__ import annotations

import math

from surerag.extras import extra

with extra("report"):
    from scipy import stats


def questions_to_show(
    difference: float, spread: float, *, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """Return how many questions show a difference, if it is what it looks like.

    Args:
        difference: Mean difference of a question.
        spread: Its standard deviation over questions.
        alpha: Two-sided level, corrected for the number of tests if there are several.
        power: Probability of showing it.

    Returns:
        The number, of all questions and not of further ones; None where nothing differs.

    Example:
        A difference of 5 points between answers of which one in ten differs.

        >>> questions_to_show(0.05, 0.1 ** 0.5)
        314
    """
    if difference == 0 or spread <= 0:
        return None
    z = float(stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power))
    return math.ceil((z * spread / abs(difference)) ** 2)


def questions_to_exclude(
    matters: float, spread: float, *, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """Return how many questions show that two systems differ by less than what matters, if they are equal.

    That both one-sided bounds lie within it (two one-sided tests).

    Args:
        matters: Smallest difference that matters, above 0.
        spread: Standard deviation of a question's difference.
        alpha: Of each of the two tests.
        power: Probability of showing it.

    Example:
        >>> questions_to_exclude(0.05, 0.1 ** 0.5)
        343
    """
    if spread <= 0:
        return None
    z = float(stats.norm.ppf(1 - alpha) + stats.norm.ppf((1 + power) / 2))
    return math.ceil((z * spread / matters) ** 2)
