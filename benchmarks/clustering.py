"""Clusters of documents, ours against scikit-learn's and LangChain's, on the same vectors.

Run ``python -m benchmarks.clustering``. Each makes as many clusters as Algorithm 1 does. Agglomerative
clustering holds every pair's distance, so it stops at a few thousand documents; ours goes on to 10,000, for
which the goal is under a second on one core.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import numpy as np
from langchain_community.document_transformers import EmbeddingsClusteringFilter
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.cluster import AgglomerativeClustering
from threadpoolctl import threadpool_limits

from benchmarks.paired import Comparison, Contender, compare, show
from surerag.methods.edc2.clusters import dynamic_cluster_sizes, dynamic_clusters

DIMENSIONS = 384
LARGE = 10_000


class Vectors(NamedTuple):
    """A question's vector and those of its documents, in clumps."""

    query: NDArray[np.float32]
    documents: NDArray[np.float32]

    @classmethod
    def draw(cls, n: int, seed: int = 0) -> Vectors:
        """Draw unit vectors around a centre for each ten documents."""
        rng = np.random.default_rng(seed)
        centres = rng.normal(size=(max(1, n // 10), DIMENSIONS))
        documents = centres[rng.integers(len(centres), size=n)] + rng.normal(size=(n, DIMENSIONS)) / 2
        documents /= np.linalg.norm(documents, axis=1, keepdims=True)
        return cls(documents[0].astype(np.float32), documents.astype(np.float32))


class Looked(Embeddings):
    """Vectors that are there already, so that only clustering is timed."""

    def __init__(self, vectors: NDArray[np.float32]) -> None:
        self._rows = vectors.tolist()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the rows that the texts number."""
        return [self._rows[int(text)] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        """Return the row that the text numbers."""
        return list(self._rows[int(text)])


def contest(n: int, turns: int) -> list[Comparison]:
    """Compare ours with both peers on ``n`` documents."""
    vectors = Vectors.draw(n)
    count = len(dynamic_cluster_sizes(n))
    agglomerative = AgglomerativeClustering(count, metric="cosine", linkage="average")
    documents = [Document(str(at)) for at in range(n)]
    peer = EmbeddingsClusteringFilter(
        embeddings=Looked(vectors.documents), num_clusters=count, num_closest=1, sorted=True
    )
    ours = Contender("dynamic_clusters", lambda: dynamic_clusters(vectors.query, vectors.documents))
    title = f"{n:,} documents, {count} clusters"
    return [
        compare(
            title,
            Contender("AgglomerativeClustering", lambda: agglomerative.fit(vectors.documents)),
            ours,
            turns=turns,
        ),
        compare(
            title,
            Contender("EmbeddingsClusteringFilter", lambda: peer.transform_documents(documents)),
            ours,
            turns=turns,
        ),
    ]


def alone(turns: int) -> Table:
    """Time ours on 10,000 documents."""
    vectors = Vectors.draw(LARGE)
    seconds = []
    for _ in range(turns):
        started = time.process_time()
        dynamic_clusters(vectors.query, vectors.documents)
        seconds.append(time.process_time() - started)
    table = Table("documents", "dimensions", "seconds of one core: least", "median", "most")
    ordered = sorted(seconds)
    figures = (ordered[0], ordered[len(ordered) // 2], ordered[-1])
    table.add_row(f"{LARGE:,}", str(DIMENSIONS), *(f"{value:.3f}" for value in figures))
    return table


def main() -> None:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="only see that it runs")
    given = parser.parse_args()
    sizes = (20,) if given.tiny else (20, 100, 500, 2000)
    with threadpool_limits(1):
        show([found for n in sizes for found in contest(n, given.turns)], caption="one core")
        if not given.tiny:
            Console().print(alone(given.turns))


if __name__ == "__main__":
    main()
