"""Uncertainty of one answer from its token log-probabilities; larger means less certain (DynQR, Table 5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


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
