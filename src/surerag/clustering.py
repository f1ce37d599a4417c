"""Clusters of documents by similarity (EDC²-RAG, Algorithm 1) and of answers by meaning (SePer).

Everything here is index arithmetic: a cluster of documents is an array of positions in their list, and no
matrix of all pairs of documents is ever built.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Cluster = NDArray[np.intp]
Root = Literal["query", "rank"]
Order = Literal["similarity", "rank"]

_DECIMALS = 9
"""Similarities are rounded to this before they are compared: equal texts tie, whatever the rounding of
a matrix product, and ties go to the document that was retrieved first."""

_BLOCK = 32
"""Possible roots whose similarities are computed together."""


def dynamic_cluster_sizes(n: int, tau: int = 3, cap: int | None = 20, count_root: bool = True) -> list[int]:
    """Sizes of the clusters that Algorithm 1 forms of ``n`` documents: τ, 2τ, 4τ …, at most Λ.

    Args:
        n: Number of documents.
        tau: Size of the first cluster, τ.
        cap: Largest size, Λ; None for no bound.
        count_root: Whether τ and Λ include the cluster's root, as in the paper. If not, they count the
            documents *besides* the root, as in the authors' code; that, without a cap, gives every
            number of calls in the paper's Table 6.

    Returns:
        Sizes that sum to ``n``; the last cluster takes what is left.

    Raises:
        ValueError: If ``n`` is negative, or ``tau`` or ``cap`` less than 1.

    Example:
        >>> dynamic_cluster_sizes(100)
        [3, 6, 12, 20, 20, 20, 19]
        >>> dynamic_cluster_sizes(20, tau=1, cap=None, count_root=False)
        [2, 3, 5, 9, 1]
    """
    if n < 0 or tau < 1 or (cap is not None and cap < 1):
        raise ValueError(f"n must be 0 or more, tau and cap at least 1, got n={n}, tau={tau}, cap={cap}")
    sizes: list[int] = []
    grown = tau
    while n > 0:
        grown = grown if cap is None else min(grown, cap)
        size = min(n, grown if count_root else grown + 1)
        sizes.append(size)
        n -= size
        grown *= 2
    return sizes


def dynamic_clusters(
    query_vector: ArrayLike,
    document_vectors: ArrayLike,
    tau: int = 3,
    cap: int | None = 20,
    *,
    count_root: bool = True,
    root: Root = "query",
    order: Order = "similarity",
) -> list[Cluster]:
    """Algorithm 1 of EDC²-RAG: a root, and around it the most similar documents not yet assigned.

    Args:
        query_vector: Shape [dimensions].
        document_vectors: Shape [documents, dimensions], in the order of retrieval. Rows need not be
            normalised; the similarity is the cosine, and 0 where a vector is zero.
        tau: Size of the first cluster, τ.
        cap: Largest size, Λ; None for no bound.
        count_root: See :func:`dynamic_cluster_sizes`.
        root: ``"query"``: the unassigned document most similar to the query (the paper); ``"rank"``: the
            one that was retrieved first (the authors' code).
        order: Members after the root by ``"similarity"`` to it, or by ``"rank"`` of retrieval.

    Returns:
        Arrays of document positions, roots first. Every document is in exactly one cluster.

    Raises:
        ValueError: If shapes do not fit, or a value is not finite.

    Example:
        >>> documents = [[1, 0], [0, 1], [0.9, 0.1], [0.1, 0.9]]
        >>> [cluster.tolist() for cluster in dynamic_clusters([1, 0], documents, tau=2)]
        [[0, 2], [3, 1]]
    """
    documents = _unit_rows(document_vectors)
    query = _unit_rows(np.asarray(query_vector, dtype=np.float64)[None])[0]
    if len(documents) and documents.shape[1] != len(query):
        raise ValueError(f"the query has {len(query)} dimensions, documents have {documents.shape[1]}")
    ranking = np.arange(len(documents)) if root == "rank" else _most_similar_first(documents, query)
    sizes = iter(dynamic_cluster_sizes(len(documents), tau, cap, count_root))
    free = np.ones(len(documents), dtype=bool)
    clusters: list[Cluster] = []
    while free.any():
        # Similarities to the next few possible roots in one product: reading the vectors is what costs.
        candidates = ranking[free[ranking]][:_BLOCK]
        rows = np.flatnonzero(free)
        columns = np.round(documents[rows] @ documents[candidates].T, _DECIMALS)
        for chosen, similarities in zip(candidates, columns.T, strict=True):
            if not free[chosen]:
                continue
            free[chosen] = False
            left = free[rows]
            nearest = rows[left][_first_largest(similarities[left], next(sizes) - 1)]
            free[nearest] = False
            members = np.sort(nearest) if order == "rank" else nearest
            clusters.append(np.concatenate([[chosen], members]).astype(np.intp))
    return clusters


def average_clusters(query_vector: ArrayLike, document_vectors: ArrayLike, count: int) -> list[Cluster]:
    """Control of EDC²-RAG's Table 4: documents by similarity to the query, in ``count`` equal runs.

    Raises:
        ValueError: If ``count`` is less than 1 while there are documents.

    Example:
        >>> [c.tolist() for c in average_clusters([1, 0], [[0, 1], [1, 0], [1, 1]], 2)]
        [[1, 2], [0]]
    """
    documents = _unit_rows(document_vectors)
    query = _unit_rows(np.asarray(query_vector, dtype=np.float64)[None])[0]
    if len(documents) == 0:
        return []
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    parts = np.array_split(_most_similar_first(documents, query), min(count, len(documents)))
    return [part.astype(np.intp) for part in parts]


def random_clusters(sizes: list[int], seed: int = 0) -> list[Cluster]:
    """Control of EDC²-RAG's Table 4: documents at random, in clusters of given sizes.

    Example:
        >>> [len(cluster) for cluster in random_clusters([2, 1])]
        [2, 1]
    """
    drawn = np.random.default_rng(seed).permutation(sum(sizes))
    return [part.astype(np.intp) for part in np.split(drawn, np.cumsum(sizes)[:-1]) if len(part)]


def cluster_consistency(clusters: list[Cluster], labels: ArrayLike, label: object) -> float:
    """Share of the pairs of documents of one class that lie in one cluster (EDC²-RAG, section 6.3).

    Args:
        clusters: Arrays of document positions.
        labels: Class of each document, shape [documents].
        label: The class to look at.

    Returns:
        A share in [0, 1].

    Raises:
        ValueError: If fewer than two documents are of the class.

    Example:
        >>> cluster_consistency([np.array([0, 1]), np.array([2, 3])], ["a", "a", "a", "b"], "a")
        0.3333333333333333
    """
    of_class = np.asarray(labels) == label
    total = int(of_class.sum())
    if total < 2:
        raise ValueError(f"a pair needs two documents of class {label!r}, found {total}")
    together = sum(_pairs(int(of_class[cluster].sum())) for cluster in clusters)
    return together / _pairs(total)


Linkage = Literal["all", "first"]


def meaning_clusters(equivalent: ArrayLike, linkage: Linkage = "first") -> NDArray[np.intp]:
    """Group answers that mean the same: each joins the first cluster whose members it means (SePer, Eq. 4).

    Entailment need not be transitive; greedy assignment gives a partition all the same: every answer
    has one label, and none is taken away again (SePer, section 3.3).

    Args:
        equivalent: Whether answer i means what answer j means, shape [N, N]; the diagonal is not read.
        linkage: Whether it has to mean ``"all"`` members, so that every two of a cluster mean the same, as
            Eq. 4 has it; or the ``"first"`` one, as in the authors' code. Where the judge is transitive,
            both are one.

    Returns:
        Cluster of each answer, numbered from 0 in the order of first members, shape [N].

    Raises:
        ValueError: If the matrix is not square.

    Example:
        >>> meaning_clusters([[1, 0, 1], [0, 1, 0], [1, 0, 1]]).tolist()
        [0, 1, 0]
        >>> chain = [[1, 1, 1], [1, 1, 0], [1, 0, 1]]
        >>> meaning_clusters(chain, "first").tolist(), meaning_clusters(chain, "all").tolist()
        ([0, 0, 0], [0, 0, 1])
    """
    same = np.asarray(equivalent, dtype=bool)
    if same.ndim != 2 or same.shape[0] != same.shape[1]:
        raise ValueError(f"expected a square matrix, got shape {same.shape}")
    labels = np.empty(len(same), dtype=np.intp)
    members: list[list[int]] = []
    for answer in range(len(same)):
        joined = next((label for label, found in enumerate(members) if same[answer, found].all()), None)
        labels[answer] = len(members) if joined is None else joined
        if joined is None:
            members.append([answer])
        elif linkage == "all":
            members[joined].append(answer)
    return labels


def _pairs(n: int) -> int:
    return n * (n - 1) // 2


def _unit_rows(vectors: ArrayLike) -> NDArray[np.float64]:
    rows = np.asarray(vectors, dtype=np.float64)
    if rows.shape == (0,):
        rows = rows.reshape(0, 0)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise ValueError(f"expected finite vectors [documents, dimensions], got shape {rows.shape}")
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: NDArray[np.float64] = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return unit


def _most_similar_first(rows: NDArray[np.float64], vector: NDArray[np.float64]) -> NDArray[np.intp]:
    """Positions of rows by similarity to a vector; ties in the order of the rows."""
    if len(rows) == 0:
        return np.empty(0, dtype=np.intp)
    return np.argsort(-np.round(rows @ vector, _DECIMALS), kind="stable")


def _first_largest(values: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """Positions of the ``count`` largest values, largest first; ties in their order. No full sort."""
    count = min(count, len(values))
    if count == 0:
        return np.empty(0, dtype=np.intp)
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > threshold)
    level = np.flatnonzero(values == threshold)[: count - len(above)]
    return np.concatenate([above[np.argsort(-values[above], kind="stable")], level])
