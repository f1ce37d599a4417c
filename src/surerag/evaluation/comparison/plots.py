"""A comparison in figures, one function a figure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from surerag.evaluation.comparison.results import EDGES, SystemComparison
from surerag.evaluation.figures import canvas, write_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#1b6ca8", "#c8553d", "#5b8c5a", "#8a5fa0", "#b08a2e", "#3d8f8f", "#7a7a7a")
_LONGEST_NAME = 32


def write_plots(comparison: SystemComparison, directory: Path) -> tuple[Path, ...]:
    """Write every figure as SVG and PNG: ``distribution``, and ``systems`` where there are several.

    Returns:
        The SVG files.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    drawings = {"distribution": distribution}
    if len(comparison.systems) > 1:
        drawings["systems"] = systems
    return write_figures(comparison, drawings, directory)


def distribution(comparison: SystemComparison) -> Figure:
    """ΔSePer of single questions, as a histogram for each system."""
    figure, axes = canvas(
        "What retrieval was worth, question by question", height=3.8 + 0.22 * len(comparison.systems)
    )
    alone = len(comparison.systems) == 1
    for at, row in enumerate(comparison.systems):
        counts = np.array(row.histogram)
        axes.hist(
            np.array(EDGES[:-1]) + 0.025,
            list(EDGES),
            weights=100 * counts / counts.sum(),
            histtype="bar" if alone else "step",
            linewidth=1.6,
            color=_COLOURS[at % len(_COLOURS)],
            label=f"{_short(row.system)} (n = {row.n:,}, mean {row.delta.value:+.3f})",
        )
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(xlabel="ΔSePer", ylabel="Share of the questions, %", xlim=(-1.02, 1.02))
    # Below the axes, where it hides no data whatever the data are.
    figure.legend(loc="outside lower center", ncols=1)
    return figure


def systems(comparison: SystemComparison) -> Figure:
    """Mean ΔSePer of each system with its interval, the best on top."""
    count = len(comparison.systems)
    figure, axes = canvas("Mean ΔSePer by system", height=1.4 + 0.42 * count)
    for at, row in enumerate(comparison.systems):
        place, mean = count - 1 - at, row.delta
        # Quantiles of resamples can miss the mean by rounding where nothing varies.
        spread = [[max(0.0, mean.value - mean.low)], [max(0.0, mean.high - mean.value)]]
        axes.errorbar(mean.value, place, xerr=spread, fmt="o", color=_COLOURS[0], markersize=6, capsize=4)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(count), [_short(row.system) for row in reversed(comparison.systems)])
    axes.set(
        xlabel=f"Mean ΔSePer, with its {math.floor(100 * comparison.confidence)} % interval over questions",
        ylim=(-0.6, count - 0.4),
    )
    return figure


def _short(name: str) -> str:
    shown = " ".join(name.split())
    return shown if len(shown) <= _LONGEST_NAME else f"{shown[: _LONGEST_NAME - 1]}…"
