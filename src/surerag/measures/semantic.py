"""Entropies over meanings instead of tokens."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Linkage = Literal["all", "first"]


def equivalence_clusters(equivalent: ArrayLike, linkage: Linkage = "first") -> NDArray[np.intp]:
    """Group answers that mean the same: each joins the first cluster whose members it means (SePer, Eq. 4).

    Entailment may not be transitive, but greedy assignment still gives a partition (SePer, section 3.3).

    Args:
        equivalent: Whether answer i means what answer j means, shape [N, N]; the diagonal is not read.
        linkage: Whether an answer must mean ``"all"`` members of its cluster (Eq. 4), or its ``"first"``
            member (the authors' code).

    Returns:
        Cluster of each answer, numbered from 0 in the order of first members, shape [N].

    Raises:
        ValueError: If the matrix is not square.

    Example:
        >>> chain = [[1, 1, 1], [1, 1, 0], [1, 0, 1]]
        >>> equivalence_clusters(chain, "first").tolist(), equivalence_clusters(chain, "all").tolist()
        ([0, 0, 0], [0, 0, 1])
    """
    same = np.asarray(equivalent, dtype=bool)
    if same.ndim != 2 or same.shape[0] != same.shape[1]:
        raise ValueError(f"expected a square matrix, got shape {same.shape}")
    clusters: list[list[int]] = []
    labels = np.empty(len(same), dtype=np.intp)
    for answer in range(len(same)):
        joins = (label for label, members in enumerate(clusters) if same[answer, members].all())
        labels[answer] = label = next(joins, len(clusters))
        if label == len(clusters):
            clusters.append([answer])
        elif linkage == "all":
            clusters[label].append(answer)
    return labels


def semantic_entropy(weights: ArrayLike, clusters: ArrayLike) -> float:
    """Entropy over meaning clusters: −Σ_C p(C) log p(C), with p(C) = Σ_{r∈C} p(r|q) (SePer, Eq. 5).

    Args:
        weights: Weight of each sampled answer, summing to one, shape [N].
        clusters: Meaning cluster of each answer, numbered from 0, shape [N].

    Returns:
        Nats, in [0, log N].

    Raises:
        ValueError: If lengths differ, or weights do not sum to one.

    Example:
        >>> round(semantic_entropy([0.25, 0.25, 0.5], [0, 0, 1]), 4)
        0.6931
    """
    w, labels = np.asarray(weights, dtype=np.float64), np.asarray(clusters, dtype=np.intp)
    if w.ndim != 1 or w.shape != labels.shape or not np.isclose(w.sum(), 1):
        raise ValueError("expected one weight and one cluster for each answer, weights summing to one")
    p = np.bincount(labels, weights=w)
    p = p[p > 0]
    return float(-(p * np.log(p)).sum()) + 0.0


def discrete_semantic_entropy(clusters: ArrayLike) -> float:
    """Entropy over the shares of meaning clusters among sampled answers: −Σ_C (n_C/N) log(n_C/N).

    The discrete variant of semantic entropy, which needs no log-probabilities (Farquhar et al., "Detecting
    hallucinations in large language models using semantic entropy", Nature 630, 2024).

    Args:
        clusters: Meaning cluster of each of N sampled answers, numbered from 0, shape [N].

    Returns:
        Nats: 0 when all answers mean the same, log N when no two do.

    Raises:
        ValueError: If there is no answer.

    Example:
        >>> discrete_semantic_entropy([0, 0, 0]), round(discrete_semantic_entropy([0, 0, 0, 1, 1]), 4)
        (0.0, 0.673)
    """
    labels = np.asarray(clusters, dtype=np.intp)
    if labels.ndim != 1 or labels.size == 0:
        raise ValueError(f"expected the cluster of at least one answer, got shape {labels.shape}")
    # Sorted, so that samples with the same cluster sizes have exactly the same entropy.
    shares = np.sort(np.bincount(labels)) / labels.size
    return math.fsum(-share * math.log(share) for share in shares if share > 0) + 0.0


def degree_semantic_entropy(links: ArrayLike) -> float:
    """DENSE: −1/(k+1) Σ_i log(D_i/(k+1)), with D_i = Σ_j w_ij (DENSE-RAG, Eq. 6).

    Args:
        links: Symmetric weights w_ij in [0, 1] between the k + 1 answers, w_ii = 1 (Eq. 5).

    Returns:
        Nats: 0 when all answers mean the same, log(k+1) when no two do.

    Raises:
        ValueError: If the matrix is not square, not symmetric, out of range, or has another diagonal.

    Example:
        >>> degree_semantic_entropy([[1, 1], [1, 1]])
        0.0
        >>> round(degree_semantic_entropy([[1, 1, 0], [1, 1, 0], [0, 0, 1]]), 4)
        0.6365
    """
    w: NDArray[np.float64] = np.asarray(links, dtype=np.float64)
    if w.ndim != 2 or w.shape[0] != w.shape[1] or len(w) == 0:
        raise ValueError(f"expected a square matrix of links, got shape {w.shape}")
    if not (np.allclose(w, w.T) and np.allclose(np.diag(w), 1) and (w >= 0).all() and (w <= 1).all()):
        raise ValueError("links must be symmetric, in [0, 1], and 1 between an answer and itself")
    degrees = w.sum(axis=1)
    return math.fsum(math.log(len(w) / degree) for degree in degrees) / len(w)
