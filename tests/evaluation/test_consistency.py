"""Cluster consistency, by hand and on real paragraphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.consistency import labelled_groups
from surerag.errors import InputError
from surerag.evaluation.consistency import Labelled, consistency_of

HOTPOT = Path(__file__).parents[4] / "shared" / "data" / "hotpotqa_100.json"


def group(*labels: str) -> Labelled:
    """Documents whose vectors point where their label says; the first label is the query's direction."""
    axes = {label: axis for axis, label in enumerate(dict.fromkeys(labels))}
    vectors = np.eye(8, dtype=np.float32)[[axes[label] for label in labels]]
    return Labelled(vectors[0], vectors, labels)


def test_classes_that_point_apart_are_clustered_better_than_chance() -> None:
    found = consistency_of([group(*"aaabbbbbb")] * 5, "a", permutations=400)
    assert found.found.value == 1.0
    # Sizes 3 and 6 of 9: a pair falls together in (3 + 15) of 36 cases.
    assert found.random.value == pytest.approx(0.5, abs=0.03)
    assert found.random.low < 0.5 < found.random.high
    assert found.gap.value == pytest.approx(1 - found.random.value)
    assert found.p < 0.05


def test_classes_that_do_not_point_apart_are_not() -> None:
    rng = np.random.default_rng(1)
    labels = tuple("aaaabbbbbb")
    groups = [
        Labelled(vectors[0], vectors, tuple(rng.permutation(labels)))
        for vectors in rng.normal(size=(60, 10, 8)).astype(np.float32)
    ]
    found = consistency_of(groups, "a", permutations=400)
    assert found.gap.low < 0 < found.gap.high
    assert found.p > 0.01


def test_a_class_with_single_documents_cannot_be_measured() -> None:
    with pytest.raises(InputError, match="two documents"):
        consistency_of([group(*"abbb")], "a")


@pytest.mark.skipif(not HOTPOT.exists(), reason=f"the HotpotQA sample is not at {HOTPOT}")
def test_hotpotqa_paragraphs_of_one_kind_land_together_more_often_than_chance() -> None:
    """A part of the sample, for time; ``python -m benchmarks.consistency`` measures all of it.

    Of gold paragraphs, a question has one pair: too few here to decide anything about them.
    """
    from surerag.encoders import packaged_minilm

    groups = labelled_groups(HOTPOT, packaged_minilm(), 30)
    gold, distractors = (consistency_of(groups, label) for label in ("gold", "distractor"))
    assert gold.n == distractors.n == 30
    assert gold.random.low < gold.random.value < gold.random.high
    assert distractors.gap.value > 0
    assert distractors.found.value > distractors.random.value
