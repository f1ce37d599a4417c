"""Uncertainty of one answer from its token log-probabilities; larger means less certain (DynQR, Table 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_ROUNDING = 1e-3
"""How far above zero a log-probability may lie: servers round."""


def perplexity(logprobs: ArrayLike) -> float:
    """Exp of the mean negative log-probability of an answer's tokens (DynQR, section 3).

    Args:
        logprobs: Natural-log probability of each token, shape [tokens].

    Returns:
        At least 1.

    Raises:
        ValueError: If there is no token.

    Example:
        >>> round(perplexity(np.log([0.5, 0.125])), 12)
        4.0
    """
    return float(np.exp(-_tokens(logprobs).mean()))


def length_normalized_entropy(samples: Sequence[ArrayLike]) -> float:
    """Monte Carlo entropy: mean over samples of the mean negative log-probability (DynQR, Table 5).

    Args:
        samples: Natural-log probabilities of the tokens of each of N sampled answers.

    Returns:
        Nats per token.

    Raises:
        ValueError: If there is no sample, or one without tokens.

    Example:
        >>> round(length_normalized_entropy([np.log([0.5, 0.5]), np.log([0.25])]), 4)
        1.0397
    """
    if not samples:
        raise ValueError("at least one sampled answer is needed")
    return float(np.mean([-_tokens(sample).mean() for sample in samples]))


def lowest_probability(logprobs: ArrayLike) -> float:
    """−log of the least likely token of an answer (DynQR, Table 5).

    Args:
        logprobs: Natural-log probability of each token, shape [tokens].

    Returns:
        Nats; 0 when every token was certain.

    Raises:
        ValueError: If there is no token.

    Example:
        >>> round(lowest_probability(np.log([0.5, 0.125])), 4)
        2.0794
    """
    return float(-_tokens(logprobs).min())


class MarginBounds(NamedTuple):
    """Smallest and largest want of margin, 1 − (p₁ − p₂), that fit what is known of a distribution."""

    lower: float
    upper: float


def margin_bounds(top_logprob: float) -> MarginBounds:
    """Interval of 1 − (p₁ − p₂), the want of margin between a step's two likeliest tokens, from p₁ alone.

    The second token has nothing at the least, and at the most all that the first has left, but no more than
    the first. The margin is that of margin sampling (Scheffer et al. 2001); its complement grows with doubt.

    Args:
        top_logprob: Natural-log probability of the likeliest token: of the one that is generated greedily.

    Returns:
        The interval, in probabilities; its lower end, 1 − p₁, is "least confidence".

    Raises:
        ValueError: If this is no log-probability.

    Example:
        >>> [tuple(round(end, 3) for end in margin_bounds(math.log(p))) for p in (0.9, 0.4)]
        [(0.1, 0.2), (0.6, 1.0)]
    """
    if not top_logprob <= _ROUNDING:
        raise ValueError(f"expected a natural-log probability, got {top_logprob!r}")
    doubt = -math.expm1(min(top_logprob, 0.0))
    return MarginBounds(doubt, doubt + min(doubt, 1.0 - doubt))


def energy(logsumexp: ArrayLike, temperature: float = 1.0) -> float:
    """Mean over tokens of −T · logsumexp(logits / T) (DynQR, Table 5).

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
    return float(-temperature * _tokens(logsumexp).mean())


def _tokens(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"expected the values of at least one token, got shape {array.shape}")
    return array
