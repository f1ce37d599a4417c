"""Records of an imagined reader: sure where it finds the answer, and wrong where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from surerag_studies.dynqr.asking import COMPARED
from surerag_studies.dynqr.records import Attempted, Cost, Record
from surerag_studies.dynqr.results import Agreement, DynQRStudy, TrainingStudy
from surerag_studies.dynqr.study import Recorded, study_of

KINDS = ("under-specified", "single-hop", "two-hop")


def attempted(rng: np.random.Generator, right: bool) -> Attempted:
    doubt = float(rng.gamma(1.5, 0.02) if right else rng.gamma(4.0, 0.2))
    uncertainty: dict[Any, float] = {metric: 1 + doubt + 0.01 * at for at, metric in enumerate(COMPARED)}
    uncertainty["energy"] -= 20
    return Attempted("Velm" if right else "Orun", right, float(right), uncertainty, Cost(0, 1, 110, 3))


def imagined_records(n: int = 400, seed: int = 0) -> list[Record]:
    """Return records in which rewrites mend vague questions, and harm some clear ones."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(n):
        kind = str(rng.choice(KINDS, p=[0.25, 0.5, 0.25]))
        vague = kind == "under-specified"
        at_once = bool(rng.random() < (0.15 if vague else 0.9))
        mended = bool(rng.random() < (0.9 if vague else 0.7))
        rewritten = rng.random() < 0.97
        found.append(
            Record(
                id=f"q{number}",
                kind=kind,
                question=f"Where is {number}?",
                rewrite=f"In which city is {number}?" if rewritten else "",
                rewriting="rewritten" if rewritten else "unusable",
                writing=Cost(0, 1, 40, 9),
                direct=attempted(rng, rng.random() < 0.15),
                original=attempted(rng, at_once),
                substitute=attempted(rng, mended) if rewritten else None,
                expand=attempted(rng, mended or at_once) if rewritten else None,
                golden=None if at_once else attempted(rng, rng.random() < 0.9),
            )
        )
    return found


def imagined_study(
    records: Sequence[Record] | None = None, training: TrainingStudy | None = None
) -> DynQRStudy:
    """Return a study of such records, calibrated on others."""
    return study_of(
        Recorded(imagined_records(seed=1), list(records or imagined_records()), COMPARED),
        seed=7,
        calibration_seed=8,
        model="imagined",
        encoder="imagined-encoder",
        check=lambda thresholds: Agreement(100 * len(thresholds), 100 * len(thresholds), 200, 0),
        training=training,
    )
