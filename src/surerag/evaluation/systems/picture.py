"""The Pareto picture: what systems are worth against what they cost, as SVG in the page's own colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from surerag.evaluation.ci.condition import SHARES
from surerag.evaluation.systems.results import SystemFigures, SystemsReport
from surerag.visible import visible

WIDTH, HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 24, 18, 48


def pareto_svg(report: SystemsReport, cost: str | None = None) -> str:
    """Draw each system at its cost and measure, with the measure's interval, and the front as a line.

    Args:
        report: A comparison.
        cost: Of a question; None for the report's own.

    Returns:
        An SVG element that scales with the page, with a text for those who cannot see it; empty where fewer
        than two systems have both figures.
    """
    price = report.cost if cost is None else cost
    shown = [one for one in report.systems if report.measure in one.measures and one.costs.get(price)]
    if len(shown) < 2:
        return ""
    x = _scale([one.costs[price] for one in shown], _LEFT, WIDTH - _RIGHT, zero=True)
    ends = [value for one in shown for value in _ends(one, report.measure)]
    y = _scale(ends, HEIGHT - _BOTTOM, _TOP)
    factor = 100 if report.measure in SHARES else 1
    told = "; ".join(
        f"{one.name}: {report.measure} {factor * one.measures[report.measure].value:.1f}, "
        f"{price} {one.costs[price]:.4g}"
        for one in shown
    )
    parts = [
        f'<svg class="pareto" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_text(told)}">',
        *_axes(x, y, price if price != "money" else report.currency, report.measure, factor),
    ]
    front = sorted((one for one in shown if one.pareto), key=lambda one: one.costs[price])
    if price == report.cost and len(front) > 1:
        points = " ".join(
            f"{x.at(one.costs[price]):.1f},{y.at(one.measures[report.measure].value):.1f}" for one in front
        )
        parts.append(f'<polyline class="front" points="{points}"/>')
    placed: list[tuple[float, float]] = []
    for one in sorted(shown, key=lambda one: one.costs[price]):
        parts += _mark(one, x, y, price, report.measure, placed)
    return "".join([*parts, "</svg>"])


class _Scale:
    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self._start, self._end = low, high, start, end

    def at(self, value: float) -> float:
        return self._start + (value - self.low) / (self.high - self.low) * (self._end - self._start)

    def ticks(self) -> list[float]:
        step = 10 ** math.floor(math.log10((self.high - self.low) / 2))
        for times in (5, 2, 1):
            if (self.high - self.low) / (step * times) >= 3:
                step *= times
                break
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def _scale(values: Sequence[float], start: float, end: float, *, zero: bool = False) -> _Scale:
    low, high = (0.0 if zero else min(values)), max(values)
    room = (high - low) * 0.08 or abs(high) * 0.1 or 1.0
    return _Scale(low if zero else low - room, high + room, start, end)


def _ends(one: SystemFigures, measure: str) -> tuple[float, float]:
    found = one.measures[measure]
    ends = (found.low, found.high)
    return ends if all(map(math.isfinite, ends)) else (found.value, found.value)


def _axes(x: _Scale, y: _Scale, cost: str, measure: str, factor: int) -> list[str]:
    found = []
    for value in y.ticks():
        at = y.at(value)
        found.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        found.append(
            f'<text class="tick" x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{factor * value:g}</text>'
        )
    for value in x.ticks():
        at = x.at(value)
        place = f'x="{at:.1f}" y="{HEIGHT - _BOTTOM + 18}" text-anchor="middle"'
        found.append(f'<text class="tick" {place}>{value:,.4g}</text>')
    unit = " (points)" if factor == 100 else ""
    found.append(
        f'<text class="axis" x="{WIDTH - _RIGHT}" y="{HEIGHT - 8}" text-anchor="end">'
        f"{_text(cost.replace('_', ' '))} a question →</text>"
    )
    found.append(f'<text class="axis" x="4" y="12">↑ {_text(measure.replace("_", " "))}{unit}</text>')
    return found


def _mark(
    one: SystemFigures, x: _Scale, y: _Scale, cost: str, measure: str, placed: list[tuple[float, float]]
) -> list[str]:
    low, high = _ends(one, measure)
    at, middle = x.at(one.costs[cost]), y.at(one.measures[measure].value)
    kind = "dot front" if one.pareto else "dot"
    width = 7.5 * len(one.name) + 12
    before = at + width > WIDTH - _RIGHT
    line = middle + 4
    # Names that would lie on one another move down.
    while any(abs(line - other) < 14 and abs(at - where) < width + 20 for where, other in placed):
        line += 14
    placed.append((at, line))
    anchor, place = ("end", at - 9) if before else ("start", at + 9)
    return [
        f'<line class="reach" x1="{at:.1f}" x2="{at:.1f}" y1="{y.at(low):.1f}" y2="{y.at(high):.1f}"/>',
        f'<circle class="{kind}" cx="{at:.1f}" cy="{middle:.1f}" r="5"/>',
        f'<text class="name" x="{place:.1f}" y="{line:.1f}" text-anchor="{anchor}">{_text(one.name)}</text>',
    ]


def _text(value: str) -> str:
    return escape(visible(value), quote=True)
