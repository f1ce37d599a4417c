"""Tests of one bound on paired measurements: is it shown to hold, shown to be broken, or neither?

A condition holds where the mean of ``candidate - factor * reference`` lies above ``-margin`` (larger being
better here; a cost has its sign turned by the caller). That it lies below is the hypothesis to be rejected: a
pipeline passes by showing that it lost no more than the margin, not by failing to show a loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from surerag.decisions.paired import paired_p_value
from surerag.errors import InputError
from surerag.extras import extra

with extra("report"):
    from scipy import stats

Outcome = Literal["pass", "fail", "undecided"]
Method = Literal["exact", "score", "t"]

LEAST = 20
"""Questions below which nothing is said of measurements that are not right or wrong: a t interval of fewer
promises too much."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What a sample says of a bound.

    Attributes:
        outcome: ``"pass"``: the bound is shown to hold; ``"fail"``: that is not shown, and that something was
            lost is; ``"undecided"``: neither.
        difference: Mean of ``candidate - factor * reference``.
        low: One-sided lower bound of it, at the confidence.
        high: One-sided upper bound of it.
        p_pass: p-value of "the bound is broken".
        p_fail: p-value of "nothing was lost".
        n: Questions.
        spread: Standard deviation of a question's difference.
        method: ``"exact"`` for right and wrong answers; ``"score"`` for gains that are demanded of them;
            ``"t"`` for all else.
    """

    outcome: Outcome
    difference: float
    low: float
    high: float
    p_pass: float
    p_fail: float
    n: int
    spread: float
    method: Method


@dataclass(slots=True)
class Pairs:
    """Two measurements on the same questions, as counters: all that the tests need, however many there are.

    Example:
        >>> pairs = Pairs.of([1, 0, 1], [1, 1, 1])
        >>> pairs.n, pairs.lost, pairs.gained, round(pairs.difference(), 3)
        (3, 1, 0, -0.333)
    """

    n: int = 0
    first: float = 0.0
    second: float = 0.0
    first_squared: float = 0.0
    second_squared: float = 0.0
    product: float = 0.0
    lost: int = 0
    gained: int = 0
    is_binary: bool = True

    def add(self, first: float, second: float) -> None:
        """Add a question's measurements."""
        self.n += 1
        self.first += first
        self.second += second
        self.first_squared += first * first
        self.second_squared += second * second
        self.product += first * second
        self.lost += first < second
        self.gained += first > second
        self.is_binary = self.is_binary and first in (0, 1) and second in (0, 1)

    @classmethod
    def of(cls, first: ArrayLike, second: ArrayLike) -> Self:
        """Count two lists.

        Raises:
            InputError: If their lengths differ.
        """
        a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
        if a.shape != b.shape or a.ndim != 1:
            raise InputError(f"pairs need two equally long lists, got shapes {a.shape} and {b.shape}")
        made = cls()
        for one, other in zip(a.tolist(), b.tolist(), strict=True):
            made.add(one, other)
        return made

    def difference(self, factor: float = 1.0) -> float:
        """Return the mean of ``first - factor * second``."""
        return (self.first - factor * self.second) / self.n if self.n else 0.0

    def spread(self, factor: float = 1.0) -> float:
        """Return the standard deviation of ``first - factor * second``, unbiased in its square."""
        if self.n < 2:
            return 0.0
        squares = self.first_squared - 2 * factor * self.product + factor * factor * self.second_squared
        mean = self.difference(factor)
        # What is left of a difference of large numbers is no spread.
        left = squares - self.n * mean * mean
        scale = self.first_squared + factor * factor * self.second_squared
        return math.sqrt(left / (self.n - 1)) if left > 1e-12 * scale else 0.0

    @property
    def discordance(self) -> float:
        """Share of questions on which the two differ."""
        return (self.lost + self.gained) / self.n if self.n else 0.0

    def turned(self) -> Pairs:
        """Return the pairs of a cost with their signs turned, so that larger is better."""
        return replace(
            self, first=-self.first, second=-self.second, lost=self.gained, gained=self.lost, is_binary=False
        )


