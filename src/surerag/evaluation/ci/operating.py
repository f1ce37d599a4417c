"""What a test of n questions catches, and how many questions another margin needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from surerag.errors import ConfigurationError
from surerag.extras import extra

with extra("report"):
    from scipy import stats

MOST = 10_000_000


@dataclass(frozen=True, slots=True)
class Point:
    """What happens where the truth is known.

    Attributes:
        change: True difference between candidate and reference, in shares.
        passes: Probability that the condition passes.
        fails: That it fails.
        undecided: That it is neither.
    """

    change: float
    passes: float
    fails: float
    undecided: float


def power(n: int, margin: float, discordance: float, change: float = 0.0, confidence: float = 0.95) -> float:
    """Return the probability that a paired test of right and wrong answers passes.

    By the normal approximation, with the variance under the hypothesis as Tango's statistic has it; within
    two points of the exact test where that was enumerated (the tests do).

    Args:
        n: Questions.
        margin: What may be lost, a share.
        discordance: Share of questions that only one of the two gets right.
        change: True difference; its size is ``discordance`` at most.
        confidence: Of the test, one-sided.

    Example:
        >>> round(power(500, 0.05, 0.10), 2), round(power(500, 0.05, 0.10, -0.05), 2)
        (0.96, 0.05)
    """
    lost, gained = (discordance - change) / 2, (discordance + change) / 2
    if min(lost, gained) < -1e-12 or n < 1:
        raise ConfigurationError(
            f"a change of {change:+.3f} needs a discordance of {abs(change):.3f}, got {discordance:.3f}"
        )
    # Without a single discordant question, the test passes at this number and not below.
    if margin > 0 and (1 - margin) ** n > 1 - confidence:
        return 0.0
    shared = -lost - gained + (2 - lost + gained) * margin
    root = math.sqrt(max(shared * shared + 8 * max(gained, 0.0) * margin * (1 - margin), 0.0))
    under = max((root - shared) / 2 + margin * (1 - margin), 0.0)
    true = discordance - change * change
    ahead = (change + margin) * math.sqrt(n) - float(stats.norm.ppf(confidence)) * math.sqrt(under)
    if true <= 1e-12:
        return float(ahead >= 0)
    return float(stats.norm.cdf(ahead / math.sqrt(true)))


def power_of_mean(
    n: int, margin: float, spread: float, change: float = 0.0, confidence: float = 0.95
) -> float:
    """Return the probability that a test of a mean passes, by the normal approximation.

    Args:
        n: Questions.
        margin: What may be lost.
        spread: Standard deviation of a question's difference.
        change: True difference.
        confidence: Of the test, one-sided.

    Example:
        >>> round(power_of_mean(100, 0.1, 0.5, 0.0), 2)
        0.64
    """
    if spread <= 0:
        return float(change + margin > 0)
    ahead = (change + margin) * math.sqrt(n) / spread - float(stats.norm.ppf(confidence))
    return float(stats.norm.cdf(ahead))


def curve(n: int, margin: float, discordance: float, *, confidence: float = 0.95) -> list[Point]:
    """Return what becomes of pipelines that changed by nothing, by half the margin, by all of it and more.

    Args:
        n: Questions.
        margin: What may be lost, above 0.
        discordance: Share of questions that differ where nothing was lost; a loss adds to it.
        confidence: Of the test.

    Example:
        >>> [round(point.change, 3) for point in curve(500, 0.05, 0.1)]
        [0.05, 0.0, -0.025, -0.05, -0.075, -0.1]
    """
    found = []
    z = float(stats.norm.ppf(confidence))
    for times in (1.0, 0.0, -0.5, -1.0, -1.5, -2.0):
        change = times * margin
        differing = min(max(discordance, abs(change)), 1.0)
        passes = power(n, margin, differing, change, confidence)
        error = math.sqrt(max(differing - change * change, 1e-12) / n)
        shown = float(stats.norm.cdf((-z * error - change) / error))
        fails = min(shown, 1 - passes)
        found.append(Point(change, passes, fails, max(1 - passes - fails, 0.0)))
    return found


def questions_for(
    margin: float, discordance: float, *, wanted: float = 0.95, confidence: float = 0.95
) -> int:
    """Return how many questions an unchanged pipeline needs to pass as often as wanted.

    Args:
        margin: What may be lost, a share above 0.
        discordance: Share of questions that only one of the two gets right.
        wanted: Probability of passing.
        confidence: Of the test.

    Example:
        >>> questions_for(0.05, 0.10), questions_for(0.02, 0.10)
        (468, 2748)
    """
    if margin <= 0:
        raise ConfigurationError(
            f"no number of questions shows that nothing at all was lost, and the margin is {margin:g}",
            hint="allow a loss: plain - 2, say",
        )
    low, high = 1, 2
    while power(high, margin, discordance, 0.0, confidence) < wanted:
        low, high = high, high * 2
        if high > MOST:
            return MOST
    while low < high:
        middle = (low + high) // 2
        if power(middle, margin, discordance, 0.0, confidence) >= wanted:
            high = middle
        else:
            low = middle + 1
    return high


def questions_for_mean(
    margin: float, spread: float, *, wanted: float = 0.95, confidence: float = 0.95
) -> int:
    """Return how many questions a mean that did not change needs to pass as often as wanted.

    Example:
        >>> questions_for_mean(0.1, 0.5)
        271
    """
    if margin <= 0:
        raise ConfigurationError(f"the margin is above 0, got {margin:g}")
    z = float(stats.norm.ppf(confidence)) + float(stats.norm.ppf(wanted))
    return max(math.ceil((z * spread / margin) ** 2), 2)
