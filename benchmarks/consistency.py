"""Cluster consistency on real paragraphs (EDC²-RAG, section 6.3): gold against distractors of HotpotQA.

Run ``python -m benchmarks.consistency FILE``: items with ``question``, ``context`` (pairs of
title and sentences) and ``supporting_facts``, as HotpotQA is published.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from surerag.encoders import packaged_minilm
from surerag.evaluation.consistency import Labelled, consistency_of
from surerag.evaluation.statistics import Estimate
from surerag.services import Encoder


def labelled_groups(file: Path, encoder: Encoder, n: int | None = None) -> list[Labelled]:
    """Return the vectors of each question's paragraphs, labelled ``"gold"`` or ``"distractor"``."""
    items = json.loads(file.read_text(encoding="utf-8"))[:n]
    queries = encoder.encode([item["question"] for item in items], "query")
    texts = [f"{title}. {''.join(sentences)}" for item in items for title, sentences in item["context"]]
    vectors = iter(encoder.encode(texts, "document"))
    groups = []
    for item, query in zip(items, queries, strict=True):
        gold = {title for title, _ in item["supporting_facts"]}
        labels = tuple("gold" if title in gold else "distractor" for title, _ in item["context"])
        groups.append(Labelled(query, np.stack([next(vectors) for _ in labels]), labels))
    return groups


def _interval(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.1f} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    groups = labelled_groups(parser.parse_args().file, packaged_minilm())
    table = Table("class", "n", "in one cluster, %", "random clusters, %", "gap, points", "p")
    for label in ("gold", "distractor"):
        found = consistency_of(groups, label)
        shown = (_interval(found.found), _interval(found.random), _interval(found.gap))
        table.add_row(label, str(found.n), *shown, f"{found.p:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
