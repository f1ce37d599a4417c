"""SePer: a reader's belief in the reference answers, from sampled answers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Kernel = Literal["soft", "hard"]
Weights = Literal["horvitz-thompson", "probability", "official", "frequency"]
References = Literal["max", "mean", "any"]

_ROUNDING = 0.05
"""Tolerance: in half precision, the probabilities of distinct answers may sum to 1 plus this value."""
_SMALLEST_LOG = -700.0
"""Minimum of a weight's logarithm, because all weights could otherwise underflow to 0."""


def answer_weights(
    answers: Sequence[Hashable], log_likelihoods: ArrayLike | None, weights: Weights = "horvitz-thompson"
) -> NDArray[np.float64]:
    """Return the weight of each sampled answer in the reader's belief, p(r|q) (SePer, Eq. 6).

    Args:
        answers: The N sampled answers; equal values are the same answer.
        log_likelihoods: Log-likelihood of each answer in nats, shape [N]: for ``"official"`` the mean over
            the answer's tokens, otherwise the sum over its tokens and the end token (Eq. 7). Ignored for
            ``"frequency"``.
        weights: How answers are weighted. ``"horvitz-thompson"``: each distinct answer once, by its
            probability p divided by 1 − (1 − p)^N, the probability that N samples contain it (Horvitz &
            Thompson 1952, normalised as in Hájek 1971). ``"probability"``: each distinct answer once, by p
            (Eq. 6 and 7). ``"official"``: each sample by its likelihood (the authors' code).
            ``"frequency"``: all samples equally.

    Returns:
        Weights of shape [N] that sum to one, or for ``"probability"`` to at most one. If each distinct answer
        counts once, a repeated answer has its weight at the first occurrence, and 0 elsewhere.

    Raises:
        ValueError: If ``answers`` is empty, ``weights`` is unknown, log-likelihoods are missing or not
            finite, or probabilities sum to more than one (for example because end tokens are left out).

    Example:
        >>> logs = np.log([0.9, 0.9, 0.004])
        >>> [answer_weights("AAB", logs, rule).round(3).tolist() for rule in ("horvitz-thompson", "official")]
        [[0.729, 0.0, 0.271], [0.499, 0.499, 0.002]]
    """
    n = len(answers)
    if n == 0:
        raise ValueError("at least one sampled answer is needed")
    if weights not in get_args(Weights):
        raise ValueError(f"weights must be one of {', '.join(get_args(Weights))}, got {weights!r}")
    if weights == "frequency":
        return np.full(n, 1 / n)
    if log_likelihoods is None:
        raise ValueError(f"log-likelihoods of the answers are needed for the weights {weights!r}, got None")
    logs = np.asarray(log_likelihoods, dtype=np.float64)
    if logs.shape != (n,):
        raise ValueError(f"expected {n} log-likelihoods, one for each answer, got shape {logs.shape}")
    if not np.isfinite(logs).all():
        raise ValueError(f"expected finite log-likelihoods, got {logs.tolist()}")
    if weights == "official":
        shares = np.exp(np.maximum(logs - logs.max(), _SMALLEST_LOG))
    else:
        first = {answer: index for index, answer in reversed(list(enumerate(answers)))}
        once = np.isin(np.arange(n), list(first.values()))
        shares = np.where(once, np.exp(np.clip(logs, _SMALLEST_LOG, 0.0)), 0.0)
        if (total := shares.sum()) > 1 + _ROUNDING:
            raise ValueError(
                f"probabilities must sum to at most one, got {total:.3f}: include the end tokens"
            )
        if weights == "horvitz-thompson":
            shares = np.where(once, _per_inclusion(shares, n), 0.0)
        elif total <= 1:
            return shares
    normalised: NDArray[np.float64] = shares / shares.sum()
    return normalised


def _per_inclusion(probabilities: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    p = np.clip(probabilities, 1e-12, 1 - 1e-12)
    ratio: NDArray[np.float64] = p / -np.expm1(n * np.log1p(-p))
    return ratio


def belief_in_references(
    weights: ArrayLike, degrees: ArrayLike, references: References
) -> NDArray[np.float64]:
    """Return the reader's belief in the reference answers.

    The belief in one reference is the sum, over the sampled answers, of weight times degree. For the argument
    ``references``, see :func:`seper_soft`.

    Args:
        weights: Weight of each of the N sampled answers, shape [..., N].
        degrees: Degree, in [0, 1], to which each answer has the meaning of each reference, shape
            [N, references].
        references: How the beliefs in several references are combined.

    Returns:
        The combined belief, shape [...].
    """
    w, k = np.asarray(weights, dtype=np.float64), np.asarray(degrees, dtype=np.float64)
    if references == "any":
        k = k.max(axis=1, keepdims=True)
    beliefs = np.round(w @ k, 12)  # removes rounding errors: ten weights of 0.1 must sum to 1
    combined: NDArray[np.float64] = beliefs.mean(axis=-1) if references == "mean" else beliefs.max(axis=-1)
    return combined


def seper_soft(weights: ArrayLike, entailment: ArrayLike, references: References = "max") -> float:
    """Return soft SePer, Σ p(r|q) · E(r, a*) (Eq. 9 and 10; SePer_S of Algorithm 1).

    Args:
        weights: Weight p(r|q) of each sampled answer, shape [N]; the weights sum to at most one.
        entailment: Probability E(r, a*) that each answer r entails each reference a*, shape [N, references].
        references: How the beliefs in several reference answers are combined: ``"max"``, ``"mean"`` (Eq. 10),
            or ``"any"``, the belief that an answer has the meaning of any reference (section 3.4).

    Returns:
        The belief in the reference answers, in [0, 1].

    Raises:
        ValueError: If the shapes do not match, or there is no reference answer.

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
    """Return hard SePer, the total weight of the clusters that match a reference (Eq. 8 to 10; Algorithm 1).

    Args:
        weights: Weight of each sampled answer, shape [N]; the weights sum to at most one.
        clusters: Index of each answer's meaning cluster, 0 to C − 1, shape [N].
        matches: Whether each cluster has the meaning of each reference answer, shape [C, references].
        references: How the beliefs in several reference answers are combined; see :func:`seper_soft`.

    Returns:
        The belief in the reference answers, in [0, 1].

    Raises:
        ValueError: If the shapes do not match, or there is no reference answer.

    Example:
        >>> seper_hard([0.5, 0.25, 0.25], [0, 1, 0], [[True], [False]])
        0.75
    """
    labels = np.asarray(clusters, dtype=np.intp)
    matched = np.asarray(matches, dtype=np.float64)
    if matched.ndim != 2:
        raise ValueError(f"expected matches [C, references], got shape {matched.shape}")
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(matched):
        raise ValueError(
            f"each cluster number must be the index of a row of matches, whose shape is {matched.shape}; got "
            f"numbers from {labels.min()} to {labels.max()}"
        )
    return seper_soft(weights, matched[labels], references)


def _checked(weights: ArrayLike, entailment: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    w, k = np.asarray(weights, dtype=np.float64), np.asarray(entailment, dtype=np.float64)
    if k.ndim != 2 or k.shape[1] == 0 or w.shape != (len(k),):
        raise ValueError(f"expected weights [N] and entailment [N, references], got {w.shape} and {k.shape}")
    if (w < 0).any():
        raise ValueError(f"weights must not be negative, got {w.tolist()}")
    if w.sum() > 1 + 1e-5:
        raise ValueError(f"weights must sum to at most one, got the sum {w.sum():.6g}")
    return w, k
