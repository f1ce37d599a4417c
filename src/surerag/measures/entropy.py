"""Entropy of a next-token distribution: exact, or as an interval from the top log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, fsum, log

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surerag.measures.statistics import Interval

_ROUNDING = 1e-3
"""Tolerance for sums of probabilities above one: servers round, some to four digits."""


def token_entropy(logprobs: ArrayLike) -> NDArray[np.float64]:
    """Return the entropy of next-token distributions over the whole vocabulary, −Σ p log p (L-RAG, Eq. 2).

    Args:
        logprobs: Natural-log probabilities, shape [..., vocabulary]; −inf for impossible tokens.

    Returns:
        Entropies in nats, shape [...].

    Raises:
        ValueError: If a distribution does not sum to one.

    Example:
        >>> float(token_entropy(np.log([0.5, 0.25, 0.25])).round(4))
        1.0397
    """
    logp = np.asarray(logprobs, dtype=np.float64)
    p = np.exp(logp)
    if not np.allclose(p.sum(axis=-1), 1, atol=_ROUNDING):
        raise ValueError("each distribution must sum to one; pass natural-log probabilities, not logits")
    terms: NDArray[np.float64] = np.where(p > 0, p * np.where(p > 0, logp, 0.0), 0.0)
    entropies: NDArray[np.float64] = -terms.sum(axis=-1) + 0.0
    return entropies


def entropy_bounds(
    top_logprobs: Sequence[float], vocabulary_size: int, *, sampled_logprob: float | None = None
) -> Interval:
    """Return the smallest and largest entropy H(t) (L-RAG, Eq. 2) that agree with top log-probabilities.

    No unlisted token is likelier than the least likely of the top tokens. The entropy is smallest if the
    remaining probability lies on as few unlisted tokens as possible, and largest if it is spread evenly over
    all unlisted tokens.

    Args:
        top_logprobs: Natural-log probabilities of the most likely tokens, in any order.
        vocabulary_size: Number of tokens that the model can generate.
        sampled_logprob: Natural-log probability of the sampled token, if it is *not* among the top tokens.

    Returns:
        The smallest and the largest possible entropy, in nats.

    Raises:
        ValueError: If ``top_logprobs`` is empty or longer than the vocabulary, or the probabilities sum to
            more than one.

    Example:
        >>> exact = entropy_bounds([log(0.5), log(0.5)], vocabulary_size=1000)
        >>> round(exact.lower, 4), round(exact.upper, 4)
        (0.6931, 0.6931)
        >>> wide = entropy_bounds([log(0.5), log(0.25)], vocabulary_size=4)
        >>> round(wide.lower, 4), round(wide.upper, 4)
        (1.0397, 1.213)
    """
    if not top_logprobs:
        raise ValueError("at least one log-probability is needed")
    # Speed matters: this function is called for every token of every answer.
    likeliest = [exp(value) for value in top_logprobs]
    listed = likeliest if sampled_logprob is None else [*likeliest, exp(sampled_logprob)]
    unlisted = vocabulary_size - len(listed)
    if unlisted < 0:
        raise ValueError(f"expected at most {vocabulary_size} tokens (the vocabulary), got {len(listed)}")
    rest = 1.0 - fsum(listed)
    if rest < -_ROUNDING:
        raise ValueError(f"listed probabilities sum to {1 - rest:.4f}, more than one")
    entropy = fsum([-p * log(p) for p in listed if p])
    if rest <= 0 or unlisted == 0:
        return Interval(entropy, entropy)
    cap = min(likeliest)
    full = min(unlisted, int(rest / cap)) if cap > 0 else unlisted
    lower = entropy + full * _surprise(cap) + _surprise(max(0.0, rest - full * cap))
    upper = entropy - rest * log(rest / unlisted)
    return Interval(min(lower, upper), upper)


def _surprise(probability: float) -> float:
    return -probability * log(probability) if probability > 0 else 0.0
