"""SePer: a reader's belief in the reference answers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Kernel = Literal["soft", "hard"]
Weights = Literal["horvitz-thompson", "probability", "official", "frequency"]
References = Literal["max", "mean", "any"]

_ROUNDING = 0.05
"""How much the sum of the probabilities of distinct answers may exceed one, because of half precision."""
_SMALLEST_LOG = -700.0
"""Log of the smallest weight: a smaller weight would be 0, and zero weights have no shares."""


def answer_weights(
    answers: Sequence[Hashable], log_likelihoods: ArrayLike | None, weights: Weights = "horvitz-thompson"
) -> NDArray[np.float64]:
    """Return the share of the reader's belief in each sampled answer: p(r|q) of SePer, Eq. 6.

    Args:
        answers: The N sampled answers; equal values are the same answer.
        log_likelihoods: Natural logs, shape [N]; not needed for ``"frequency"``. For ``"official"`` they are
            the mean over an answer's tokens, else the sum over its tokens and the end token (Eq. 7).
        weights: ``"horvitz-thompson"``: each distinct answer counts once, by its probability p divided by 1 −
            (1 − p)^N, the probability that it is among N samples (Horvitz and Thompson 1952, normalised as by
            Hájek 1971). An answer that is sure to be sampled counts by p, a rare answer by 1 / N.
            ``"probability"``: each distinct answer counts once, by p (Eq. 6 and 7 to the letter).
            ``"official"``: every sample counts by its likelihood (the authors' code). ``"frequency"``: every
            sample counts the same.

    Returns:
        Weights that sum to one, or with ``"probability"`` to at most one, shape [N]. If each distinct answer
        counts once, the weight of a repeated answer is at its first occurrence.

    Raises:
        ValueError: If there is no answer, likelihoods are missing or not finite, or probabilities sum to more
            than one, as probabilities without end tokens can.

    Example:
        >>> logs = np.log([0.9, 0.9, 0.004])
        >>> [answer_weights("AAB", logs, rule).round(3).tolist() for rule in ("horvitz-thompson", "official")]
        [[0.729, 0.0, 0.271], [0.499, 0.499, 0.002]]
    """
    n = len(answers)
    if n == 0:
        raise ValueError("at least one sampled answer is needed")
    if weights == "frequency":
        return np.full(n, 1 / n)
    logs = np.asarray(log_likelihoods, dtype=np.float64)
    if logs.shape != (n,) or not np.isfinite(logs).all():
        raise ValueError(f"expected {n} finite log-likelihoods, got shape {logs.shape}")
    if weights == "official":
        shares = np.exp(np.maximum(logs - logs.max(), _SMALLEST_LOG))
    else:
        first = {answer: index for index, answer in reversed(list(enumerate(answers)))}
        once = np.isin(np.arange(n), list(first.values()))
        shares = np.where(once, np.exp(np.clip(logs, _SMALLEST_LOG, 0.0)), 0.0)
        if (total := shares.sum()) > 1 + _ROUNDING:
            raise ValueError(f"probabilities must sum to at most one, got {total:.3f}: count the end tokens")
        if weights == "horvitz-thompson":
            shares = np.where(once, _per_inclusion(shares, n), 0.0)
        elif total <= 1:
            return shares
    normalised: NDArray[np.float64] = shares / shares.sum()
    return normalised


def _per_inclusion(probabilities: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """Return p / (1 − (1 − p)^n), which goes to 1 / n for a small p."""
    p = np.clip(probabilities, 1e-12, 1 - 1e-12)
    ratio: NDArray[np.float64] = p / -np.expm1(n * np.log1p(-p))
    return ratio


def belief_in_references(
    weights: ArrayLike, degrees: ArrayLike, references: References
) -> NDArray[np.float64]:
    """Return beliefs Σ p(r|q) · k(r, a*), shape [...], from weights [..., N] and degrees [N, references]."""
    w, k = np.asarray(weights, dtype=np.float64), np.asarray(degrees, dtype=np.float64)
    if references == "any":
        k = k.max(axis=1, keepdims=True)
    beliefs = np.round(w @ k, 12)  # ten shares of .1 are one
    combined: NDArray[np.float64] = beliefs.mean(axis=-1) if references == "mean" else beliefs.max(axis=-1)
    return combined


def seper_soft(weights: ArrayLike, entailment: ArrayLike, references: References = "max") -> float:
    """Soft SePer: Σ p(r|q) · E(r, a*) (SePer, Eq. 9 and 10; SePer_S of Algorithm 1).

    Args:
        weights: Weight of each sampled answer, summing to at most one, shape [N].
        entailment: Degree, in [0, 1], to which each answer means each reference, shape [N, references].
        references: How beliefs in several reference answers are combined: their ``"max"``, their ``"mean"``
            (Eq. 10), or the belief in ``"any"`` reference: each answer counts for the reference that it means
            most (section 3.4).

    Returns:
        Belief in the reference answers, in [0, 1].

    Raises:
        ValueError: If shapes do not fit, or there is no reference answer.

    Example:
        >>> seper_soft([0.5, 0.5], [[1.0], [0.2]])
        0.6
        >>> [seper_soft([0.6, 0.4], [[1, 0], [0, 1]], rule) for rule in ("max", "mean", "any")]
        [0.6, 0.5, 1.0]
    """
    return float(belief_in_references(*_checked(weights, entailment), references))


def seper_hard(
    weights: ArrayLike, clusters: ArrayLike, matches: ArrayLike, references: References = "max"
) -> float:
    """Hard SePer: Σ_C I(C ≡ a*) · p(C|q) (SePer, Eq. 8 to 10; SePer_H of Algorithm 1).

    Args:
        weights: Weight of each sampled answer, summing to at most one, shape [N].
        clusters: Meaning cluster of each answer, 0 to C − 1, shape [N].
        matches: Whether each cluster means each reference answer, shape [C, references].
        references: See :func:`seper_soft`.

    Returns:
        Belief in the reference answers, in [0, 1].

    Raises:
        ValueError: If shapes do not fit, or there is no reference answer.

    Example:
        >>> seper_hard([0.5, 0.25, 0.25], [0, 1, 0], [[True], [False]])
        0.75
    """
    labels = np.asarray(clusters, dtype=np.intp)
    matched = np.asarray(matches, dtype=np.float64)
    if matched.ndim != 2 or (len(labels) and not 0 <= labels.min() <= labels.max() < len(matched)):
        raise ValueError(f"clusters must be numbered by the rows of matches, shape {matched.shape}")
    return seper_soft(weights, matched[labels], references)


def _checked(weights: ArrayLike, entailment: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    w, k = np.asarray(weights, dtype=np.float64), np.asarray(entailment, dtype=np.float64)
    if k.ndim != 2 or k.shape[1] == 0 or w.shape != (len(k),):
        raise ValueError(f"expected weights [N] and entailment [N, references], got {w.shape} and {k.shape}")
    if (w < 0).any() or w.sum() > 1 + 1e-5:
        raise ValueError(f"weights must sum to at most one, they sum to {w.sum():.4f}")
    return w, k
