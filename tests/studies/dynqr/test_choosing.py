"""Which θ a sample chooses, and how that varies."""

from __future__ import annotations

import numpy as np
import pytest

from surerag_studies.dynqr.choosing import RULES, _Sample, choices
from surerag_studies.dynqr.records import ALWAYS, outcome_of
from tests.studies.dynqr.imagined import imagined_records

RECORDS = imagined_records(300, seed=4)


def outcomes(threshold: float) -> tuple[float, float]:
    found = [outcome_of(record, threshold, "substitute") for record in RECORDS]
    return float(np.mean([one.attempt.correct for one in found])), float(
        np.mean([one.acted for one in found])
    )


@pytest.mark.parametrize("threshold", [ALWAYS, 1.01, 1.05, 1.3, 100.0])
def test_a_sample_says_of_a_threshold_what_the_method_does_there(threshold: float) -> None:
    sample = _Sample(RECORDS)
    assert (sample.accuracy(threshold), sample.rewritten(threshold)) == pytest.approx(outcomes(threshold))


def test_each_rule_keeps_to_what_it_says() -> None:
    sample = _Sample(RECORDS)
    best, bounded, within = (rule(sample) for _, rule in RULES)
    tried = [ALWAYS, *sample.values]
    accuracies = [outcomes(value)[0] for value in tried]
    assert outcomes(best)[0] == pytest.approx(max(accuracies))
    assert all(outcomes(value)[0] < max(accuracies) - 1e-9 for value in tried if value > best)
    always = outcomes(ALWAYS)[0]
    assert all(outcomes(value)[0] >= always - 0.01 - 1e-9 for value in tried if value <= bounded)
    assert outcomes(within)[1] <= 0.4 < outcomes(float(np.nextafter(within, 0)))[1]


def test_larger_samples_choose_more_steadily() -> None:
    rows = {(row.rule, row.n): row for row in choices(imagined_records(500, seed=9), RECORDS)}
    widths = {key: row.rewritten.high - row.rewritten.low for key, row in rows.items()}
    for name, _ in RULES:
        assert widths[name, 500] < widths[name, 100]
        assert rows[name, 500].against_always.low <= rows[name, 500].against_always.middle
