"""A trade-off as a picture: what fewer actions cost, and from which latency on they pay."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from surerag.evaluation.figures import canvases, write_figures
from surerag.records.tradeoff.curve import Point, TradeOff

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE, PLAIN, RANDOM = "#1b6ca8", "#c8553d", "#7a7a7a"


def write_plot(found: TradeOff, folder: Path, name: str) -> Path:
    """Write the picture as SVG and PNG; return the SVG.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    return write_figures(found, {name: _draw}, folder)[0]


def _draw(found: TradeOff) -> Figure:
    timed = found.chosen.milliseconds is not None and found.method == "l-rag"
    figure, axes = canvases(9.2 if timed else 5.2, 4.2, 2 if timed else 1)
    _scores(axes[0], found)
    if timed:
        _times(axes[1], found)
    return figure


def _scores(axes: Axes, found: TradeOff) -> None:
    rates, scores = (100 * np.array(side) for side in zip(*found.curve, strict=True))
    axes.plot(rates, scores, color=CURVE, linewidth=1.8, label="by the signal")
    ends = [0.0, 100.0], [scores[0], scores[-1]]
    axes.plot(*ends, color=RANDOM, linestyle="--", linewidth=1.2, label="at random as often")
    chosen, plain = found.chosen, found.points[0]
    axes.plot(100 * chosen.rate, 100 * chosen.score, "o", color="black", markersize=8, label=chosen.label)
    at = 100.0 if found.method == "l-rag" else 0.0
    axes.plot(at, 100 * plain.score, "s", color=PLAIN, markersize=7, label=plain.label)
    what = "Score" if found.scored == "gold answers" else "Agreement with always acting"
    axes.set(xlabel=f"Questions that {found.verb}, %", ylabel=f"{what}, %", xlim=(-3, 103))
    axes.set_title("What fewer actions cost")
    axes.legend(loc="best")


def _times(axes: Axes, found: TradeOff) -> None:
    even = found.break_even or 0.0
    largest = max(*found.latencies, 0.0, 1.5 * even if math.isfinite(even) else 0.0)
    reach = np.linspace(0, largest, 2)
    lines: tuple[tuple[Point, str, str], ...] = (
        (found.points[0], PLAIN, "--"),
        (found.chosen, "black", "-"),
    )
    for point, colour, line in lines:
        spent = (point.milliseconds or 0.0) + point.retrievals * reach
        axes.plot(reach, spent, line, color=colour, linewidth=1.8, label=point.label)
    if 0 < even <= largest:
        axes.axvline(even, color=RANDOM, linestyle=":", linewidth=1.2, label=f"break-even, {even:,.0f} ms")
    axes.set(xlabel="One retrieval, ms", ylabel="A question, ms", xlim=(0, largest))
    axes.set_ylim(bottom=0)
    axes.set_title("When it pays")
    axes.legend(loc="best")
