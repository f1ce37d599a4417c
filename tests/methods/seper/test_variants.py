"""SePer as the paper has it, as its authors' code does, and as we do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from surerag import FakeReader, Passage, SePer, SePerOptions
from surerag.clustering import meaning_clusters
from surerag.errors import ConfigurationError
from surerag.messages import Pair
from surerag.methods.seper.options import VARIANTS
from surerag.methods.seper.scoring import interval_of
from surerag.readers.fake import reply

PASSAGE = Passage("Ada was born in Velm.")
GOLDS = ["old Velm", "the city of Velm"]


class Judge:
    """Says so of what is written in it; all else is neutral."""

    local = True
    name = "judge"

    def __init__(self, *entailed: tuple[str, str, float]) -> None:
        self._known = {(premise, hypothesis): p for premise, hypothesis, p in entailed}
        self.asked: list[Pair] = []

    def entail(self, pairs: list[Pair]) -> np.ndarray:
        self.asked += pairs
        found = [self._known.get((pair.premise, pair.hypothesis), 0.0) for pair in pairs]
        return np.array([[0.0, 1 - p, p] for p in found])


def measured(judge: Judge, **settings: object) -> SePer:
    samples = [
        reply("old Velm", logprobs=-0.5),
        reply("old Velm", logprobs=-0.5),
        reply("Orun", logprobs=-2.0),
    ]
    reader = FakeReader(lambda prompt: samples.pop(0) if "born" in prompt else "Orun")
    return SePer(reader, judge, n_samples=3, **settings)  # type: ignore[arg-type]


def test_the_papers_belief_by_hand() -> None:
    judge = Judge(("old Velm", "the city of Velm", 0.4), ("the city of Velm", "old Velm", 1.0))
    found = measured(judge, variant="paper").run("Where?", GOLDS, [PASSAGE])
    # Each distinct answer by its probability (Eq. 7), forward entailment, the mean over golds (Eq. 10).
    assert found.after.seper == pytest.approx(math.exp(-1) * (1.0 + 0.4) / 2)
    assert not any(pair.question for pair in judge.asked)
    assert all(pair.hypothesis in GOLDS for pair in judge.asked)


def test_the_authors_belief_by_hand() -> None:
    judge = Judge(("the city of Velm", "old Velm", 1.0))
    found = measured(judge, variant="official").run("Where?", GOLDS, [PASSAGE])
    # Each sample by the mean of its log-probabilities; both directions; the best gold answer.
    velm, orun = math.exp(-0.5), math.exp(-2.0)
    assert found.after.seper == pytest.approx(2 * velm / (2 * velm + orun))
    assert {pair.question for pair in judge.asked} == {"Where?"}


def test_what_is_set_wins_over_the_variant() -> None:
    options = SePerOptions(variant="paper", golds="max", clusters="first")
    assert options.rules == VARIANTS["paper"]._replace(golds="max", clusters="first")
    assert SePerOptions().rules == VARIANTS["default"]
    with pytest.raises(ConfigurationError, match="probability"):
        SePerOptions(variant="paper", likelihood="mean")


def test_of_all_linkage_every_two_members_mean_the_same_and_of_first_they_often_do_not() -> None:
    rng = np.random.default_rng(3)
    broken = dict.fromkeys(("all", "first"), 0)
    for _ in range(300):
        upper = np.triu(rng.random((8, 8)) < 0.5, 1)
        same = upper | upper.T | np.eye(8, dtype=bool)
        for linkage in ("all", "first"):
            labels = meaning_clusters(same, linkage)
            inside = labels[:, None] == labels[None, :]
            broken[linkage] += bool((inside & ~same).any())
    assert broken["all"] == 0
    assert broken["first"] > 200


def test_a_cluster_of_all_linkage_matches_only_where_all_of_it_does() -> None:
    # "in Velm" means "Velm", but only "Velm" means the gold answer.
    judge = Judge(
        ("in Velm", "Velm", 1.0), ("Velm", "in Velm", 1.0), ("Velm", "gold", 1.0), ("gold", "Velm", 1.0)
    )

    def belief(clusters: str) -> float:
        samples = ["Velm", "in Velm"]
        reader = FakeReader(lambda prompt: samples.pop(0) if "born" in prompt else "Orun")
        seper = SePer(reader, judge, n_samples=2, kernel="hard", match="strict", clusters=clusters)  # type: ignore[arg-type]
        return seper.run("Where?", ["gold"], [PASSAGE]).after.seper

    assert (belief("first"), belief("all")) == (1.0, 0.0)


def test_the_interval_is_that_of_numpys_quantiles() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 7, 499, 500):
        for values in (rng.random(n), rng.integers(0, 3, n) / 3):
            assert tuple(interval_of(values)) == tuple(np.quantile(values, [0.025, 0.975]))
