"""A comparison as figures: matplotlib without a display, one function a figure."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from surerag.evaluation.comparison.results import SystemComparison
from surerag.extras import extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#1b6ca8", "#c8553d", "#5b8c5a", "#8a5fa0", "#b08a2e", "#3d8f8f", "#7a7a7a")
_STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 12,
    "legend.frameon": False,
    "svg.fonttype": "path",
    # Without a fixed salt and date, two runs of one comparison give different files.
    "svg.hashsalt": "surerag",
    # A system may be called "$5 reranker": names are not mathematics.
    "text.parse_math": False,
}
_LONGEST_NAME = 32


def write_plots(comparison: SystemComparison, directory: Path) -> tuple[Path, ...]:
    """Write every figure as SVG and PNG: ``distribution``, and ``systems`` where there are several.

    Returns:
        The SVG files.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    with extra("report"):
        import matplotlib as mpl

    directory.mkdir(parents=True, exist_ok=True)
    drawings = {"distribution": distribution}
    if len(comparison.systems) > 1:
        drawings["systems"] = systems
    written = []
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]  # the stubs want literal keys
        for name, draw in drawings.items():
            figure = draw(comparison)
            figure.savefig(directory / f"{name}.png", dpi=160)
            figure.savefig(directory / f"{name}.svg", metadata={"Date": None})
            written.append(directory / f"{name}.svg")
    return tuple(written)


def distribution(comparison: SystemComparison) -> Figure:
    """ΔSePer of single questions, as a histogram for each system."""
    figure, axes = _canvas(
        "What retrieval was worth, question by question", 3.8 + 0.22 * len(comparison.systems)
    )
    edges = np.linspace(-1, 1, 41)
    alone = len(comparison.systems) == 1
    for at, row in enumerate(comparison.systems):
        values = np.array([item.delta for item in comparison.items if item.system == row.system])
        axes.hist(
            values,
            list(edges),
            weights=np.full(values.size, 100 / values.size),
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
    figure, axes = _canvas("Mean ΔSePer by system", 1.4 + 0.42 * count)
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


def _canvas(title: str, height: float) -> tuple[Figure, Axes]:
    # A Figure of its own canvas touches no global state and needs no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(6.4, height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_title(title)
    return figure, axes


def _short(name: str) -> str:
    shown = " ".join(name.split())
    return shown if len(shown) <= _LONGEST_NAME else f"{shown[: _LONGEST_NAME - 1]}…"
