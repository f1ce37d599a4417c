"""From records to thresholds and findings: pure functions, no model in sight."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from surerag.decisions.bootstrap import bootstrap_threshold
from surerag.evaluation.differences import PairedDifference, paired_difference
from surerag.evaluation.statistics import Estimate, Proportion, compare, share
from surerag.methods.dynqr.metrics import MetricName
from surerag.methods.dynqr.options import Documents
from surerag_studies.dynqr.records import ALWAYS, SEARCH, Outcome, Record, always, outcome_of
from surerag_studies.dynqr.results import GoldRow, KindRow, MetricRow, Row, SweepPoint, Threshold

CONFIDENCE = 0.95
PAPER_THRESHOLDS = (1.0, 1.1, 1.2, 1.3, 1.4)
"""Of Table 3."""

SETTINGS: tuple[Documents, ...] = ("substitute", "expand")

MAX_LOSS = 0.01
"""Accuracy that calibration may give up against rewriting always: half of what the study allows."""

RULE = f"the largest θ that loses at most {100 * MAX_LOSS:g} point against rewriting always"


def rows(records: Sequence[Record], thresholds: Sequence[Threshold]) -> tuple[Row, ...]:
    """Return the form of Table 1, with the ablations of Table 2.

    Args:
        records: Every question.
        thresholds: One for each setting.
    """
    direct = [Outcome(r.direct, acted=False, replaced=False, cost=r.direct.cost) for r in records]
    original = [
        Outcome(r.original, acted=False, replaced=False, cost=SEARCH + r.original.cost) for r in records
    ]
    found = [
        _row("Direct", None, records, direct, None),
        _row("Original query", None, records, original, None),
    ]
    for threshold in thresholds:
        documents, value = threshold.documents, threshold.threshold.value
        rewritten = [always(record, documents) for record in records]
        for label, outcomes in (
            ("Always rewrite", rewritten),
            ("DynQR", [outcome_of(r, value, documents) for r in records]),
            ("w/o verification", [outcome_of(r, value, documents, verify=False) for r in records]),
            ("w/o pre-check", [outcome_of(r, ALWAYS, documents) for r in records]),
        ):
            found.append(_row(label, documents, records, outcomes, rewritten))
    return tuple(found)


def kind_rows(records: Sequence[Record], threshold: float) -> tuple[KindRow, ...]:
    """Compare by kind of question, all clear ones together first (substitute)."""
    kinds = sorted({record.kind for record in records if not record.vague})
    groups: list[tuple[str, list[Record]]] = [
        ("under-specified", [record for record in records if record.vague]),
        ("clear", [record for record in records if not record.vague]),
        *((kind, [record for record in records if record.kind == kind]) for kind in kinds if len(kinds) > 1),
    ]
    return tuple(_kind_row(name, members, threshold) for name, members in groups if members)


def sweep(records: Sequence[Record], steps: int = 10) -> tuple[SweepPoint, ...]:
    """Return the form of Table 3: the paper's thresholds, and the quantiles of the perplexities seen."""
    seen = [record.original.uncertainty["perplexity"] for record in records]
    quantiles = np.quantile([value for value in seen if math.isfinite(value)], np.linspace(0, 1, steps + 1))
    # Rounded up, so that the last of them leaves every question alone that has an answer.
    thresholds = sorted({*PAPER_THRESHOLDS, *(math.ceil(1e4 * value) / 1e4 for value in quantiles)})
    return tuple(_sweep_point(records, threshold) for threshold in thresholds)


def metric_rows(records: Sequence[Record], thresholds: Sequence[Threshold]) -> tuple[MetricRow, ...]:
    """Return the form of Table 5, perplexity first.

    Args:
        records: Every question.
        thresholds: One for each metric, for the setting ``"substitute"``.
    """
    found: list[MetricRow] = []
    perplexity: list[bool] = []
    for threshold in thresholds:
        metric = threshold.metric
        outcomes = [
            outcome_of(record, threshold.threshold.value, threshold.documents, metric) for record in records
        ]
        right = [outcome.attempt.correct for outcome in outcomes]
        perplexity = perplexity or right
        told = [r.original for r in records if math.isfinite(r.original.uncertainty[metric])]
        wrong = [first.uncertainty[metric] for first in told if not first.correct]
        good = [first.uncertainty[metric] for first in told if first.correct]
        found.append(
            MetricRow(
                metric=metric,
                threshold=threshold,
                accuracy=share(right),
                rewritten=share([outcome.acted for outcome in outcomes]),
                against_perplexity=None if metric == "perplexity" else _paired(right, perplexity),
                separation=compare(wrong, good, CONFIDENCE) if min(len(wrong), len(good)) > 1 else None,
            )
        )
    return tuple(found)


