"""Do documents of one class land in one cluster? The metric of section 6.3 against permuted labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.clustering import Cluster, cluster_consistency, dynamic_clusters
from surerag.errors import InputError
from surerag.evaluation.statistics import Estimate


class Labelled(NamedTuple):
    """One question's documents.

    Attributes:
        query: Its vector, shape [dimensions].
        documents: Their vectors, shape [documents, dimensions].
        labels: Class of each.
    """

    query: NDArray[np.float32]
    documents: NDArray[np.float32]
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Consistency:
    """How consistently one class is clustered.

    Attributes:
        label: The class.
        n: Questions with at least two documents of it.
        found: Mean share of its pairs that lie in one cluster, with a bootstrap interval over questions.
        random: The same for random clusters of the same sizes, with the interval of permutations.
        gap: Found less random, with a bootstrap interval over questions.
        p: Share of permutations that reach what was found (one added to both counts).
    """

    label: str
    n: int
    found: Estimate
    random: Estimate
    gap: Estimate
    p: float


def consistency_of(
    groups: Sequence[Labelled], label: str, *, permutations: int = 1_000, seed: int = 0
) -> Consistency:
    """Measure cluster consistency of a class over questions (EDC²-RAG, section 6.3 and Table 7).

    Args:
        groups: Questions with labelled documents.
        label: The class to look at.
        permutations: Random assignments of documents to clusters of the same sizes.
        seed: Of permutations and bootstrap.

    Raises:
        InputError: If no question has two documents of the class.
    """
    rng = np.random.default_rng(seed)
    usable = [group for group in groups if group.labels.count(label) >= 2]
    if not usable:
        raise InputError(f"no question has two documents of class {label!r}")
    clusters = [dynamic_clusters(group.query, group.documents) for group in usable]
    found = np.array([cluster_consistency(c, g.labels, label) for c, g in zip(clusters, usable, strict=True)])
    # Shuffling labels over fixed clusters is drawing random clusters of the same sizes.
    shuffled = np.array(
        [_shuffled(c, g.labels, label, permutations, rng) for c, g in zip(clusters, usable, strict=True)]
    )
    means = shuffled.mean(axis=0)
    expected = shuffled.mean(axis=1)
    return Consistency(
        label=label,
        n=len(usable),
        found=_bootstrapped(found, rng),
        random=Estimate(float(means.mean()), *map(float, np.quantile(means, [0.025, 0.975]))),
        gap=_bootstrapped(found - expected, rng),
        p=float((1 + np.sum(means >= found.mean())) / (1 + permutations)),
    )


def _shuffled(
    clusters: list[Cluster], labels: Sequence[str], label: str, times: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return the consistency of each of many random assignments, shape [times]."""
    of_class = np.tile(np.asarray(labels) == label, (times, 1))
    mixed = rng.permuted(of_class, axis=1)
    inside = np.stack([mixed[:, cluster].sum(axis=1) for cluster in clusters])
    total = int(of_class[0].sum())
    together: NDArray[np.float64] = (inside * (inside - 1)).sum(axis=0) / (total * (total - 1))
    return together


def _bootstrapped(values: NDArray[np.float64], rng: np.random.Generator) -> Estimate:
    draws = rng.choice(values, size=(10_000, len(values))).mean(axis=1)
    return Estimate(float(values.mean()), *map(float, np.quantile(draws, [0.025, 0.975])))
