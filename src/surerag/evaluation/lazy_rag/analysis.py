"""From records to findings: pure functions, no model in sight."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from surerag.evaluation.formatting import p_value, percent, percent_with_interval
from surerag.evaluation.lazy_rag.results import (
    Agreement,
    Claim,
    KindRow,
    LatencyModel,
    LatencyRow,
    LazyRagStudy,
    ModeRow,
    Pass,
    Record,
    SweepPoint,
    Threshold,
)
from surerag.evaluation.statistics import (
    Comparison,
    PairedDifference,
    Proportion,
    compare,
    is_monotone,
    paired_difference,
    share,
)
from surerag.measures import break_even_latency, latency_saving

PAPER_TAUS = (0.5, 1.0, 1.5)
PAPER_RATES = (0.92, 0.74, 0.54)
GATE_LATENCY = 50.0
RETRIEVAL_LATENCIES = (200.0, 500.0, 1000.0)
MARGIN = 0.02
LEAST_SAVING = 0.15
CONFIDENCE = 0.95
LARGEST_P = 0.001


@dataclass(frozen=True, slots=True)
class Setting:
    """What was run: the part of a study that is not found but chosen. See :class:`LazyRagStudy`."""

    seed: int
    model: str
    encoder: str
    k: int
    m: int
    gate_tokens: int
    aggregate: str


def opens(record: Record, tau: float) -> bool:
    """Whether the gate opens (L-RAG, Eq. 4: strictly above)."""
    return record.entropy > tau


def lazy_pass(record: Record, tau: float, gate_tokens: int) -> Pass:
    """Return what lazy answering at a threshold gives and costs, from both completed passes.

    An opened gate has read both prompts and generated at most ``gate_tokens`` tokens in vain.
    """
    if not opens(record, tau):
        return record.first
    wasted = min(record.first.completion_tokens, gate_tokens)
    return Pass(
        record.strong.correct,
        record.strong.answer_tokens,
        record.first.prompt_tokens + record.strong.prompt_tokens,
        wasted + record.strong.completion_tokens,
    )


def analyse(
    records: Sequence[Record], threshold: Threshold, agreement: Agreement, setting: Setting
) -> LazyRagStudy:
    """Compute every finding of the study.

    Args:
        records: Each question in every mode.
        threshold: The threshold, calibrated on questions of another world.
        agreement: How the component's own run at that threshold compares.
        setting: What was run.
    """
    tau = threshold.tau.value
    gate = setting.gate_tokens
    separation = _separation(records)
    sweep = tuple(_sweep_point(records, value) for value in thresholds(records))
    monotone = is_monotone([point.retrieval.value for point in sweep], "decreasing")
    lazy = [lazy_pass(record, tau, gate) for record in records]
    difference = _against_standard(lazy, records)
    saving = share([not opens(record, tau) for record in records])
    modes = _mode_rows(records, tau, gate)
    return LazyRagStudy(
        seed=setting.seed,
        n=len(records),
        model=setting.model,
        encoder=setting.encoder,
        confidence=CONFIDENCE,
        k=setting.k,
        m=setting.m,
        gate_tokens=gate,
        aggregate=setting.aggregate,
        modes=modes,
        kinds=_kind_rows(records, tau),
        separation=separation,
        sweep=sweep,
        monotone=monotone,
        threshold=threshold,
        noninferiority=difference,
        margin=MARGIN,
        saving=saving,
        least_saving=LEAST_SAVING,
        agreement=agreement,
        latency=_latency_model(modes),
        claims=_claims(separation, sweep, monotone, difference, saving, agreement),
        records=tuple(records),
    )


def thresholds(records: Sequence[Record], steps: int = 10) -> tuple[float, ...]:
    """Return the paper's thresholds and the quantiles of the entropies seen, ascending.

    Quantiles show the whole way from retrieving for everyone to retrieving for no one, whatever the
    scale of this reader's entropies.
    """
    entropies = [record.entropy for record in records if math.isfinite(record.entropy)]
    quantiles = np.quantile(entropies, np.linspace(0, 1, steps + 1))
    return tuple(sorted({0.0, *PAPER_TAUS, *(math.ceil(1e4 * value) / 1e4 for value in quantiles)}))


def _separation(records: Sequence[Record]) -> Comparison | None:
    told = [record for record in records if math.isfinite(record.entropy)]
    wrong = [record.entropy for record in told if not record.first.correct]
    right = [record.entropy for record in told if record.first.correct]
    return compare(wrong, right, CONFIDENCE) if min(len(wrong), len(right)) > 1 else None


def _mode_rows(records: Sequence[Record], tau: float, gate: int) -> tuple[ModeRow, ...]:
    always, never = share([True] * len(records)), share([False] * len(records))
    lazy = [
        _mode_row(
            label,
            [lazy_pass(record, value, gate) for record in records],
            share([opens(record, value) for record in records]),
            records,
            value,
        )
        for label, value in [*((f"L-RAG (τ = {t:g})", t) for t in PAPER_TAUS), ("L-RAG (calibrated)", tau)]
    ]
    return (
        _mode_row("No retrieval", [record.none for record in records], never, records),
        _mode_row("Summaries only", [record.first for record in records], never, records),
        _mode_row("Standard RAG", [record.standard for record in records], always, records),
        _mode_row("Strong RAG", [record.strong for record in records], always, records),
        *lazy,
        _mode_row("Oracle", [record.oracle for record in records], None, records),
    )


def _mode_row(
    label: str,
    passes: Sequence[Pass],
    retrieval: Proportion | None,
    records: Sequence[Record],
    tau: float | None = None,
) -> ModeRow:
    return ModeRow(
        label=label,
        tau=tau,
        accuracy=_accuracy(passes),
        retrieval=retrieval,
        answer_tokens=_mean(passes, lambda one: one.answer_tokens),
        prompt_tokens=_mean(passes, lambda one: one.prompt_tokens),
        completion_tokens=_mean(passes, lambda one: one.completion_tokens),
        against_standard=_against_standard(passes, records),
    )


def _kind_rows(records: Sequence[Record], tau: float) -> tuple[KindRow, ...]:
    def row(kind: str) -> KindRow:
        members = [record for record in records if record.kind == kind]
        return KindRow(
            kind=kind,
            first=_accuracy([record.first for record in members]),
            standard=_accuracy([record.standard for record in members]),
            lazy=share([(r.strong if opens(r, tau) else r.first).correct for r in members]),
            retrieval=share([opens(record, tau) for record in members]),
            entropy=_mean_entropy(members),
        )

    return tuple(row(kind) for kind in sorted({record.kind for record in records}))


def _mean_entropy(records: Sequence[Record]) -> float | None:
    told = [record.entropy for record in records if math.isfinite(record.entropy)]
    return statistics.fmean(told) if told else None


def _sweep_point(records: Sequence[Record], tau: float) -> SweepPoint:
    return SweepPoint(
        tau,
        share([(record.strong if opens(record, tau) else record.first).correct for record in records]),
        share([opens(record, tau) for record in records]),
    )


def _latency_model(modes: Sequence[ModeRow]) -> LatencyModel:
    return LatencyModel(
        gate=GATE_LATENCY,
        retrieval=RETRIEVAL_LATENCIES,
        published=tuple(
            _latency_row(f"τ = {tau:g}", rate) for tau, rate in zip(PAPER_TAUS, PAPER_RATES, strict=True)
        ),
        measured=tuple(
            _latency_row(row.label, row.retrieval.value)
            for row in modes
            if row.tau is not None and row.retrieval is not None
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


def _accuracy(passes: Sequence[Pass]) -> Proportion:
    return share([one.correct for one in passes])


def _against_standard(passes: Sequence[Pass], records: Sequence[Record]) -> PairedDifference:
    return paired_difference(
        [one.correct for one in passes],
        [record.standard.correct for record in records],
        confidence=CONFIDENCE,
    )


def _mean(passes: Sequence[Pass], value: Callable[[Pass], int]) -> float:
    return statistics.fmean(value(one) for one in passes)
