"""Charts of an evaluation run as SVG."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from typing import Any

from surerag.errors import MissingExtraError, extra
from surerag.evaluation.certainty import SurestAnswers
from surerag.evaluation.findings import search_share
from surerag.evaluation.run import Run
from surerag.evaluation.statistics import summarize
from surerag.measures.statistics import Estimate, Interval
from surerag.text import printable

_INK, _MARK = "#010203", "#040506"
"""Placeholder colours that :func:`_figure` replaces by colours of the page's style sheet, for dark mode."""
_WIDTH = 4.8
"""Width of a chart in inches, narrow enough for the screen of a telephone."""


def bar_charts(run: Run, baseline: str = "") -> str:
    """Return bar charts as HTML: the first metric and its intervals, the share of searches, and the costs."""
    systems = run.comparable
    shares = {system: _in_percent(share) for system in systems if (share := search_share(run, system))}
    panels = {f"{name}, with 95 % intervals": summarize(run, name) for name in run.measures[:1]}
    panels["questions with a search, %"] = {**shares}
    panels |= {f"{cost} per question": summarize(run, cost) for cost in ("tokens", "seconds")}
    filled = {title: {s: one for s in systems if (one := of.get(s))} for title, of in panels.items()}
    baseline = baseline or next(iter(systems), "")
    try:
        return "".join(
            _figure(title, 1.0 + 0.34 * len(values), partial(_draw_lines, values=values, baseline=baseline))
            for title, values in filled.items()
            if len(values) > 1
        )
    except MissingExtraError as error:
        return f"<p><small>No charts: {escape(printable(str(error)))}</small></p>"


def _in_percent(share: Estimate) -> Estimate:
    value, *ends = (100 * number for number in (share.value, *(share.interval or ())))
    return Estimate(value, Interval(*ends) if ends else None, share.n)


def certainty_charts(surest_of: Mapping[str, SurestAnswers]) -> str:
    """Return an HTML chart for each system: the share of right answers among the most certain answers."""
    ends = [estimate.interval or (0, 1) for one in surest_of.values() for estimate in one.curve.values()]
    lowest = min((lower for lower, _ in ends), default=0.0)
    try:
        return "".join(
            _figure(
                f"{printable(system)}: right answers among the surest, %",
                2.6,
                partial(_draw_curve, surest=surest, lowest=lowest),
            )
            for system, surest in surest_of.items()
        )
    except MissingExtraError:
        return ""  # bar_charts() already returns the error message


def _figure(title: str, height: float, draw: Callable[[Any], None]) -> str:
    with extra("evaluation"):
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    colours = dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK
    )
    settings: Any = {**colours, "svg.fonttype": "none", "svg.hashsalt": title, "text.parse_math": False}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        FigureCanvasSVG(figure)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        axes = figure.add_subplot()
        draw(axes)
        axes.spines[["top", "right", "left"]].set_visible(False)
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    return f"<figure>{svg.replace(_INK, 'currentColor').replace(_MARK, 'var(--blue)')}</figure>"


def _draw_lines(axes: Any, values: Mapping[str, Estimate], baseline: str) -> None:
    for place, one in enumerate(values.values()):
        axes.plot(one.interval or [one.value] * 2, [place] * 2, color=_MARK, alpha=0.5)
        axes.plot(one.value, place, "o", color=_MARK, clip_on=False)
    names = [name if len(name) < 25 else f"{name[:22]} …" for name in map(printable, values)]
    axes.set_yticks(range(len(names)), names)
    if baseline in values:
        axes.axvline(values[baseline].value, color=_INK, linewidth=0.8, linestyle=":")
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.locator_params(axis="x", nbins=5)
    if min(one.value for one in values.values()) >= 0:
        axes.set_xlim(left=0)


def _draw_curve(axes: Any, surest: SurestAnswers, lowest: float) -> None:
    shares = [100 * share for share in surest.curve]
    ends = [one.interval or (one.value, one.value) for one in surest.curve.values()]
    lower, upper = ([100 * end for end in of] for of in zip(*ends, strict=True))
    axes.fill_between(shares, lower, upper, color=_MARK, alpha=0.15, linewidth=0)
    axes.plot(shares, [100 * one.value for one in surest.curve.values()], color=_MARK)
    axes.axhline(100 * surest.right[1].value, color=_INK, linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 100)
    axes.set_ylim(10 * int(10 * lowest), 100.5)
    axes.set_xlabel("share of the answers, the surest first, %")
    axes.locator_params(nbins=5)
    axes.grid(axis="y", color=_INK, alpha=0.12)
