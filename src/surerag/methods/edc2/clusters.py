"""Clusters of similar passages (EDC²-RAG, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surerag.clustering import (
    Cluster,
    average_clusters,
    dynamic_cluster_sizes,
    dynamic_clusters,
    random_clusters,
)
from surerag.effects import Program, embed, emit
from surerag.messages import Passage
from surerag.methods.edc2.options import EDC2Options, FirstSize


def form_clusters(
    query: str, passages: Sequence[Passage], options: EDC2Options, query_vector: ArrayLike | None
) -> Program[list[Cluster]]:
    """Form clusters of the passages that have a text (section 4.2); the others stand alone."""
    written = np.array([at for at, passage in enumerate(passages) if passage.text.strip()], dtype=np.intp)
    blank = [np.array([at]) for at, passage in enumerate(passages) if not passage.text.strip()]
    rules = options.rules
    first = _first_size(rules.first_cluster_size, len(written))
    most = rules.max_cluster_size or None
    sizes = dynamic_cluster_sizes(len(written), first, most, rules.count_root)
    if options.clustering == "single" or len(written) <= 1:
        found = [np.array([at]) for at in range(len(written))]
    elif options.clustering == "random":
        found = random_clusters(sizes, options.seed + crc32(query.encode()))
    else:
        texts = [passages[at] for at in written]
        vector, vectors = yield from _vectors(query, texts, options, query_vector)
        if options.clustering == "average":
            found = average_clusters(vector, vectors, len(sizes))
        else:
            found = dynamic_clusters(
                vector, vectors, first, most, count_root=rules.count_root, root=rules.root, order=rules.order
            )
    return [written[cluster] for cluster in found] + blank


def most_clusters(passages: int, options: EDC2Options) -> int:
    """Return how many clusters of passages with a text there are, at most: some may turn out to have none."""
    if options.clustering == "single":
        return passages
    rules = options.rules
    return max(
        (
            len(
                dynamic_cluster_sizes(
                    number,
                    _first_size(rules.first_cluster_size, number),
                    rules.max_cluster_size or None,
                    rules.count_root,
                )
            )
            for number in range(1, passages + 1)
        ),
        default=0,
    )


def _first_size(size: FirstSize, documents: int) -> int:
    """Return the paper's τ for a number of documents."""
    if size == "auto":
        return 1 if documents <= 10 else 3
    return size


def _vectors(
    query: str, passages: Sequence[Passage], options: EDC2Options, query_vector: ArrayLike | None
) -> Program[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Take the vectors that passages carry, if all do and fit the query's; else ask the encoder."""
    carried = [passage.embedding for passage in passages if passage.embedding is not None]
    lengths = {len(vector) for vector in carried}
    vectors = np.asarray(carried, dtype=np.float64) if len(lengths) == 1 else None
    vector = np.asarray(query_vector, dtype=np.float64) if query_vector is not None else None
    if vectors is None or len(carried) < len(passages):
        vectors = np.asarray((yield from embed([passage.text for passage in passages], "document")))
    if vector is None and options.rules.root == "rank" and options.clustering == "dynamic":
        return np.zeros(vectors.shape[1]), vectors
    if vector is None:
        vector = np.asarray((yield from embed([query], "query")))[0]
    if len(vector) != vectors.shape[1]:
        yield from emit(
            "cluster_compression.embedded_again",
            warning=True,
            query_dimensions=len(vector),
            passage_dimensions=vectors.shape[1],
        )
        vectors = np.asarray((yield from embed([passage.text for passage in passages], "document")))
        vector = np.asarray((yield from embed([query], "query")))[0]
    return vector, vectors
