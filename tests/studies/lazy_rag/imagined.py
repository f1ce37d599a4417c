"""A study of an imagined reader's records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from surerag.evaluation.gate.results import Agreement, Record
from surerag_studies.lazy_rag.analysis import study_of
from surerag_studies.lazy_rag.gates import GateRow, Passed, gate_rows
from surerag_studies.lazy_rag.results import LazyRagStudy
from tests.evaluation.gate.imagined import imagined_report


def imagined_study(records: list[Record] | None = None, threshold: float = 0.6) -> LazyRagStudy:
    """Return a study of records; by default of a reader that mostly knows what it knows."""
    report = imagined_report(records, threshold)
    gates = imagined_gates(report.records)
    return study_of(report, Agreement(50, 50, 50), gates, seed=7, encoder="imagined-encoder")


def imagined_gates(records: Sequence[Record]) -> tuple[GateRow, ...]:
    """Return the entropy gate, and one that knows its signal in halves of a nat only."""
    correct = np.array([record.first.correct for record in records])
    entropies = np.array([record.entropy for record in records])
    ones = np.ones(len(records), dtype=np.int64)
    passed = [
        Passed("entropy", "mean entropy of 8 tokens", 0, entropies, correct, ones, 4 * ones),
        Passed("disagreement of 5", "of 5 samples", 5, np.round(2 * entropies), correct, 5 * ones, 9 * ones),
    ]
    return gate_rows(passed, np.array([record.strong.correct for record in records]))
