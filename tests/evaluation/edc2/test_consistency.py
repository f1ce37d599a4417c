"""Cluster consistency, by hand and on real paragraphs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from surerag.errors import InputError
from surerag.evaluation.edc2.consistency import Labelled, consistency_of

HOTPOT = Path(__file__).parents[4] / "shared" / "data" / "hotpotqa_100.json"


def group(*labels: str) -> Labelled:
    """Documents whose vectors point where their label says; the first label is the query's direction."""
    axes = {label: axis for axis, label in enumerate(dict.fromkeys(labels))}
    vectors = np.eye(8, dtype=np.float32)[[axes[label] for label in labels]]
    return Labelled(vectors[0], vectors, labels)


def test_classes_that_point_apart_are_clustered_better_than_chance() -> None:
    found = consistency_of([group(*"aaabbbbbb")] * 5, "a", permutations=200)
    assert found.found.value == 1.0
    # Sizes 3 and 6 of 9: a pair falls together in (3 + 15) of 36 cases.
    assert found.random.value == pytest.approx(0.5, abs=0.03)
    assert found.random.low < 0.5 < found.random.high
    assert found.p < 0.05
    assert found.gap.low == pytest.approx(found.gap.high) == pytest.approx(0.5, abs=0.03)


def test_a_class_with_single_documents_cannot_be_measured() -> None:
    with pytest.raises(InputError, match="two documents"):
        consistency_of([group(*"abbb")], "a")


@pytest.mark.timeout(400)
@pytest.mark.skipif(not HOTPOT.exists(), reason=f"the HotpotQA sample is not at {HOTPOT}")
def test_hotpotqa_paragraphs_of_one_kind_land_together_more_often_than_chance() -> None:
    """Gold paragraphs: 47 % of pairs against 40 %, but n = 100 pairs decide nothing; distractors do.

    Every question has one gold pair, so its interval is wide: the gap is 7 points [-3, +17].
    """
    from surerag.encoders import packaged_minilm

    encoder = packaged_minilm()
    items = json.loads(HOTPOT.read_text(encoding="utf-8"))
    queries = encoder.encode([item["question"] for item in items], "query")
    texts = [f"{title}. {''.join(sentences)}" for item in items for title, sentences in item["context"]]
    vectors = iter(encoder.encode(texts, "document"))
    groups = []
    for item, query in zip(items, queries, strict=True):
        gold = {title for title, _ in item["supporting_facts"]}
        labels = tuple("gold" if title in gold else "distractor" for title, _ in item["context"])
        groups.append(Labelled(query, np.stack([next(vectors) for _ in labels]), labels))
    gold_pairs, distractors = (consistency_of(groups, label) for label in ("gold", "distractor"))
    assert gold_pairs.n == distractors.n == 100
    assert gold_pairs.found.value == pytest.approx(0.47, abs=0.02)
    assert gold_pairs.random.low < 0.4 < gold_pairs.random.high
    assert distractors.gap.low > 0
    assert distractors.p < 0.01
