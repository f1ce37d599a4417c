"""Promises on a real reader's records, which are not part of the project."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from surerag.decisions.calibrating import calibrate

TRACE = Path(__file__).parents[3] / "shared" / "data" / "traces" / "single_hop.parquet"


@pytest.mark.skipif(not TRACE.exists(), reason="the recorded answers are not here (../shared/data/traces)")
def test_promises_hold_on_a_real_readers_records() -> None:
    sources = pytest.importorskip("surerag_studies.decisions.sources")
    rng = np.random.default_rng(0)
    for source in sources.recorded(TRACE):
        rows = source.rows()
        benefit, signals = source.with_ - source.without, source.signals[:, 0]
        broken = 0
        for _ in range(60):
            policy = calibrate("perplexity", [rows[at] for at in rng.integers(len(rows), size=250)])
            broken += float(np.where(signals <= policy.threshold, benefit, 0.0).mean()) > 0.02
        assert broken / 60 <= 0.05 + 2.33 * (0.05 * 0.95 / 60) ** 0.5
