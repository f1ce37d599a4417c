"""Uncertainty of one answer from its token log-probabilities; larger means less certain (DynQR, Table 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from surerag.measures.statistics import Interval

_ROUNDING = 1e-3
"""How much a log-probability may exceed zero: servers round."""


def perplexity(logprobs: ArrayLike) -> float:
    """Return exp of the mean negative log-probability of an answer's tokens, at least 1 (DynQR, section 3).

    Example:
        >>> round(perplexity(np.log([0.5, 0.125])), 12)
        4.0
    """
    try:
        return math.exp(-mean_of(logprobs))
    except OverflowError:  # where some servers write -9999 for an unlikely token
        return math.inf


def length_normalized_entropy(samples: Sequence[ArrayLike]) -> float:
    """Return the mean over samples of the mean negative log-probability, in nats per token (DynQR, Table 5).

    Example:
        >>> round(length_normalized_entropy([np.log([0.5, 0.5]), np.log([0.25])]), 4)
        1.0397
    """
    if not samples:
        raise ValueError("at least one sampled answer is needed")
    return -mean_of([mean_of(sample) for sample in samples])


def lowest_probability(logprobs: ArrayLike) -> float:
    """Return −log of the least likely token of an answer, in nats (DynQR, Table 5).

    Example:
        >>> round(lowest_probability(np.log([0.5, 0.125])), 4)
        2.0794
    """
    return -min(tokens_of(logprobs))


def margin_bounds(top_logprob: float) -> Interval:
    """Return the interval of 1 − (p₁ − p₂), one minus the margin of a step's two likeliest tokens, from p₁.

    p₂ is at least 0, and at most the smaller of 1 − p₁ and p₁. The margin is that of margin sampling
    (Scheffer et al. 2001).

    Args:
        top_logprob: Natural-log probability of the likeliest token, which greedy decoding generates.

    Returns:
        The interval; its lower end, 1 − p₁, is "least confidence".

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
    """Return the mean over tokens of −T · logsumexp(logits / T) (DynQR, Table 5).

    Args:
        logsumexp: logsumexp(logits / T) at each step, shape [tokens].
        temperature: T; readers report the log-sum-exp at T = 1.

    Returns:
        Energy; larger (less negative) means less certain.

    Raises:
        ValueError: If there is no token.

    Example:
        >>> energy([2.0, 4.0])
        -3.0
    """
    return -temperature * mean_of(logsumexp)


def tokens_of(values: ArrayLike) -> Sequence[float]:
    """Return one value for each token; no token is a ValueError.

    Answers are short, and every answer is measured: floats in a row are not made into an array first.
    """
    if isinstance(values, list | tuple) and set(map(type, values)) == {float}:
        return values
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"expected the values of at least one token, got shape {array.shape}")
    row: list[float] = array.tolist()
    return row


def mean_of(values: ArrayLike, first: int | None = None) -> float:
    """Return the mean of the values of the first tokens, or of all; no token is a ValueError."""
    found = tokens_of(values)[:first]
    return math.fsum(found) / len(found)
