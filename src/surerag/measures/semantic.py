"""Semantic entropies: entropies of the meanings of sampled answers."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Linkage = Literal["all", "first"]


def equivalence_clusters(equivalent: ArrayLike, linkage: Linkage = "first") -> NDArray[np.intp]:
    """Group answers by meaning into clusters (SePer, Eq. 4).

    Each answer joins the first cluster whose members have the same meaning, or starts a new cluster. This
    gives a partition even if the equivalence is not transitive (SePer, section 3.3).

    Args:
        equivalent: Whether answers i and j have the same meaning, shape [N, N]; the diagonal is ignored.
        linkage: Whether an answer must have the same meaning as ``"all"`` members of a cluster to join it
            (Eq. 4), or as its ``"first"`` member (the authors' code).

    Returns:
        Cluster number of each answer, shape [N]. Clusters are numbered from 0 in the order of their first
        members.

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
    """Return the semantic entropy −Σ_C p(C) log p(C) of sampled answers (SePer, Eq. 5).

    p(C) is the sum of the weights p(r|q) of the answers r in the meaning cluster C.

    Args:
        weights: Weight p(r|q) of each sampled answer, shape [N]; the weights sum to one.
        clusters: Index of each answer's meaning cluster, from 0, shape [N].

    Returns:
        The entropy in nats, in [0, log N].

    Raises:
        ValueError: If lengths differ, or weights do not sum to one.

    Example:
        >>> round(semantic_entropy([0.25, 0.25, 0.5], [0, 0, 1]), 4)
        0.6931
    """
    w, labels = np.asarray(weights, dtype=np.float64), np.asarray(clusters, dtype=np.intp)
    if w.ndim != 1 or w.shape != labels.shape:
        raise ValueError(
            f"expected a weight and a cluster for each answer, got the shapes {w.shape} and {labels.shape}"
        )
    if not np.isclose(w.sum(), 1):
        raise ValueError(f"expected weights that sum to one, got the sum {w.sum():.6g}; divide by the sum")
    p = np.bincount(labels, weights=w)
    p = p[p > 0]
    return float(-(p * np.log(p)).sum()) + 0.0


def discrete_semantic_entropy(clusters: ArrayLike) -> float:
    """Return the discrete semantic entropy −Σ_C (n_C/N) log(n_C/N), with n_C answers in cluster C.

    The entropy needs no log-probabilities (Farquhar et al., "Detecting hallucinations in large language
    models using semantic entropy", Nature 630, 2024).

    Args:
        clusters: Index of each sampled answer's meaning cluster, from 0, shape [N].

    Returns:
        The entropy in nats: 0 if all answers have the same meaning, log N if all meanings differ.

    Raises:
        ValueError: If ``clusters`` is empty.

    Example:
        >>> discrete_semantic_entropy([0, 0, 0]), round(discrete_semantic_entropy([0, 0, 0, 1, 1]), 4)
        (0.0, 0.673)
    """
    labels = np.asarray(clusters, dtype=np.intp)
    if labels.ndim != 1 or labels.size == 0:
        raise ValueError(
            f"expected a non-empty list of the answers' cluster indices, got an array of shape {labels.shape}"
        )
    # Sorted, so that samples with the same cluster sizes have exactly the same entropy.
    shares = np.sort(np.bincount(labels)) / labels.size
    return math.fsum(-share * math.log(share) for share in shares if share > 0) + 0.0


def degree_semantic_entropy(links: ArrayLike) -> float:
    """Return the DENSE score −1/(k+1) Σ_i log(D_i/(k+1)), with D_i = Σ_j w_ij (DENSE-RAG, Eq. 6).

    Args:
        links: Symmetric matrix of the weights w_ij in [0, 1] between k + 1 answers, with w_ii = 1 (Eq. 5).

    Returns:
        The score in nats: 0 if all answers have the same meaning, log(k+1) if all meanings differ.

    Raises:
        ValueError: If the matrix is not square, not symmetric, out of range, or its diagonal is not 1.

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