def gold_rows(records: Sequence[Record]) -> tuple[GoldRow, ...]:
    """Return the form of Figure 3: all questions that lack a gold passage, and each kind of them."""
    changed = [record for record in records if record.golden is not None]
    kinds = sorted({record.kind for record in changed})
    groups = [("all", changed), *((kind, [r for r in changed if r.kind == kind]) for kind in kinds)]
    return tuple(_gold_row(kind, members) for kind, members in groups if members)


def _row(
    label: str,
    documents: Documents | None,
    records: Sequence[Record],
    outcomes: Sequence[Outcome],
    rewritten: Sequence[Outcome] | None,
) -> Row:
    right = [outcome.attempt.correct for outcome in outcomes]
    costs = [outcome.cost for outcome in outcomes]
    return Row(
        label=label,
        documents=documents,
        accuracy=share(right),
        vague=_some(right, [record.vague for record in records]),
        clear=_some(right, [not record.vague for record in records]),
        against_original=_paired(right, [record.original.correct for record in records]),
        against_always=None if rewritten is None else _paired(right, [o.attempt.correct for o in rewritten]),
        rewritten=_mean(outcomes, lambda one: one.acted),
        replaced=_mean(outcomes, lambda one: one.replaced),
        gold=_mean(outcomes, lambda one: one.attempt.gold),
        retrievals=statistics.fmean(cost.retrievals for cost in costs),
        calls=statistics.fmean(cost.calls for cost in costs),
        prompt_tokens=statistics.fmean(cost.prompt_tokens for cost in costs),
        completion_tokens=statistics.fmean(cost.completion_tokens for cost in costs),
    )


def _kind_row(kind: str, records: Sequence[Record], threshold: float) -> KindRow:
    outcomes = [outcome_of(record, threshold, "substitute") for record in records]
    ours = [outcome.attempt.correct for outcome in outcomes]
    original = [record.original.correct for record in records]
    rewritten = [always(record, "substitute").attempt.correct for record in records]
    return KindRow(
        kind=kind,
        n=len(records),
        original=share(original),
        always=share(rewritten),
        dynqr=share(ours),
        rewritten=share([outcome.acted for outcome in outcomes]),
        against_original=_paired(ours, original),
        against_always=_paired(ours, rewritten),
    )


def _sweep_point(records: Sequence[Record], threshold: float) -> SweepPoint:
    substitute, expand = ([outcome_of(r, threshold, documents) for r in records] for documents in SETTINGS)
    return SweepPoint(
        threshold,
        share([outcome.attempt.correct for outcome in substitute]),
        share([outcome.attempt.correct for outcome in expand]),
        share([outcome.acted for outcome in substitute]),
    )


def _gold_row(kind: str, records: Sequence[Record]) -> GoldRow:
    pairs = [(r.original, r.golden) for r in records if r.golden is not None]
    before = [first.uncertainty["perplexity"] for first, _ in pairs]
    after = [second.uncertainty["perplexity"] for _, second in pairs]
    # An answer without a word has no perplexity to average.
    told = [(b, a) for b, a in zip(before, after, strict=True) if math.isfinite(b) and math.isfinite(a)]
    change = paired_difference([a for _, a in told], [b for b, _ in told], confidence=CONFIDENCE)
    return GoldRow(
        kind=kind,
        falls=share([a < b for b, a in zip(before, after, strict=True)]),
        before=statistics.fmean(b for b, _ in told),
        after=statistics.fmean(a for _, a in told),
        change=change,
        correct_before=share([first.correct for first, _ in pairs]),
        correct_after=share([second.correct for _, second in pairs]),
    )


def _some(right: Sequence[bool], members: Sequence[bool]) -> Proportion | None:
    chosen = [flag for flag, member in zip(right, members, strict=True) if member]
    return share(chosen) if chosen else None


def _paired(treatment: Sequence[bool], control: Sequence[bool]) -> PairedDifference:
    return paired_difference(treatment, control, confidence=CONFIDENCE)


def _mean(outcomes: Sequence[Outcome], value: Callable[[Outcome], float]) -> float:
    return statistics.fmean(value(outcome) for outcome in outcomes)


def calibrated(records: Sequence[Record], documents: Documents, metric: MetricName) -> Threshold:
    """Find a threshold from the records of another world, by the code that calibrates the component.

    It is the lower end of the interval: the largest θ of one sample is too large for half of all others.
    """
    uncertainties = [record.original.uncertainty[metric] for record in records]
    found = bootstrap_threshold(
        uncertainties,
        [record.original.correct for record in records],
        [outcome_of(r, ALWAYS, documents, metric).attempt.correct for r in records],
        MAX_LOSS,
    )
    value = found.lower
    outcomes = [outcome_of(record, value, documents, metric) for record in records]
    return Threshold(
        documents=documents,
        metric=metric,
        threshold=Estimate(value, found.lower, found.upper),
        rate=sum(outcome.acted for outcome in outcomes) / len(outcomes),
        accuracy=sum(outcome.attempt.correct for outcome in outcomes) / len(outcomes),
        reference=found.reference,
    )
