"""From records to what a gate does: pure functions, no model in sight."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from surerag import LazyRAG
from surerag.decisions.bootstrap import BootstrapThreshold
from surerag.evaluation.differences import PairedDifference, paired_difference
from surerag.evaluation.gate.results import (
    GateReport,
    GateThreshold,
    KindRow,
    ModeRow,
    Pass,
    Record,
    SweepPoint,
)
from surerag.evaluation.statistics import Comparison, Estimate, Proportion, compare, share
from surerag.prices import Costs, Price, load_prices

PAPER_THRESHOLDS = (0.5, 1.0, 1.5)
CONFIDENCE = 0.95


def opens(record: Record, threshold: float) -> bool:
    """Whether the gate opens (L-RAG, Eq. 4: strictly above)."""
    return record.entropy > threshold


def lazy_pass(record: Record, threshold: float, gate_tokens: int) -> Pass:
    """Return what lazy answering at a threshold gives and costs, from both completed passes.

    An opened gate has read both prompts and generated at most ``gate_tokens`` tokens in vain.
    """
    if not opens(record, threshold):
        return record.first
    wasted = min(record.first.completion_tokens, gate_tokens)
    return Pass(
        record.strong.correct,
        record.strong.answer_tokens,
        record.first.prompt_tokens + record.strong.prompt_tokens,
        wasted + record.strong.completion_tokens,
        record.first.cached_tokens + record.strong.cached_tokens,
        record.first.calls + record.strong.calls,
    )


def threshold_of(found: BootstrapThreshold, max_loss: float, *, seed: int | None = None) -> GateThreshold:
    """Return what a report says of a calibration for a bound on the loss of accuracy."""
    return GateThreshold(
        threshold=Estimate(found.threshold, found.lower, found.upper),
        rule=f"the largest τ that loses at most {100 * max_loss:g} point against always retrieving",
        seed=seed,
        n=found.n,
        accuracy=found.accuracy,
        retrieval_rate=found.rate,
    )


def report_of(records: Sequence[Record], calibration: GateThreshold, rag: LazyRAG) -> GateReport:
    """Compute every figure.

    Args:
        records: Each question in every mode.
        calibration: Calibrated on other questions.
        rag: Whose settings the questions were asked with; its mode and threshold are set aside.
    """
    threshold, gate = calibration.threshold.value, rag.gate_tokens
    price = load_prices().of(rag.reader.name)
    return GateReport(
        n=len(records),
        model=rag.reader.name,
        confidence=CONFIDENCE,
        top_n=rag.rules.top_n,
        n_summaries=rag.rules.n_summaries,
        gate_tokens=gate,
        aggregate=rag.aggregate,
        calibration=calibration,
        modes=tuple(_priced(row, price) for row in _mode_rows(records, threshold, gate)),
        kinds=_kind_rows(records, threshold),
        separation=_separation(records),
        sweep=tuple(_sweep_point(records, value) for value in thresholds(records)),
        records=tuple(records),
    )


def thresholds(records: Sequence[Record], steps: int = 10) -> tuple[float, ...]:
    """Return the paper's thresholds and the quantiles of the entropies seen, ascending.

    Quantiles show the whole way from retrieving for everyone to retrieving for no one, whatever the
    scale of this reader's entropies.
    """
    entropies = [record.entropy for record in records if math.isfinite(record.entropy)]
    quantiles = np.quantile(entropies, np.linspace(0, 1, steps + 1))
    return tuple(sorted({0.0, *PAPER_THRESHOLDS, *(math.ceil(1e4 * value) / 1e4 for value in quantiles)}))


def _separation(records: Sequence[Record]) -> Comparison | None:
    told = [record for record in records if math.isfinite(record.entropy)]
    wrong = [record.entropy for record in told if not record.first.correct]
    right = [record.entropy for record in told if record.first.correct]
    return compare(wrong, right, CONFIDENCE) if min(len(wrong), len(right)) > 1 else None


def _mode_rows(records: Sequence[Record], threshold: float, gate: int) -> tuple[ModeRow, ...]:
    always, never = share([True] * len(records)), share([False] * len(records))
    lazy = [
        _mode_row(
            label,
            [lazy_pass(record, value, gate) for record in records],
            share([opens(record, value) for record in records]),
            records,
            value,
        )
        for label, value in [
            *((f"L-RAG (τ = {t:g})", t) for t in PAPER_THRESHOLDS),
            ("L-RAG (calibrated)", threshold),
        ]
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
    threshold: float | None = None,
) -> ModeRow:
    return ModeRow(
        label=label,
        threshold=threshold,
        accuracy=_accuracy(passes),
        retrieval=retrieval,
        answer_tokens=_mean(passes, lambda one: one.answer_tokens),
        prompt_tokens=_mean(passes, lambda one: one.prompt_tokens),
        completion_tokens=_mean(passes, lambda one: one.completion_tokens),
        against_standard=_against_standard(passes, records),
        cached_tokens=_mean(passes, lambda one: one.cached_tokens),
        calls=_mean(passes, lambda one: one.calls),
    )


def _priced(row: ModeRow, price: Price | None) -> ModeRow:
    """Add what a thousand questions cost; an hour of a machine is shared by whatever runs on it."""
    if price is None or price.gpu_hour is not None:
        return row
    read, wrote, cached = (
        round(1000 * value) for value in (row.prompt_tokens, row.completion_tokens, row.cached_tokens)
    )
    return replace(row, money=price.money(Costs(read, wrote, cached)), currency=price.currency)


def _kind_rows(records: Sequence[Record], threshold: float) -> tuple[KindRow, ...]:
    def row(kind: str) -> KindRow:
        members = [record for record in records if record.kind == kind]
        return KindRow(
            kind=kind,
            first=_accuracy([record.first for record in members]),
            standard=_accuracy([record.standard for record in members]),
            lazy=share([(r.strong if opens(r, threshold) else r.first).correct for r in members]),
            retrieval=share([opens(record, threshold) for record in members]),
            entropy=_mean_entropy(members),
        )

    return tuple(row(kind) for kind in sorted({record.kind for record in records}))


def _mean_entropy(records: Sequence[Record]) -> float | None:
    told = [record.entropy for record in records if math.isfinite(record.entropy)]
    return statistics.fmean(told) if told else None


def _sweep_point(records: Sequence[Record], threshold: float) -> SweepPoint:
    return SweepPoint(
        threshold,
        share([(record.strong if opens(record, threshold) else record.first).correct for record in records]),
        share([opens(record, threshold) for record in records]),
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
