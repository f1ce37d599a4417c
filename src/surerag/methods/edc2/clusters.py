"""Select relevant passages, and group them into clusters of similar passages (EDC²-RAG, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surerag.effects import Generate, Program, emit, perform
from surerag.messages import Passage, SamplingParams
from surerag.methods.edc2.options import EDC2Options
from surerag.methods.shared import embed_unit, unit_rows, yes_probability

Cluster = NDArray[np.intp]
Root = Literal["query", "rank"]
Order = Literal["similarity", "rank"]

_BEGINNING = 48
"""Length, in characters, of the prefix of a text for which :func:`_candidates` searches first."""
_DECIMALS = 9
"""Number of decimals to which similarities are rounded, so that equal texts have equal similarities."""


def form_clusters(
    query: str, passages: Sequence[Passage], options: EDC2Options, query_vector: ArrayLike | None
) -> Program[tuple[list[Cluster], list[int]]]:
    """Return the clusters, and the positions of the removed passages (section 4.2).

    A cluster is an array of passage positions. Without compression, one cluster contains all kept passages
    that have a text. Each passage without a text is always a cluster of its own.
    """
    has_text = np.array([bool(passage.text.strip()) for passage in passages], dtype=bool)
    blank = [np.array([at]) for at in np.flatnonzero(~has_text)]
    stay, n_kept = _candidates(passages, np.flatnonzero(has_text), options)
    clusters = [stay] if len(stay) else []
    if len(stay) > (1 if options.compresses else n_kept):
        vector, vectors = yield from _vectors(query, [passages[at] for at in stay], query_vector)
        if len(stay) > n_kept:
            texts = [passages[at].text for at in stay]
            similarity = _unit_rows(vectors) @ _unit_rows(vector[None])[0]
            order = yield from rank_passages(query, texts, options, similarity)
            chosen = np.sort(order[:n_kept])
            stay, vectors = stay[chosen], vectors[chosen]
        clusters = [stay]
        if options.compresses:
            formed = dynamic_clusters(vector, vectors, options.tau(len(stay)), options.max_cluster_size)
            clusters = [stay[cluster] for cluster in formed]
    return clusters + blank, np.setdiff1d(np.flatnonzero(has_text), stay).tolist()


def _candidates(passages: Sequence[Passage], places: Cluster, options: EDC2Options) -> tuple[Cluster, int]:
    # If not all passages can be kept, a passage whose text is contained in another passage is left out.
    if options.top_n is None and options.compresses:
        return places, len(places)
    texts = {at: f" {' '.join(passages[at].text.split())} ".casefold() for at in places.tolist()}
    distinct: list[int] = []
    for at in sorted(texts, key=lambda at: -len(texts[at])):
        text = texts[at]
        # Searching for a short prefix first is about ten times as fast as searching for the whole text.
        begins = text[:_BEGINNING]
        if not any(begins in texts[other] and text in texts[other] for other in distinct):
            distinct.append(at)
    n_kept = options.n_kept(len(distinct))
    return (np.sort(distinct) if len(places) > n_kept else places), n_kept


def rank_passages(
    query: str, texts: Sequence[str], options: EDC2Options, similarity: NDArray[np.float64]
) -> Program[NDArray[np.intp]]:
    """Return the positions of texts by relevance, the most relevant text first.

    The reader is asked whether each text helps to answer. The probability of the reply "yes" and the
    ``similarity`` of the text to the query are combined by :func:`fuse_ranks`. In the paper (section 4.3),
    the reader may also reply that no text is relevant; we omit this, because small models reply so too
    often.
    """
    if options.task == "verify":
        prompt, slot = options.prompts["relevant_to_statement"], "statement"
    else:
        prompt, slot = options.prompts["relevant"], "question"
    value = query if options.person is None else f"{options.person}: {query}"
    prompts = [prompt.render(passage=text, **{slot: value}) for text in texts]
    replies = yield from perform(Generate(prompts, SamplingParams(max_tokens=2, trace="optional")))
    if any(reply.trace is None for [reply] in replies):
        # A "yes" without a probability counts as 1, and would rank above each "yes" with a probability. So if
        # one reply lacks a probability, all probabilities are ignored.
        replies = [[replace(reply, trace=None)] for [reply] in replies]
    yes = [yes_probability(reply) for [reply] in replies]
    if unclear := yes.count(None):
        yield from emit("edc2.unclear_relevance", warning=True, query=query, replies=unclear, of=len(texts))
    return fuse_ranks([0.5 if one is None else one for one in yes], similarity)


def fuse_ranks(*scores: ArrayLike) -> NDArray[np.intp]:
    """Combine several scores by reciprocal rank fusion; return the positions of items, the best item first.

    Items are ordered by the sum of 1 / (1 + rank) over the scores; the best item of a score has rank 1
    (Cormack et al., SIGIR 2009, with k = 1). Items with equal sums keep the order of the input.

    Args:
        scores: One array of shape [items] for each score; larger is better. Equal values have equal ranks.

    Example:
        >>> fuse_ranks([0.9, 0.8, 0.1, 0.2], [0.4, 0.5, 0.1, 0.2]).tolist()
        [0, 1, 3, 2]
    """
    rows = np.round(np.asarray(scores, dtype=np.float64), _DECIMALS)
    ranks = 1 + (rows[:, None, :] > rows[:, :, None]).sum(axis=2)
    return np.argsort(-(1 / (1 + ranks)).sum(axis=0), kind="stable")


def _vectors(
    query: str, passages: Sequence[Passage], query_vector: ArrayLike | None
) -> Program[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    texts = [passage.text for passage in passages]
    own = {len(passage.embedding or ()) for passage in passages}
    if len(own) == 1 and 0 not in own:
        vectors = np.array([passage.embedding for passage in passages], dtype=np.float64)
    else:
        vectors = yield from embed_unit(texts, "document")
    vector = query_vector if query_vector is not None else (yield from embed_unit([query], "query"))[0]
    vector = np.asarray(vector, dtype=np.float64)
    if len(vector) != vectors.shape[1]:
        yield from emit(
            "edc2.embedded_again",
            warning=True,
            query_dimensions=len(vector),
            passage_dimensions=vectors.shape[1],
        )
        vectors = yield from embed_unit(texts, "document")
        vector = (yield from embed_unit([query], "query"))[0]
    return vector, vectors


def dynamic_cluster_sizes(n: int, tau: int = 3, cap: int | None = 20, count_root: bool = True) -> list[int]:
    """Return the sizes of Algorithm 1's clusters of ``n`` documents: the size doubles, up to ``cap``.

    Args:
        n: Number of documents.
        tau: Size of the first cluster, τ.
        cap: Maximum size of a cluster, Λ; None for no maximum.
        count_root: Whether τ and Λ count the root, the document with which a cluster begins, as in the
            paper. If False, each cluster has one more member, as in the authors' code; False and ``cap=None``
            reproduce the numbers of calls in the paper's Table 6.

    Returns:
        Sizes that sum to ``n``; the last cluster has the remaining documents.

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
    """Group documents into clusters by similarity (EDC²-RAG, Algorithm 1).

    Each cluster consists of a root and the unassigned documents that are most similar to the root;
    :func:`dynamic_cluster_sizes` gives the sizes. The similarity is the cosine, and 0 for a zero vector.

    Args:
        query_vector: Vector of the query, shape [dimensions].
        document_vectors: Vectors of the documents in the order of retrieval, shape [documents, dimensions].
        tau: Size of the first cluster, τ.
        cap: Maximum size of a cluster, Λ; None for no maximum.
        count_root: See :func:`dynamic_cluster_sizes`.
        root: The next root: with ``"query"``, the unassigned document that is most similar to the query (as
            in the paper); with ``"rank"``, the unassigned document that was retrieved first (as in the
            authors' code).
        order: Order of the documents after the root: by ``"similarity"`` to the root, or by retrieval
            ``"rank"``.

    Returns:
        For each cluster an array of document positions, the root first. Each document is in one cluster.

    Raises:
        ValueError: If the query and the documents differ in the number of dimensions, a value is not finite,
            or ``tau`` or ``cap`` is less than 1.

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
    free = np.ones(len(documents), dtype=bool)
    clusters: list[Cluster] = []
    for size in dynamic_cluster_sizes(len(documents), tau, cap, count_root):
        chosen = ranking[free[ranking]][0]
        free[chosen] = False
        others = _most_similar_first(documents, documents[chosen])
        nearest = others[free[others]][: size - 1]
        free[nearest] = False
        members = np.sort(nearest) if order == "rank" else nearest
        clusters.append(np.append(chosen, members).astype(np.intp))
    return clusters


def _unit_rows(vectors: ArrayLike) -> NDArray[np.float64]:
    rows = np.asarray(vectors, dtype=np.float64)
    if rows.shape == (0,):
        rows = rows.reshape(0, 0)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise ValueError(f"expected finite vectors [documents, dimensions], got shape {rows.shape}")
    return unit_rows(rows)


def _most_similar_first(rows: NDArray[np.float64], vector: NDArray[np.float64]) -> NDArray[np.intp]:
    if not len(rows):
        return np.empty(0, dtype=np.intp)
    return np.argsort(-np.round(rows @ vector, _DECIMALS), kind="stable")
