"""How uncertain a model was of an answer, from its tokens; and how well that tells wrong answers from right.

Every measure is an uncertainty: larger means less certain. What falls between bounds because a server lists
only some alternatives to a token has bounds here as well: each measure of entropies grows with each of them,
so that the lower bounds of the entropies give its lower bound, and the upper ones its upper bound.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from surerag.measures.likelihood import mean_of, tokens_of
from surerag.measures.statistics import (
    Estimate,
    Floats,
    Groups,
    Interval,
    constant_interval,
    group_numbers,
    student_quantile,
)


def mean_entropy(entropies: ArrayLike, first: int | None = None) -> float:
    """Return the mean entropy of an answer's tokens: H̄ = (1/n) Σ H(t) (L-RAG, Eq. 3).

    Args:
        entropies: Entropy of the next-token distribution at each step, in nats, shape [tokens].
        first: How many tokens to average, n; None for all of them.

    Returns:
        The mean, in nats.

    Raises:
        ValueError: If there is no token.

    Example:
        >>> mean_entropy([1.0, 3.0, 8.0]), mean_entropy([1.0, 3.0, 8.0], first=2)
        (4.0, 2.0)
    """
    return mean_of(entropies, first)


def greatest_entropy(entropies: ArrayLike, count: int = 1) -> float:
    """Return the mean of the ``count`` greatest entropies of an answer: (1/k) Σ H(t) over the k greatest.

    With k = 1 it is the greatest entropy, max H(t) (L-RAG, section III-A: "at any generation step").

    Args:
        entropies: Entropy of the next-token distribution at each step, in nats, shape [tokens].
        count: How many to average, k; all of them where the answer has fewer tokens.

    Returns:
        The mean, in nats.

    Raises:
        ValueError: If there is no token.

    Example:
        >>> greatest_entropy([1.0, 3.0, 8.0]), greatest_entropy([1.0, 3.0, 8.0], count=2)
        (8.0, 5.5)
    """
    return mean_of(sorted(tokens_of(entropies))[-count:])


def negative_log_likelihood(logprobs: ArrayLike) -> float:
    """Return −log P of the whole answer: −Σ log p(t), in nats; a longer answer has more of it.

    Args:
        logprobs: Natural-log probability of each token, shape [tokens].

    Raises:
        ValueError: If there is no token.

    Example:
        >>> round(negative_log_likelihood(np.log([0.5, 0.25])), 4) == round(math.log(8), 4)
        True
    """
    return -math.fsum(tokens_of(logprobs))


def auroc(
    uncertainty: ArrayLike,
    right: ArrayLike,
    groups: Groups = None,
    *,
    confidence: float = 0.95,
) -> Estimate | None:
    """Return how well an uncertainty tells wrong answers from right ones: the area under the ROC curve.

    It is the probability that a wrong answer is more uncertain than a right one, A = P(U_wrong > U_right) +
    P(U_wrong = U_right)/2; one half says nothing. The interval has the variance of DeLong, DeLong &
    Clarke-Pearson (Biometrics 44, 1988), with groups that of Obuchowski (Biometrics 53, 1997, Eq. 4) and
    Student's quantile, on the scale of log(A / (1 − A)). Where no pair is confused, it is the exact one of as
    many cases as the smaller class has.

    Args:
        uncertainty: Of each answer; larger is less certain, infinity allowed, shape [answers].
        right: Whether each answer is right, shape [answers].
        groups: What each answer belongs to, such as its document; answers of one group depend on each other.
        confidence: Of the two-sided interval.

    Returns:
        The area with its interval; None where all answers are right, or all wrong.

    Raises:
        ValueError: If the lengths differ, or an uncertainty is not a number.

    Example:
        >>> auroc([0.1, 0.4, 0.3, 0.9], [True, True, False, False]).text(digits=2)
        '0.75 [0.07, 0.99]'
        >>> auroc([0.1, 0.4], [True, True]) is None
        True
    """
    values, correct = np.asarray(uncertainty, np.float64), np.asarray(right, bool)
    if values.ndim != 1 or values.shape != correct.shape or np.isnan(values).any():
        raise ValueError(
            f"expected a number and a truth for each answer, got {values.shape}, {correct.shape}"
        )
    wrong = ~correct
    m, n = int(wrong.sum()), int(correct.sum())
    if not m or not n:
        return None
    # How often each answer is on the proper side of those of the other class.
    placed = np.empty(len(values))
    placed[wrong] = _share_below(values[wrong], values[correct])
    placed[correct] = 1 - _share_below(values[correct], values[wrong])
    area = float(placed[wrong].mean())
    sums = np.bincount(
        group_numbers(groups, len(values)),
        (placed - area) / np.where(wrong, m, n),
    )
    fewest = min(m, n, len(sums))
    if not 0 < area < 1:
        return Estimate(area, constant_interval(area, fewest, confidence=confidence), len(values))
    if fewest == 1:
        return Estimate(area, Interval(0.0, 1.0), len(values))
    error = math.sqrt(float((sums**2).sum()) * fewest / (fewest - 1))
    quantile = NormalDist().inv_cdf((1 + confidence) / 2)
    if len(sums) < len(values):  # groups may be few
        quantile = student_quantile(quantile, len(sums) - 1)
    reach = quantile * error / (area * (1 - area))
    odds = math.log(area / (1 - area))
    lower, upper = (0.5 * (1 + math.tanh(end / 2)) for end in (odds - reach, odds + reach))
    return Estimate(area, Interval(lower, upper), len(values))


def _share_below(values: Floats, others: Floats) -> Floats:
    """Return the share of the others that lies below each value; equal ones count one half."""
    ascending = np.sort(others)
    below = np.searchsorted(ascending, values, "left") + np.searchsorted(ascending, values, "right")
    share: Floats = below / (2 * len(others))
    return share
