"""A trade-off as a picture: what fewer actions cost, and from which latency on they pay."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from surerag.evaluation.figures import canvas, write_figures
from surerag.records.tradeoff.curve import Point, TradeOff

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVE, PLAIN, RANDOM = "#1b6ca8", "#c8553d", "#7a7a7a"


def write_plots(found: TradeOff, folder: Path) -> list[Path]:
    """Write the pictures as SVG and PNG, named after the method; return the SVGs.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    drawings: dict[str, Callable[[TradeOff], Figure]] = {found.method: _scores}
    if found.chosen.milliseconds is not None and found.break_even is not None:
        drawings[f"{found.method}-latency"] = _times
    return list(write_figures(found, drawings, folder))


def _scores(found: TradeOff) -> Figure:
    figure, axes = canvas("What fewer actions cost", width=5.2, height=4.0)
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
    axes.legend(loc="best")
    return figure


def _times(found: TradeOff) -> Figure:
    figure, axes = canvas("When it pays", width=5.2, height=4.0)
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
    axes.legend(loc="best")
    return figure
