"""A study of an imagined reader's records."""

from __future__ import annotations

from surerag.evaluation.gate.results import Agreement, Record
from surerag_studies.lazy_rag.analysis import study_of
from surerag_studies.lazy_rag.results import LazyRagStudy
from tests.evaluation.gate.imagined import imagined_report


def imagined_study(records: list[Record] | None = None, threshold: float = 0.6) -> LazyRagStudy:
    """Return a study of records; by default of a reader that mostly knows what it knows."""
    return study_of(
        imagined_report(records, threshold), Agreement(50, 50, 50), seed=7, encoder="imagined-encoder"
    )
