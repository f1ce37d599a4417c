"""The study in figures, one function a figure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from surerag.evaluation.figures import canvases, write_figures
from surerag.evaluation.statistics import Estimate
from surerag_studies.seper.results import SePerStudy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, OTHER, KNOWN, MUTED = "#1b6ca8", "#9a9a9a", "#c8553d", "#7a7a7a"


def write_plots(study: SePerStudy, directory: Path) -> tuple[Path, ...]:
    """Write every figure as SVG and PNG; missing folders are made.

    Returns:
        The SVG files, in the order in which a report shows them.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    drawings = {
        "correlation": correlation,
        "samples": samples,
        "utility": utility,
        "retrievers": retrievers,
    }
    return write_figures(study, drawings, directory)


def correlation(study: SePerStudy) -> Figure:
    """Correlation of every measure with known utility (SePer, Table 2)."""
    figure, (left, right) = _canvas("Which measure follows known utility?", columns=2)
    rows = study.methods[::-1]
    for axes, title, found in (
        (left, "Single-hop", [row.single for row in rows]),
        (right, "Two-hop", [row.two_hop for row in rows]),
    ):
        for place, (row, estimate) in enumerate(zip(rows, found, strict=True)):
            _bar(axes, place, estimate, OURS if row.ours else OTHER)
        axes.set(title=title, xlabel="Pearson correlation", xlim=(min(0.0, axes.get_xlim()[0]), 1.0))
        axes.set_yticks(range(len(rows)), [row.label for row in rows])
        axes.grid(visible=False, axis="y")
    right.tick_params(labelleft=False)
    return figure


def samples(study: SePerStudy) -> Figure:
    """Correlation over the number of samples (SePer, Figure 3)."""
    figure, (axes,) = _canvas("How many samples are enough?")
    for kernel, line in (("soft", "-"), ("hard", "--")):
        rows = [row for row in study.sampling if row.kernel == kernel]
        sizes = [row.n for row in rows]
        for name, colour, spreads in (
            ("single-hop", OURS, [row.single for row in rows]),
            ("two-hop", KNOWN, [row.two_hop for row in rows]),
        ):
            means = np.array([spread.mean for spread in spreads])
            reach = np.array([spread.deviation for spread in spreads])
            axes.plot(sizes, means, line, marker="o", markersize=4, color=colour, label=f"{name}, {kernel}")
            if kernel == "soft":
                axes.fill_between(sizes, means - reach, means + reach, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="Samples in each context", ylabel="Correlation with known utility")
    axes.set_xticks(sorted({row.n for row in study.sampling}))
    figure.legend(loc="outside lower center", ncols=2, title="Bands: ± one standard deviation, soft kernel")
    return figure


def utility(study: SePerStudy) -> Figure:
    """Mean ΔSePer of each kind of context beside what it is known to be worth (Properties 2 and 3)."""
    figure, (axes,) = _canvas("What a context is worth to the reader")
    rows = study.roles[::-1]
    for place, row in enumerate(rows):
        _bar(axes, place, row.delta, OURS)
    axes.plot(
        [row.utility for row in rows], range(len(rows)), "D", color=KNOWN, markersize=5, label="Known utility"
    )
    axes.axvline(0, color=MUTED, linewidth=1)
    axes.set(xlabel="Mean ΔSePer (soft)")
    axes.set_yticks(range(len(rows)), [f"{row.questions}: {row.role}" for row in rows])
    axes.grid(visible=False, axis="y")
    figure.legend(loc="outside lower center")
    return figure


def retrievers(study: SePerStudy) -> Figure:
    """Mean ΔSePer of retrievers over their known quality (SePer, Table 11)."""
    figure, (axes,) = _canvas("Better retrievers are worth more to the reader")
    for row in study.retrievers.rows:
        spread = [[row.delta.value - row.delta.low], [row.delta.high - row.delta.value]]
        axes.errorbar(100 * row.recall, row.delta.value, yerr=spread, fmt="o", color=OURS, capsize=3)
        axes.annotate(
            row.name,
            (100 * row.recall, row.delta.value),
            xytext=(6, -10),
            textcoords="offset points",
            fontsize=8,
        )
    axes.margins(y=0.15)
    axes.set_xlim(-5, 125)
    axes.set_xticks(range(0, 101, 20))
    axes.set(xlabel=f"Gold passages among the first {study.retrievers.k}, %", ylabel="Mean ΔSePer (soft)")
    return figure


def _bar(axes: Axes, place: int, found: Estimate, colour: str) -> None:
    if not math.isfinite(found.value):
        return
    axes.barh(place, found.value, color=colour, height=0.7)
    if math.isfinite(found.low):
        axes.plot([found.low, found.high], [place, place], color="black", linewidth=1.2)


def _canvas(title: str, columns: int = 1) -> tuple[Figure, list[Axes]]:
    figure, axes = canvases(7.2, 4.8, columns)
    figure.suptitle(title, x=0.02, ha="left", fontweight="bold")
    return figure, axes