def judge_pair(pairs: Pairs, margin: float, *, factor: float = 1.0, confidence: float = 0.95) -> Judged:
    """Test whether a candidate lost no more than a margin against a reference on the same questions.

    Where all values are 0 or 1 and the factor is 1, the test is exact whatever the share of discordant
    questions is (:func:`surerag.decisions.paired.paired_p_value`); where a gain is demanded (a negative
    margin) it is Tango's score test (Statistics in Medicine 17, 1998). All else is tested by t.

    Args:
        pairs: The candidate's measurements first, the reference's second; larger is better.
        margin: What may be lost; below 0 what has to be gained.
        factor: What the reference is multiplied by.
        confidence: One-sided. A candidate that lost the margin or more passes with a probability of
            ``1 - confidence`` at most.

    Raises:
        InputError: If there are no questions.

    Example:
        >>> same = [1] * 80 + [0] * 20
        >>> judge_pair(Pairs.of(same, same), 0.05).outcome
        'pass'
        >>> judge_pair(Pairs.of(same[:30], same[:30]), 0.05).outcome
        'undecided'
        >>> judge_pair(Pairs.of([0] * 30 + [1] * 70, [1] * 100), 0.05).outcome
        'fail'
    """
    _check(pairs.n)
    if factor == 1 and pairs.is_binary:
        return _binary(pairs.lost, pairs.gained, pairs.n, margin, confidence)
    return _mean(pairs.n, pairs.difference(factor), pairs.spread(factor), margin, confidence)


def judge_mean(pairs: Pairs, bound: float, *, confidence: float = 0.95) -> Judged:
    """Test whether the mean of the first measurement lies above a bound; exact (binomial) for 0 and 1.

    Example:
        >>> def right(n, of):
        ...     return Pairs.of([1] * n + [0] * (of - n), [0] * of)
        >>> judge_mean(right(90, 100), 0.8).outcome, judge_mean(right(18, 20), 0.8).outcome
        ('pass', 'undecided')
    """
    _check(pairs.n)
    if not pairs.is_binary:
        return _mean(pairs.n, pairs.difference(0.0) - bound, pairs.spread(0.0), 0.0, confidence)
    n, right, tail = pairs.n, round(pairs.first), 1 - confidence
    p_pass = float(stats.binom.sf(right - 1, n, bound))
    p_fail = float(stats.binom.cdf(right, n, bound))
    low = float(stats.beta.ppf(tail, right, n - right + 1)) if right else 0.0
    high = float(stats.beta.ppf(1 - tail, right + 1, n - right)) if right < n else 1.0
    found = right / n
    return Judged(
        _outcome(p_pass, p_fail, tail),
        found - bound,
        low - bound,
        high - bound,
        p_pass,
        p_fail,
        n,
        math.sqrt(found * (1 - found)),
        "exact",
    )


def tango_z(n: int, lost: int, gained: int, loss: float) -> float:
    """Return Tango's score statistic for "the loss is ``loss``", positive where less was lost.

    Args:
        n: Pairs.
        lost: Of these, right under the reference alone.
        gained: Right under the candidate alone.
        loss: Share of questions lost, net; below 0 for a gain.

    Example:
        The example of the paper: 44 pairs, one of them lost, and a margin of 0.1.

        >>> round(tango_z(44, 1, 0, 0.1), 2)
        1.71
    """
    # The constrained maximum likelihood estimate of the share of gains, given the loss.
    shared = -lost - gained + (2 * n - lost + gained) * loss
    last = -gained * loss * (1 - loss)
    share = (math.sqrt(max(shared * shared - 8 * n * last, 0.0)) - shared) / (4 * n)
    variance = n * (2 * share + loss * (1 - loss))
    ahead = n * loss - (lost - gained)
    return (
        ahead / math.sqrt(variance) if variance > 1e-12 else math.copysign(math.inf, ahead) if ahead else 0.0
    )


