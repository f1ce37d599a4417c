"""How uncertain a model was of an answer, from the answer's tokens, and how well this finds wrong answers.

Every measure is an uncertainty: larger means less certain. If a server lists only some alternatives to a
token, an entropy is known only between bounds. Each measure of entropies grows with every entropy, so the
lower bounds of the entropies give its lower bound, and the upper bounds its upper bound.
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
        first: Number of tokens to average, n; None for all tokens.

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
        count: Number of entropies to average, k; if the answer has fewer tokens, all are averaged.

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
    """Return −log P of the whole answer: −Σ log p(t), in nats; it grows with the length of the answer.

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
    P(U_wrong = U_right)/2; one half means chance. The interval is computed on the scale of log(A / (1 − A)),
    with the variance of DeLong, DeLong & Clarke-Pearson (Biometrics 44, 1988); with groups, with the variance
    of Obuchowski (Biometrics 53, 1997, Eq. 4) and Student's quantile. If A is 0 or 1, it is the exact
    interval for as many cases as the smaller class has.

    Args:
        uncertainty: Uncertainty of each answer, larger for a less certain answer; infinity is allowed; shape
            [answers].
        right: Whether each answer is right, shape [answers].
        groups: Group of each answer, such as its document; answers of one group depend on each other.
        confidence: Confidence of the two-sided interval.

    Returns:
        The area with its interval; None if all answers are right, or all wrong.

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
    # The share of the other class's answers that are on the right side of each answer.
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
    """Return, for each value, the share of the others below it; equal values count one half."""
    ascending = np.sort(others)
    below = np.searchsorted(ascending, values, "left") + np.searchsorted(ascending, values, "right")
    share: Floats = below / (2 * len(others))
    return share
