"""Records of an imagined reader: answers from leads, its memory, or passages only."""

from __future__ import annotations

import numpy as np

from surerag import LazyRAG, ScriptedReader
from surerag.evaluation.gate import GateReport, GateThreshold, report_of
from surerag.evaluation.gate.results import Pass, Record
from surerag.evaluation.statistics import Estimate


def imagined_records(n: int = 600, seed: int = 0) -> list[Record]:
    """Return records in which uncertainty tells, mostly, whether the first pass is right."""
    rng = np.random.default_rng(seed)
    records = []
    for number in range(n):
        kind = str(rng.choice(["lead", "core", "passage"], p=[0.3, 0.15, 0.55]))
        known = kind != "passage"
        first = bool(rng.random() < (0.95 if known else 0.05))
        later = bool(rng.random() < 0.9)
        entropy = float(rng.gamma(1.2, 0.15) if known else rng.gamma(6.0, 0.35))
        records.append(
            Record(
                id=f"q{number}",
                kind=f"under-specified, {kind}",
                entropy=entropy,
                first=Pass(first, 70, 70, 4),
                none=Pass(kind == "core", 20, 20, 3),
                standard=Pass(later, 110, 110, 4),
                strong=Pass(later or first, 165, 165, 5),
                oracle=Pass(bool(later or rng.random() < 0.5), 120, 120, 4),
            )
        )
    return records


def imagined_report(records: list[Record] | None = None, threshold: float = 0.6) -> GateReport:
    """Return a report of such records."""
    threshold = GateThreshold(
        threshold=Estimate(threshold, threshold, threshold + 0.3),
        rule="the largest τ that loses at most 1 point against always retrieving",
        seed=8,
        n=500,
        accuracy=0.91,
        retrieval_rate=0.55,
    )
    rag = LazyRAG(ScriptedReader([], name="imagined"), mode="none")
    return report_of(records or imagined_records(), threshold, rag)


def record(entropy: float, *, first: bool, strong: bool = True) -> Record:
    """Return a record made by hand."""
    return Record(
        id="q",
        kind="lead",
        entropy=entropy,
        first=Pass(first, 70, 70, 12),
        none=Pass(False, 20, 20, 3),
        standard=Pass(True, 110, 110, 4),
        strong=Pass(strong, 165, 165, 5),
        oracle=Pass(True, 120, 120, 4),
    )
