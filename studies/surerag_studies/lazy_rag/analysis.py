"""From the report of a gate to the findings of the L-RAG study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields

from surerag.evaluation.differences import PairedDifference
from surerag.evaluation.formatting import p_value, percent, percent_with_interval
from surerag.evaluation.gate.analysis import CONFIDENCE, PAPER_THRESHOLDS, opens
from surerag.evaluation.gate.results import Agreement, GateReport, ModeRow, SweepPoint
from surerag.evaluation.gate.timing import GATE_LATENCY, RETRIEVAL_LATENCIES
from surerag.evaluation.statistics import Comparison, Proportion, is_monotone, share
from surerag.measures import break_even_latency, latency_saving
from surerag.world.regimes import TODAY
from surerag_studies.claims import Claim
from surerag_studies.lazy_rag.gates import GateRow
from surerag_studies.lazy_rag.results import LatencyModel, LatencyRow, LazyRagStudy

PAPER_RATES = (0.92, 0.74, 0.54)
MARGIN = 0.02
LEAST_SAVING = 0.15
LARGEST_P = 0.001


def study_of(
    report: GateReport,
    agreement: Agreement,
    gates: Sequence[GateRow],
    *,
    seed: int,
    encoder: str,
    regime: str = TODAY.name,
) -> LazyRagStudy:
    """Compute every finding of the study.

    Args:
        report: The gate against the fixed modes.
        agreement: How the component's own run at the calibrated threshold compares.
        gates: Other gates beside the entropy gate.
        seed: Seed of the world that was asked.
        encoder: Identity of the model behind both indices.
        regime: Name of the regime of both worlds.
    """
    threshold = report.calibration.threshold.value
    monotone = is_monotone([point.retrieval.value for point in report.sweep], "decreasing")
    difference = report.calibrated.against_standard
    saving = share([not opens(record, threshold) for record in report.records])
    return LazyRagStudy(
        **{field.name: getattr(report, field.name) for field in fields(report)},
        seed=seed,
        encoder=encoder,
        regime=regime,
        monotone=monotone,
        noninferiority=difference,
        margin=MARGIN,
        saving=saving,
        least_saving=LEAST_SAVING,
        agreement=agreement,
        latency=_latency_model(report.modes),
        gates=tuple(gates),
        claims=_claims(report.separation, report.sweep, monotone, difference, saving, agreement),
    )


def _latency_model(modes: Sequence[ModeRow]) -> LatencyModel:
    return LatencyModel(
        gate=GATE_LATENCY,
        retrieval=RETRIEVAL_LATENCIES,
        published=tuple(
            _latency_row(f"τ = {threshold:g}", rate)
            for threshold, rate in zip(PAPER_THRESHOLDS, PAPER_RATES, strict=True)
        ),
        measured=tuple(
            _latency_row(row.label, row.retrieval.value)
            for row in modes
            if row.threshold is not None and row.retrieval is not None
        ),
    )


def _latency_row(label: str, rate: float) -> LatencyRow:
    break_even = break_even_latency(rate, GATE_LATENCY)
    return LatencyRow(
        label,
        rate,
        break_even if math.isfinite(break_even) else None,
        tuple(latency_saving(rate, retrieval, GATE_LATENCY) for retrieval in RETRIEVAL_LATENCIES),
    )


def _claims(
    separation: Comparison | None,
    sweep: Sequence[SweepPoint],
    monotone: bool,
    difference: PairedDifference,
    saving: Proportion,
    agreement: Agreement,
) -> tuple[Claim, ...]:
    return (
        _separation_claim(separation),
        Claim(
            "The retrieval rate falls monotonically with τ",
            f"from {percent(sweep[0].retrieval.value)} to {percent(sweep[-1].retrieval.value)} "
            f"over {len(sweep)} thresholds",
            monotone and sweep[0].retrieval.value > sweep[-1].retrieval.value,
        ),
        Claim(
            f"Calibrated accuracy is not inferior to standard retrieval by more than {MARGIN * 100:g} points",
            f"difference {difference.value * 100:+.1f} points, "
            f"one-sided {percent(CONFIDENCE, 0)} bound {difference.lower_bound * 100:+.1f}",
            difference.lower_bound > -MARGIN,
        ),
        Claim(
            f"At least {percent(LEAST_SAVING, 0)} fewer retrievals at the calibrated threshold",
            f"{percent_with_interval(saving)} % fewer",
            saving.value >= LEAST_SAVING,
        ),
        Claim(
            "The component itself, run at that threshold, answers as the sweep says",
            f"{agreement.same_answer} answers, {agreement.same_decision} decisions agree of {agreement.n}",
            agreement.same_answer == agreement.same_decision == agreement.n,
        ),
    )


def _separation_claim(found: Comparison | None) -> Claim:
    statement = f"Entropy of wrong answers is above that of right ones (p < {LARGEST_P:g})"
    if found is None:
        return Claim(statement, "nothing: too few right or too few wrong answers", holds=False)
    p, area = max(found.p_welch, found.p_rank), found.auroc
    return Claim(
        statement,
        f"p {p_value(p)}, d = {found.cohens_d:.2f}, "
        f"AUROC = {area.value:.3f} [{area.low:.3f}, {area.high:.3f}]",
        holds=found.gap.value > 0 and p < LARGEST_P,
    )
