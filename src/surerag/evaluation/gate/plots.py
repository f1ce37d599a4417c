"""A gate in figures, one function a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from surerag.evaluation.figures import canvas, write_figures
from surerag.evaluation.gate.results import GateReport, ModeRow, SweepPoint
from surerag.evaluation.gate.timing import GATE_LATENCY
from surerag.measures import latency_saving

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LAZY, STANDARD, STRONG, MUTED = "#1b6ca8", "#c8553d", "#5b8c5a", "#7a7a7a"
RIGHT, WRONG = "#1b6ca8", "#e08e45"
_LEAST_LATENCY, _LARGEST_LATENCY = 0.0, 1000.0


def write_plots(report: GateReport, directory: Path) -> tuple[Path, ...]:
    """Write every figure as SVG and PNG.

    Returns:
        The SVG files, in the order in which a page shows them.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    drawings = {
        "trade_off": trade_off,
        "entropy": entropy_distribution,
        "sensitivity": sensitivity,
        "latency": latency,
    }
    return write_figures(report, drawings, directory)


def trade_off(report: GateReport) -> Figure:
    """Accuracy against retrieval rate: the thresholds' curve between the fixed modes (L-RAG, Figure 1)."""
    figure, axes = canvas("What fewer retrievals cost")
    rates = 100 * np.array([point.retrieval.value for point in report.sweep])
    _band(axes, rates, report.sweep, LAZY)
    axes.plot(rates, _accuracies(report.sweep), "o-", color=LAZY, markersize=4, label="L-RAG, over τ")
    for label, marker, colour in (("Standard RAG", "s", STANDARD), ("Strong RAG", "D", STRONG)):
        _point(axes, _row(report, label), 100.0, marker, colour)
    _point(axes, _row(report, "No retrieval"), 0.0, "v", MUTED)
    oracle = _row(report, "Oracle")
    axes.axhline(
        100 * oracle.accuracy.value, color=MUTED, linestyle=":", linewidth=1, label="Oracle passages"
    )
    chosen = report.calibrated
    if chosen.retrieval is not None:
        axes.plot(
            100 * chosen.retrieval.value,
            100 * chosen.accuracy.value,
            "*",
            color="black",
            markersize=15,
            label=f"L-RAG, calibrated τ = {report.calibration.threshold.value:.2f}",
        )
    axes.set(xlabel="Questions that retrieve, %", ylabel="Accuracy, %", xlim=(-4, 104))
    axes.set_ylim(*_percent_limits(axes.get_ylim()))
    _legend(figure)
    return figure


def entropy_distribution(report: GateReport) -> Figure:
    """Entropy of right and of wrong first-pass answers (L-RAG, Figure 6)."""
    figure, axes = canvas("Entropy of right and of wrong answers")
    right = _entropies(report, correct=True)
    wrong = _entropies(report, correct=False)
    edges = np.linspace(0, max(*right, *wrong, 0.1), 41)
    for values, colour, name in ((right, RIGHT, "Right"), (wrong, WRONG, "Wrong")):
        if not values.size:
            continue
        axes.hist(
            values,
            list(edges),
            weights=np.full(values.size, 100 / values.size),
            color=colour,
            alpha=0.65,
            label=f"{name} (n = {values.size:,}, mean {values.mean():.2f} nats)",
        )
    threshold = report.calibration.threshold.value
    axes.axvline(
        threshold, color="black", linestyle="--", linewidth=1.2, label=f"Calibrated τ = {threshold:.2f}"
    )
    found = report.separation
    axes.set(
        xlabel=f"Mean entropy of the first {report.gate_tokens} tokens of the first pass, nats",
        ylabel="Share of the group's answers, %",
    )
    _legend(figure, f"AUROC {found.auroc.value:.3f}, Cohen's d {found.cohens_d:.2f}" if found else None)
    return figure


def sensitivity(report: GateReport) -> Figure:
    """Accuracy and retrieval rate over the threshold (L-RAG, Figure 4)."""
    figure, axes = canvas("What the threshold sets")
    thresholds = np.array([point.threshold for point in report.sweep])
    _band(axes, thresholds, report.sweep, LAZY)
    axes.plot(thresholds, _accuracies(report.sweep), "o-", color=LAZY, markersize=4, label="Accuracy")
    rates = [100 * point.retrieval.value for point in report.sweep]
    axes.plot(thresholds, rates, "s-", color=STANDARD, markersize=4, label="Questions that retrieve")
    standard = 100 * _row(report, "Standard RAG").accuracy.value
    axes.axhline(standard, color=MUTED, linestyle=":", linewidth=1, label="Accuracy of standard RAG")
    threshold = report.calibration.threshold.value
    axes.axvline(
        threshold, color="black", linestyle="--", linewidth=1.2, label=f"Calibrated τ = {threshold:.2f}"
    )
    axes.set(xlabel="Threshold τ, nats", ylabel="%", ylim=(-3, 103))
    _legend(figure)
    return figure


def latency(report: GateReport) -> Figure:
    """Time saved over the latency of one retrieval (L-RAG, Figure 5)."""
    figure, axes = canvas("What the gate saves, by how slow retrieval is")
    reach = np.linspace(_LEAST_LATENCY, _LARGEST_LATENCY, 2)
    lines = ["-", "--", "-.", ":"]
    lazy = [(row, row.retrieval.value) for row in report.modes if row.threshold is not None and row.retrieval]
    for (row, rate), line in zip(lazy, lines, strict=False):
        chosen = row.label == report.calibrated.label
        savings = [latency_saving(rate, each, GATE_LATENCY) for each in reach]
        axes.plot(
            reach,
            savings,
            "-" if chosen else line,
            color="black" if chosen else LAZY,
            linewidth=2 if chosen else 1.4,
            label=f"{row.label}, retrieves {100 * rate:.0f} %",
        )
    axes.axhline(0, color=STANDARD, linewidth=1, label="Standard RAG")
    axes.set(
        xlabel="Latency of one retrieval, ms",
        ylabel=f"Time saved a question, ms (gate: {GATE_LATENCY:.0f} ms)",
        xlim=(_LEAST_LATENCY, _LARGEST_LATENCY),
    )
    _legend(figure)
    return figure


def _legend(figure: Figure, title: str | None = None) -> None:
    # Below the axes, where it hides no data whatever the data are.
    figure.legend(loc="outside lower center", ncols=2, title=title)


def _band(axes: Axes, places: NDArray[np.float64], sweep: Sequence[SweepPoint], colour: str) -> None:
    low = [100 * point.accuracy.low for point in sweep]
    high = [100 * point.accuracy.high for point in sweep]
    axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)


def _point(axes: Axes, row: ModeRow, place: float, marker: str, colour: str) -> None:
    value = 100 * row.accuracy.value
    spread = [[value - 100 * row.accuracy.low], [100 * row.accuracy.high - value]]
    axes.errorbar(
        place, value, yerr=spread, fmt=marker, color=colour, markersize=7, capsize=3, label=row.label
    )


def _entropies(report: GateReport, *, correct: bool) -> NDArray[np.float64]:
    chosen = [record for record in report.records if record.first.correct == correct]
    return np.array([record.entropy for record in chosen if math.isfinite(record.entropy)])


def _accuracies(sweep: Sequence[SweepPoint]) -> list[float]:
    return [100 * point.accuracy.value for point in sweep]


def _row(report: GateReport, label: str) -> ModeRow:
    return next(row for row in report.modes if row.label == label)


def _percent_limits(limits: tuple[float, float]) -> tuple[float, float]:
    return max(limits[0], -2.0), min(limits[1], 102.0)
