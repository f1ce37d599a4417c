"""Records of an imagined reader: answers from leads, its memory, or passages only."""

from __future__ import annotations

import numpy as np

from surerag.evaluation.lazy_rag.analysis import Setting, analyse
from surerag.evaluation.lazy_rag.results import Agreement, LazyRagStudy, Pass, Record, Threshold
from surerag.evaluation.statistics import Estimate

SETTING = Setting(
    seed=7, model="imagined", encoder="imagined-encoder", k=3, m=3, gate_tokens=8, aggregate="mean"
)


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


def imagined_study(records: list[Record] | None = None, tau: float = 0.6) -> LazyRagStudy:
    """Return a study of such records."""
    threshold = Threshold(
        tau=Estimate(tau, tau, tau + 0.3),
        rule="the largest τ that loses at most 1 point against always retrieving",
        seed=8,
        n=500,
        accuracy=0.91,
        retrieval_rate=0.55,
    )
    return analyse(records or imagined_records(), threshold, Agreement(50, 50, 50), SETTING)
