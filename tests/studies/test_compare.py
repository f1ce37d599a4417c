"""The study of comparisons: planted readers, redrawn questions."""

from __future__ import annotations

import numpy as np
import pytest

from surerag_studies.compare.study import compared, gated
from surerag_studies.compare.worlds import KINDS


def test_a_planted_world_is_decided_for_what_was_planted():
    [vague] = [kind for kind in KINDS if kind.name == "vague queries"]
    report, right = compared(vague, 77, 80)
    assert report.recommendation.system == vague.best == "rewrite"
    assert len(right) == 80 * 4


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("change", "outcome"), [(0.0, "passes"), (-0.05, "fails")])
def test_an_unchanged_pipeline_passes_and_a_planted_loss_fails(change, outcome):
    recorded = np.random.default_rng(7).random(5000) < 0.7
    found = gated(recorded, change, 0.10, 500, 120, seed=2)
    # 96 and 95 of 100 are expected; this leaves room for four standard errors.
    assert getattr(found, outcome).value > 0.87
