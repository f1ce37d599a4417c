"""Measures of how uncertain a model was of an answer, and the AUROC of an uncertainty.

Larger values mean less certain. If a server returns only the top log-probabilities, an entropy is known only
as an interval. Each measure of entropies increases with each entropy. So the entropies' lower bounds give the
measure's lower bound, and the entropies' upper bounds give the measure's upper bound.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal

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
from surerag.text import counted

Indication = Literal["wrong answers", "nothing", "the opposite", "too few answers", "not known"]
"""What high uncertainty indicates; see :func:`indication`."""
_USEFUL = 0.7
"""Smallest AUROC of a useful uncertainty. If an interval contains 0.5 and this value, there are too few
answers to judge the uncertainty."""


def mean_entropy(entropies: ArrayLike, first: int | None = None) -> float:
    """Return the mean entropy of an answer's first n tokens: H̄ = (1/n) Σ H(t) (L-RAG, Eq. 3).

    Args:
        entropies: Entropy of the next-token distribution at each step, in nats, shape [tokens].
        first: The number n; None means all tokens.

    Returns:
        The mean, in nats.

    Raises:
        ValueError: If ``entropies`` is empty.

    Example:
        >>> mean_entropy([1.0, 3.0, 8.0]), mean_entropy([1.0, 3.0, 8.0], first=2)
        (4.0, 2.0)
    """
    return mean_of(entropies, first)


def greatest_entropy(entropies: ArrayLike, count: int = 1) -> float:
    """Return the mean of the ``count`` greatest entropies of an answer's tokens.

    With ``count=1``, the result is max H(t) (L-RAG, section III-A).

    Args:
        entropies: Entropy of the next-token distribution at each step, in nats, shape [tokens].
        count: Number of entropies to average; if the answer has fewer tokens, all entropies are averaged.

    Returns:
        The mean, in nats.

    Raises:
        ValueError: If ``entropies`` is empty.

    Example:
        >>> greatest_entropy([1.0, 3.0, 8.0]), greatest_entropy([1.0, 3.0, 8.0], count=2)
        (8.0, 5.5)
    """
    return mean_of(sorted(tokens_of(entropies))[-count:])


def negative_log_likelihood(logprobs: ArrayLike) -> float:
    """Return the negative log-likelihood of an answer, −Σ log p(t), in nats.

    Each further token increases the value.

    Args:
        logprobs: Natural-log probability of each token, shape [tokens].

    Raises:
        ValueError: If ``logprobs`` is empty.

    Example:
        >>> round(negative_log_likelihood(np.log([0.5, 0.25])), 4) == round(math.log(8), 4)
        True
    """
    return -math.fsum(tokens_of(logprobs))


def indication(area: Estimate | None) -> Indication:
    """Return what high uncertainty indicates, by the confidence interval of its AUROC.

    - The interval lies above 0.5, which is chance: ``"wrong answers"``.
    - The interval lies below 0.5: ``"the opposite"``.
    - The interval contains 0.5 and ends below 0.7: ``"nothing"``.
    - The interval contains 0.5 and 0.7: ``"too few answers"``.
    - There is no AUROC: ``"not known"``.
    """
    if area is None:
        return "not known"
    lower, upper = area.interval or (0.0, 1.0)
    if lower <= 0.5 <= upper:
        return "nothing" if upper < _USEFUL else "too few answers"
    return "wrong answers" if lower > 0.5 else "the opposite"


def indication_text(area: Estimate, n: int, name: str = "") -> str:
    """Return a sentence, without its full stop, that says what high uncertainty indicates, with the AUROC.

    Args:
        area: The AUROC of the uncertainty.
        n: Number of answers.
        name: Name of the system that gave the answers; may be empty.

    Example:
        >>> indication_text(Estimate(0.5, Interval(0.45, 0.55), 900), 900)[:66]
        "the model's certainty does not clearly predict wrong answers: the "
    """
    wrong, right, of = ("wrong answers", "right answers", "")
    if name:
        wrong, right, of = f"{name}'s wrong answers", "its right answers", f" of {name}"
    value, kind = area.text(digits=2), indication(area)
    if kind in ("wrong answers", "the opposite"):
        compared = "less sure" if kind == "wrong answers" else "surer"
        return f"the model is {compared} of {wrong} than of {right} (AUROC {value}; 0.5 is chance)"
    if kind == "nothing":
        return (
            f"the model's certainty does not clearly predict {wrong}: the AUROC is {value} with "
            f"{counted(n, 'answer')}, and its interval contains 0.5, which is chance"
        )
    return (
        f"{counted(n, 'answer')}{of} are too few to see whether the model is less sure of wrong answers "
        f"than of right answers: the AUROC is {value}; 0.5 is chance"
    )


def auroc(
    uncertainty: ArrayLike,
    right: ArrayLike,
    groups: Groups = None,
    *,
    confidence: float = 0.95,
) -> Estimate | None:
    """Return the area under the ROC curve (AUROC) of an uncertainty as a detector of wrong answers.

    The area is A = P(U_wrong > U_right) + P(U_wrong = U_right)/2, the probability that a wrong answer is more
    uncertain than a right answer; 0.5 is chance. The confidence interval is computed on the scale of
    log(A / (1 − A)), with the variance of DeLong, DeLong & Clarke-Pearson (Biometrics 44, 1988). For grouped
    answers, the variance is Obuchowski's (Biometrics 53, 1997, Eq. 4), with Student's quantile. If A is 0
    or 1, the interval is :func:`~surerag.measures.statistics.constant_interval` for n values, where n
    is the smallest of three numbers: wrong answers, right answers, and groups.

    Args:
        uncertainty: Uncertainty of each answer, shape [answers]; larger means less certain, and infinity is
            allowed.
        right: Whether each answer is right, shape [answers].
        groups: Group of each answer, such as its document. Answers of one group are treated as dependent.
        confidence: Confidence level of the two-sided interval.

    Returns:
        The area with its interval; None if all answers are right, or all answers are wrong.

    Raises:
        ValueError: If the lengths differ, or an uncertainty is NaN.

    Example:
        >>> auroc([0.1, 0.4, 0.3, 0.9], [True, True, False, False]).text(digits=2)
        '0.75 [0.07, 0.99]'
        >>> auroc([0.1, 0.4], [True, True]) is None
        True
    """
    values, correct = np.asarray(uncertainty, np.float64), np.asarray(right, bool)
    if np.isnan(values).any():
        raise ValueError("expected numbers as uncertainties, got NaN")
    if values.ndim != 1 or values.shape != correct.shape:
        raise ValueError(
            f"expected an uncertainty and True or False for each answer, got {values.shape}, {correct.shape}"
        )
    wrong = ~correct
    m, n = int(wrong.sum()), int(correct.sum())
    if not m or not n:
        return None
    # For a wrong answer, the share of right answers that are less uncertain; for a right answer, the share of
    # wrong answers that are more uncertain.
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
    if len(sums) < len(values):  # for few groups, the normal quantile is too small
        quantile = student_quantile(quantile, len(sums) - 1)
    reach = quantile * error / (area * (1 - area))
    odds = math.log(area / (1 - area))
    lower, upper = (0.5 * (1 + math.tanh(end / 2)) for end in (odds - reach, odds + reach))
    return Estimate(area, Interval(lower, upper), len(values))


def _share_below(values: Floats, others: Floats) -> Floats:
    """Return, for each value, the share of ``others`` below the value; equal values count one half."""
    ascending = np.sort(others)
    below = np.searchsorted(ascending, values, "left") + np.searchsorted(ascending, values, "right")
    share: Floats = below / (2 * len(others))
    return share
