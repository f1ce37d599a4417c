"""The uncertainty of an answer from its log-probabilities; larger means less certain (DynQR, Table 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from surerag.measures.statistics import Interval

_ROUNDING = 1e-3
"""Tolerance for log-probabilities above zero, because servers round."""


def perplexity(logprobs: ArrayLike) -> float:
    """Return the perplexity of an answer, exp(−mean log p(t)), which is at least 1 (DynQR, section 3).

    Example:
        >>> round(perplexity(np.log([0.5, 0.125])), 12)
        4.0
    """
    try:
        return math.exp(-mean_of(logprobs))
    except OverflowError:  # some servers return -9999 as the log-probability of an unlikely token
        return math.inf


def length_normalized_entropy(samples: Sequence[ArrayLike]) -> float:
    """Return the length-normalised entropy of sampled answers, in nats per token (DynQR, Table 5).

    For each sample, the negative log-probabilities of its tokens are averaged. The value is the mean of these
    averages.

    Example:
        >>> round(length_normalized_entropy([np.log([0.5, 0.5]), np.log([0.25])]), 4)
        1.0397
    """
    if not samples:
        raise ValueError("at least one sampled answer is needed")
    return -mean_of([mean_of(sample) for sample in samples])


def lowest_probability(logprobs: ArrayLike) -> float:
    """Return the uncertainty −log p of an answer's least likely token, in nats (DynQR, Table 5).

    Example:
        >>> round(lowest_probability(np.log([0.5, 0.125])), 4)
        2.0794
    """
    return -min(tokens_of(logprobs))


def margin_bounds(top_logprob: float) -> Interval:
    """Return the interval of 1 − margin of a token, if only the largest probability p₁ is known.

    The margin is p₁ − p₂, the difference of the two largest probabilities (Scheffer et al. 2001). The second
    probability p₂ is at least 0 and at most min(p₁, 1 − p₁).

    Args:
        top_logprob: Natural-log probability of the most likely token, which greedy decoding generates.

    Returns:
        The smallest and the largest possible value of 1 − margin.

    Raises:
        ValueError: If ``top_logprob`` is not a log-probability.

    Example:
        >>> [tuple(round(end, 3) for end in margin_bounds(math.log(p))) for p in (0.9, 0.4)]
        [(0.1, 0.2), (0.6, 1.0)]
    """
    if not top_logprob <= _ROUNDING:
        raise ValueError(f"expected a natural-log probability, got {top_logprob!r}")
    rest = -math.expm1(min(top_logprob, 0.0))
    return Interval(rest, rest + min(rest, 1.0 - rest))


def energy(logsumexp: ArrayLike, temperature: float = 1.0) -> float:
    """Return the energy of an answer: the mean over tokens of −T · logsumexp(logits / T) (DynQR, Table 5).

    Args:
        logsumexp: The value logsumexp(logits / T) at each step, shape [tokens].
        temperature: The temperature T; readers report the log-sum-exp at T = 1.

    Returns:
        The energy; larger (less negative) means less certain.

    Raises:
        ValueError: If ``logsumexp`` is empty.

    Example:
        >>> energy([2.0, 4.0])
        -3.0
    """
    return -temperature * mean_of(logsumexp)


def tokens_of(values: ArrayLike) -> Sequence[float]:
    """Return the values of an answer's tokens as floats; raise ValueError if there are none.

    A list of floats is returned unchanged, because a conversion to an array would slow every answer down.
    """
    if isinstance(values, list | tuple) and set(map(type, values)) == {float}:
        return values
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"expected the values of at least one token, got shape {array.shape}")
    row: list[float] = array.tolist()
    return row


def mean_of(values: ArrayLike, first: int | None = None) -> float:
    """Return the mean of values, or of the first ``first`` values; raise ValueError if there are none."""
    numbers = tokens_of(values)[:first]
    return math.fsum(numbers) / len(numbers)