def tango_interval(n: int, lost: int, gained: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Tango's score interval of the difference, gains less losses: two-sided.

    Example:
        >>> low, high = tango_interval(44, 1, 0)
        >>> round(low, 3), round(high, 3)
        (-0.118, 0.059)
    """
    tail = (1 - confidence) / 2
    return _lower(n, lost, gained, tail, exact=False), -_lower(n, gained, lost, tail, exact=False)


def _binary(lost: int, gained: int, n: int, margin: float, confidence: float) -> Judged:
    tail = 1 - confidence
    method: Method = "exact" if margin >= 0 else "score"
    if margin > 0:
        p_pass = paired_p_value(n, lost, gained, margin)
    elif margin == 0:
        p_pass = _sign(gained, lost)
    else:
        p_pass = float(stats.norm.sf(tango_z(n, lost, gained, margin)))
    p_fail = _sign(lost, gained) if margin >= 0 else float(stats.norm.cdf(tango_z(n, lost, gained, margin)))
    difference = (gained - lost) / n
    return Judged(
        _outcome(p_pass, p_fail, tail),
        difference,
        _lower(n, lost, gained, tail, exact=margin > 0),
        -_lower(n, gained, lost, tail, exact=False),
        p_pass,
        p_fail,
        n,
        math.sqrt(max((gained + lost) / n - difference * difference, 0.0)),
        method,
    )


def _sign(more: int, fewer: int) -> float:
    """Return the exact one-sided p-value of "``more`` is no likelier than ``fewer``"."""
    return float(stats.binom.sf(more - 1, more + fewer, 0.5))


def _lower(n: int, lost: int, gained: int, tail: float, *, exact: bool) -> float:
    """Return the difference that is just shown to be exceeded, from the test that decides."""
    least = stats.norm.ppf(1 - tail)
    if exact and paired_p_value(n, lost, gained, _SMALL) > tail:
        return -_bisected(lambda loss: paired_p_value(n, lost, gained, loss) <= tail, _SMALL, 1.0 - _SMALL)
    return -_bisected(lambda loss: tango_z(n, lost, gained, loss) >= least, -1 + _SMALL, 1 - _SMALL)


_SMALL = 1e-6


def _bisected(holds: Callable[[float], bool], low: float, high: float, steps: int = 16) -> float:
    """Return where a condition begins to hold."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _mean(n: int, difference: float, spread: float, margin: float, confidence: float) -> Judged:
    tail = 1 - confidence
    if n < LEAST:
        return Judged("undecided", difference, -math.inf, math.inf, 1.0, 1.0, n, spread, "t")
    error = spread / math.sqrt(n)
    reach = float(stats.t.ppf(confidence, n - 1)) * error

    def beyond(bound: float) -> float:
        """Return the p-value of "the mean is ``bound`` or less"."""
        if error == 0:
            return 0.0 if difference > bound else 1.0
        return float(stats.t.sf((difference - bound) / error, n - 1))

    p_pass, lost = beyond(-margin), max(-margin, 0.0)
    p_fail = (0.0 if difference < lost else 1.0) if error == 0 else 1 - beyond(lost)
    return Judged(
        _outcome(p_pass, p_fail, tail),
        difference,
        difference - reach,
        difference + reach,
        p_pass,
        p_fail,
        n,
        spread,
        "t",
    )


def _outcome(p_pass: float, p_fail: float, tail: float) -> Outcome:
    # 1 - 0.95 is a little more than 0.05.
    if p_pass <= tail + 1e-12:
        return "pass"
    return "fail" if p_fail <= tail + 1e-12 else "undecided"


def _check(n: int) -> None:
    if not n:
        raise InputError("there is no question that both were measured on", hint="compare on the same ones")
