"""SePer: how much of a reader's belief lies on the reference answers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Kernel = Literal["soft", "hard"]
Weights = Literal["distinct", "probability", "official", "frequency"]
References = Literal["max", "mean"]


def answer_weights(
    answers: Sequence[Hashable], log_likelihoods: ArrayLike | None, weights: Weights = "distinct"
) -> NDArray[np.float64]:
    """Share of the reader's belief that each sampled answer stands for: p(r|q) of SePer, Eq. 6 and 7.

    Args:
        answers: The N sampled answers; equal ones are the same answer.
        log_likelihoods: Log-likelihood of each, shape [N]; not needed for ``"frequency"``.
        weights: ``"distinct"``: each distinct answer counts once, by its likelihood; its weight stands
            at its first occurrence. ``"probability"``: the same, each by its probability as it is, so that
            they sum to what was sampled of all the belief (Eq. 6 and 7 to the letter). ``"official"``: every
            sample counts by its likelihood, so that a likely answer, which is also sampled often, counts
            twice over (the authors' code). ``"frequency"``: every sample counts the same.

    Returns:
        Weights that sum to one, or with ``"probability"`` to at most one, shape [N].

    Raises:
        ValueError: If there is no answer, or likelihoods are missing or not finite.

    Example:
        >>> logs = np.log([0.6, 0.6, 0.3])
        >>> [answer_weights("AAB", logs, rule).round(3).tolist() for rule in ("distinct", "official")]
        [[0.667, 0.0, 0.333], [0.4, 0.4, 0.2]]
    """
    n = len(answers)
    if n == 0:
        raise ValueError("at least one sampled answer is needed")
    if weights == "frequency":
        return np.full(n, 1 / n)
    logs = np.asarray(log_likelihoods, dtype=np.float64)
    if logs.shape != (n,) or not np.isfinite(logs).all():
        raise ValueError(f"expected {n} finite log-likelihoods, got shape {logs.shape}")
    shares = np.exp(logs if weights == "probability" else logs - logs.max())
    if weights in ("distinct", "probability"):
        first = {answer: index for index, answer in reversed(list(enumerate(answers)))}
        repeated = np.ones(n, dtype=bool)
        repeated[list(first.values())] = False
        shares[repeated] = 0.0
    if weights == "probability":
        return shares
    normalised: NDArray[np.float64] = shares / shares.sum()
    return normalised


def seper_soft(weights: ArrayLike, entailment: ArrayLike, references: References = "max") -> float:
    """Soft SePer: Σ p(r|q) · E(r, a*) (SePer, Eq. 9 and 10, Algorithm 1 line 3).

    Args:
        weights: Weight of each sampled answer, summing to at most one, shape [N].
        entailment: Degree, in [0, 1], to which each answer means each reference, shape [N, references].
        references: Over several reference answers: ``"max"``, or ``"mean"`` (Eq. 10).

    Returns:
        Belief in the reference answers, in [0, 1].

    Raises:
        ValueError: If shapes do not fit, or there is no reference answer.

    Example:
        >>> seper_soft([0.5, 0.5], [[1.0], [0.2]])
        0.6
    """
    w, k = _checked(weights, entailment)
    beliefs = w @ k
    return float(beliefs.max() if references == "max" else beliefs.mean())


def seper_hard(
    weights: ArrayLike, clusters: ArrayLike, matches: ArrayLike, references: References = "max"
) -> float:
    """Hard SePer: Σ_C I(C ≡ a*) · p(C|q) (SePer, Eq. 8 to 10).

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
