"""p-values for a bounded loss from one sample: exact for right and wrong answers, by betting for scores.

Each question's loss against always acting is what acting would have changed, where the rule does not act, and
else 0; so it lies in [-1, 1]. The hypothesis that is tested is that its mean exceeds a bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from surerag.extras import extra

NUISANCE_POINTS = 32
"""Shares of discordant questions over which the exact p-value takes its largest value."""

PRIOR_DISCORDANT = 0.5
"""What is added to the number of discordant questions in the order of outcomes, in units of the losses that
the bound allows. Without it a sample of two losses and nothing else, whose variance looks small, would count
as clearer evidence than five mended and ten spoiled. It changes the power of the test, not its level."""


@lru_cache(maxsize=65536)
def paired_p_value(n: int, mended: int, spoiled: int, bound: float, slip: float = 0.001) -> float:
    """Return the exact p-value of "the loss exceeds the bound", for answers that are right or wrong.

    Of n questions, the rule keeps from acting on ``mended`` that acting would have mended, and on ``spoiled``
    that it would have spoiled; the estimated loss is their difference over n. Outcomes are ordered by the
    studentised difference, its variance a little smoothed (:data:`PRIOR_DISCORDANT`). The probability of one
    at least as small is taken at its largest over the shares of discordant questions in a Clopper-Pearson
    interval of level 1 - ``slip``, and ``slip`` is added (Berger & Boos, JASA 89, 1994, applied to the exact
    unconditional test for paired proportions of Hsueh, Liu & Chen, Biometrics 57, 2001). The largest value is
    looked for on a grid of :data:`NUISANCE_POINTS` shares.

    Args:
        n: Questions in the sample.
        mended: Questions without action that acting turns right.
        spoiled: Questions without action that acting turns wrong.
        bound: Allowed loss, above 0.
        slip: Level given up for the interval of the nuisance.

    Raises:
        MissingExtraError: If scipy is not installed.

    Example:
        >>> round(paired_p_value(250, 0, 0, 0.02), 4)  # 0.98 ** 250, and the slip
        0.0074
        >>> paired_p_value(250, 6, 1, 0.02)
        1.0
        >>> paired_p_value(250, 1, 0, 0.02) < 0.05 < paired_p_value(250, 2, 0, 0.02)
        True
    """
    with extra("decisions"):
        from scipy.stats import beta, binom

    discordant, difference, expected = mended + spoiled, mended - spoiled, n * bound
    if difference >= expected:
        return 1.0
    # The interval of Clopper and Pearson.
    least = float(beta.ppf(slip / 2, discordant, n - discordant + 1)) if discordant else 0.0
    most = float(beta.ppf(1 - slip / 2, discordant + 1, n - discordant)) if discordant < n else 1.0
    if most <= bound:
        # The loss is at most the share of discordant questions.
        return slip
    shares = np.linspace(max(least, bound, 1e-12), most, NUISANCE_POINTS)
    # Outcomes farther off than nine standard deviations weigh nothing.
    spread = 9 * np.sqrt(n * shares * (1 - shares)) + 9
    low, high = math.floor((n * shares - spread).min()), math.ceil((n * shares + spread).max())
    counts = np.arange(max(0, low), min(n, high) + 1)
    mended_at_most = np.floor(
        (_largest_as_small(n, discordant, difference, expected, counts) + counts) / 2 + 1e-9
    )
    mending = np.minimum(1.0, (shares + bound) / (2 * shares))
    tails = binom.pmf(counts, n, shares[:, None]) * binom.cdf(mended_at_most, counts, mending[:, None])
    return min(1.0, float(tails.sum(axis=1).max()) + slip)


def _largest_as_small(
    n: int, discordant: int, difference: int, expected: float, counts: NDArray[np.int_]
) -> NDArray[np.float64]:
    """Return, for each number of discordant questions, the largest difference whose statistic is as small.

    The statistic is z(t, d) = (t - n·bound) / sqrt(d + c - t²/n), which grows with t for each d; so the
    boundary is the smaller root of (t - n·bound)² = z² (d + c - t²/n).
    """
    more = PRIOR_DISCORDANT * expected
    z_squared = (difference - expected) ** 2 / max(discordant + more - difference * difference / n, 1e-9)
    stretch = 1 + z_squared / n
    inside = expected**2 - stretch * (expected**2 - z_squared * (counts + more))
    # Without a root every difference is so far below that its statistic is smaller still.
    roots = (expected - np.sqrt(np.maximum(inside, 0.0))) / stretch
    return np.where(inside < 0, counts, np.minimum(roots, counts)).astype(np.float64)


def betting_p_value(losses: NDArray[np.float64], bound: float, confidence: float = 0.95) -> float:
    """Return a p-value of "the mean of losses in [-1, 1] exceeds the bound", by betting.

    A gambler who bets against the hypothesis gets rich only where it is false: one over the largest capital
    is a p-value (Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting", JRSSB 86,
    2024, with predictable plug-in bets; losses are brought to [0, 1] first). It holds for any bounded losses,
    in the order in which they are given.

    Args:
        losses: Shape [n].
        bound: Allowed mean loss.
        confidence: That of the promise, which sets the size of the bets.

    Example:
        >>> betting_p_value(np.zeros(250), 0.02) < 0.05 < betting_p_value(np.zeros(25), 0.02)
        True
    """
    return bets([losses], len(losses), bound, confidence)


def bets(parts: Iterable[NDArray[np.float64]], n: int, bound: float, confidence: float) -> float:
    """Return :func:`betting_p_value` of n losses that come in parts, holding one at a time."""
    fair, stakes = (1 - bound) / 2, math.sqrt(2 * math.log(1 / (1 - confidence)))
    seen, most, before = 0, 0.0, (0.0, 0.0, 0.0)
    for losses in parts:
        steps = np.arange(seen + 1, seen + len(losses) + 1)
        saved = (1 - losses) / 2
        sums = before[0] + np.cumsum(saved)
        spread = before[1] + np.cumsum((saved - (0.5 + sums) / (steps + 1)) ** 2)
        variance = (0.25 / 4 + np.append(before[1], spread[:-1])) / steps
        stake = np.minimum(stakes / np.sqrt(n * variance), 0.9 / fair)
        capital = before[2] + np.cumsum(np.log1p(stake * (saved - fair)))
        most = max(most, float(capital.max(initial=0.0)))
        seen += len(losses)
        before = (float(sums[-1]), float(spread[-1]), float(capital[-1]))
    return min(1.0, math.exp(-most))


def hoeffding_bentkus_p_value(losses: NDArray[np.float64], bound: float) -> float:
    """Return the Hoeffding-Bentkus p-value of Learn then Test (arXiv 2110.01052), to compare with.

    It knows the range alone, not how few questions differ: losses in [-1, 1] are brought to [0, 1].

    Raises:
        MissingExtraError: If scipy is not installed.

    Example:
        >>> hoeffding_bentkus_p_value(np.zeros(250), 0.02) > 0.5
        True
    """
    with extra("decisions"):
        from scipy.stats import binom

    n, found, fair = len(losses), float((1 + losses.mean()) / 2), (1 + bound) / 2
    if found >= fair:
        return 1.0
    divergence = found * math.log(found / fair) if found > 0 else 0.0
    divergence += (1 - found) * math.log((1 - found) / (1 - fair))
    bentkus = math.e * float(binom.cdf(math.ceil(n * found - 1e-9), n, fair))
    return min(1.0, math.exp(-n * divergence), bentkus)
