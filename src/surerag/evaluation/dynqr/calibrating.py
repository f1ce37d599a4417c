"""Thresholds from the records of another world, by the code that calibrates the component."""

from __future__ import annotations

from collections.abc import Sequence

from surerag.components.theta import calibrate_theta
from surerag.evaluation.dynqr.records import ALWAYS, Record, outcome_of
from surerag.evaluation.dynqr.results import Threshold
from surerag.evaluation.statistics import Estimate
from surerag.methods.uncertainty_metrics import MetricName
from surerag.methods.uncertainty_types import Documents

MAX_LOSS = 0.01
"""Accuracy that calibration may give up against rewriting always: half of what the study allows."""

RULE = f"the largest θ that loses at most {100 * MAX_LOSS:g} point against rewriting always"


def calibrated(records: Sequence[Record], documents: Documents, metric: MetricName) -> Threshold:
    """Take the lower end of the interval: the largest θ of one sample is too large for half of all others."""
    uncertainties = [record.original.uncertainty[metric] for record in records]
    found = calibrate_theta(
        uncertainties,
        max_loss=MAX_LOSS,
        correct_without=[record.original.correct for record in records],
        correct_with=[outcome_of(r, ALWAYS, documents, metric).attempt.correct for r in records],
    )
    theta = found.lower
    outcomes = [outcome_of(record, theta, documents, metric) for record in records]
    return Threshold(
        documents=documents,
        metric=metric,
        theta=Estimate(theta, found.lower, found.upper),
        rate=sum(outcome.acted for outcome in outcomes) / len(outcomes),
        accuracy=sum(outcome.attempt.correct for outcome in outcomes) / len(outcomes),
        reference=found.reference or 0.0,
    )
