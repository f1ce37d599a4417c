"""A table for the terminal, and one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from rich import box
from rich.markup import escape as escape_markup
from rich.table import Table

from surerag.evaluation.gate import Verdict
from surerag.evaluation.run import EvaluationRun, Row
from surerag.evaluation.statistics import (
    COSTS,
    Comparison,
    compare_systems,
    mean_bounds,
    pareto_front,
    summarize,
)
from surerag.measures.statistics import Estimate
from surerag.text import printable

_TOKENS = ("prompt_tokens", "completion_tokens", "thinking_tokens")
LISTED = 500
"""Questions that a page lists; the others are in the run."""


def summary_rows(
    run: EvaluationRun, *, baseline: str = "", price_in: float = 0.0, price_out: float = 0.0
) -> tuple[list[str], list[list[str]]]:
    """Return the head and the cells of the table of systems: metrics with intervals, costs, differences.

    Args:
        run: The run.
        baseline: System to compare with; empty for the first.
        price_in: Money for a million tokens read.
        price_out: Money for a million tokens written.
    """
    measures = run.measures
    costs = [cost for cost in COSTS if any(run.values(system, cost) for system in run.systems)]
    head = ["system", *measures]
    columns = {name: summarize(run, name) for name in [*measures, *costs]}
    compared: dict[str, Comparison] = {}
    if measures and len(run.systems) > 1:
        head += [f"Δ {measures[0]}", "p (Holm)"]
        compared = {one.system: one for one in compare_systems(run, measures[0], baseline)}
    priced = bool(price_in or price_out)
    head += [*costs, *(["money"] if priced else []), "errors"]
    cells = []
    for system in run.systems:
        line = [system, *(estimate_text(columns[name][system]) for name in measures)]
        if compared:
            one = compared.get(system)
            line += ["–", "–"] if one is None else [estimate_text(one.difference, "+"), f"{one.adjusted:.3g}"]
        for cost in costs:
            estimate = columns[cost][system]
            line.append("–" if estimate is None else number_text(estimate.value))
        if priced:
            money = money_spent(run, system, price_in, price_out)
            line.append("–" if money is None else f"{money:.4g}")
        line.append(str(round(sum(run.values(system, "errors").values()))))
        cells.append(line)
    return head, cells


def terminal_table(run: EvaluationRun, **options: float | str) -> Table:
    """Return a table for a terminal, a column for each system; options are those of :func:`summary_rows`."""
    head, cells = summary_rows(run, **options)  # type: ignore[arg-type]
    layout: dict[str, Any] = {"box": box.SIMPLE, "show_edge": False, "pad_edge": False, "padding": 0}
    table = Table(caption=notes(run), caption_justify="left", **layout)
    table.add_column("")
    for line in cells:
        table.add_column(escape_markup(printable(line[0])), justify="right", overflow="fold")
    for name, *values in list(zip(*[head, *cells], strict=True))[1:]:
        # An interval goes below its value, so that four systems fit into eighty columns.
        texts = (escape_markup(printable(value).replace(" [", "\n[")) for value in (name, *values))
        table.add_row(*texts)
    return table


def notes(run: EvaluationRun) -> str:
    """Return what a reader of the table has to know: the number of questions, and what seconds are."""
    questions = run.questions
    text = f"{len(questions)} questions; intervals at 95 %; costs are means of a question, money is the sum."
    if without := sum(not question.references for question in questions):
        text += f" {without} have no reference answers and no metric."
    if shared := sorted({row.shared for row in run.rows if row.shared > 1}):
        text += (
            f" Seconds: up to {shared[-1]} questions were asked at a time; their wall time is divided by "
            "their number."
        )
    return text


def estimate_text(estimate: Estimate | None, sign: str = "") -> str:
    """Return a value with its interval; no interval where the sample allows none.

    Example:
        >>> estimate_text(Estimate(0.5, None, 3)), estimate_text(None)
        ('0.500', '–')
    """
    if estimate is None:
        return "–"
    text = f"{estimate.value:{sign}.3f}"
    if estimate.interval is None or estimate.interval.lower == estimate.interval.upper:
        return text
    return f"{text} [{estimate.interval.lower:{sign}.3f}, {estimate.interval.upper:{sign}.3f}]"


def number_text(value: float) -> str:
    """Return a number in three digits or more.

    Example:
        >>> number_text(12345.6), number_text(1.75)
        ('12,346', '1.75')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def money_spent(run: EvaluationRun, system: str, price_in: float, price_out: float) -> float | None:
    """Return what the answers of a system cost; None where it reports no tokens."""
    sums = [sum(run.values(system, name).values()) for name in _TOKENS]
    if not run.values(system, _TOKENS[0]):
        return None
    return (sums[0] * price_in + (sums[1] + sums[2]) * price_out) / 1e6


def forecast(run: EvaluationRun, n: int, price_in: float = 0.0, price_out: float = 0.0) -> str:
    """Return what ``n`` questions would cost, extrapolated from a run of a few with their t-intervals."""
    lines = []
    for system in run.systems:
        parts = []
        for cost in COSTS:
            values = list(run.values(system, cost).values())
            if len(values) < 2:
                continue
            lower, upper = (n * max(bound, 0) for bound in mean_bounds(values, 0.975))
            reach = f" ({number_text(lower)} to {number_text(upper)})" if lower < upper else ""
            parts.append(f"{number_text(n * sum(values) / len(values))} {cost}{reach}")
        answered = len(run.answered(system))
        if (price_in or price_out) and answered and parts:
            money = money_spent(run, system, price_in, price_out)
            parts += [] if money is None else [f"money {money * n / answered:,.4g}"]
        text = "; ".join(parts) or "too few answers to extrapolate from"
        lines.append(f"{n} questions with {system}, extrapolated from {answered}: {text}")
    return "\n".join(lines)


def write_report(
    run: EvaluationRun,
    path: str | Path,
    *,
    baseline: str = "",
    price_in: float = 0.0,
    price_out: float = 0.0,
    verdicts: Sequence[Verdict] = (),
    title: str = "",
    introduction: str = "",
) -> None:
    """Write the run as one HTML page without scripts; options are those of :func:`summary_rows`."""
    head, cells = summary_rows(run, baseline=baseline, price_in=price_in, price_out=price_out)
    gates = "".join(f'<p class="{one.outcome}">{_html(str(one))}</p>' for one in verdicts)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-label="{_html(name)}">{_html(cell)}</td>'
            for name, cell in zip(head, line, strict=True)
        )
        + "</tr>"
        for line in cells
    )
    page = Template(_PAGE).substitute(
        head="".join(f"<th>{_html(name)}</th>" for name in head),
        title=_html(title or f"{', '.join(run.systems)}: {len(run.questions)} questions"),
        introduction=f"<p>{_html(introduction)}</p>" if introduction else "",
        notes=_html(notes(run)),
        gates=gates,
        body=body,
        picture=pareto_picture(run),
        questions=_question_list(run),
    )
    Path(path).write_text(page, encoding="utf-8")


def pareto_picture(run: EvaluationRun) -> str:
    """Return an SVG of the first metric against tokens, or seconds where tokens are not reported."""
    metrics = run.measures
    reported = [name for name in ("tokens", "seconds") if all(run.values(s, name) for s in run.systems)]
    if not metrics or not reported:
        return ""
    metric, cost = metrics[0], reported[0]
    means, costs = summarize(run, metric), summarize(run, cost)
    both = {name: (c, q) for name in run.systems if (c := costs[name]) and (q := means[name])}
    points = {name: (c.value, q.value) for name, (c, q) in both.items()}
    width, height, left, bottom = 640, 360, 60, 50
    most = max(end for c, _ in both.values() for end in (*(c.interval or ()), c.value, 1e-9)) * 1.08
    ends = [end for _, q in both.values() for end in (q.interval or (q.value,))]
    low, high = max(min(ends) - 0.02, 0.0), max(ends) + 0.02

    def x(value: float) -> float:
        return float(left + value / most * (width - left - 20))

    def y(value: float) -> float:
        return height - bottom - (value - low) / (high - low) * (height - bottom - 20)

    front = pareto_front(points)
    marks = []
    for name, (c, q) in both.items():
        at, level = x(c.value), y(q.value)
        if q.interval:
            marks.append(_line(at, y(q.interval.lower), at, y(q.interval.upper), "reach"))
        if c.interval:
            marks.append(_line(x(c.interval.lower), level, x(c.interval.upper), level, "reach"))
        kind = "dot front" if name in front else "dot"
        marks.append(f'<circle class="{kind}" cx="{at:.1f}" cy="{level:.1f}" r="5"/>')
        right = at > width * 0.75
        marks.append(_text(at - 9 if right else at + 9, level - 8, "end" if right else "start", name))
    line = " ".join(f"{x(points[name][0]):.1f},{y(points[name][1]):.1f}" for name in front)
    axes = _line(left, height - bottom, width - 20, height - bottom, "axis")
    axes += _line(left, 20, left, height - bottom, "axis")
    for share in (0, 0.5, 1):
        anchor = "end" if share == 1 else "middle"
        axes += _text(x(most * share), height - bottom + 18, anchor, number_text(most * share), "tick")
        value = low + (high - low) * share
        axes += (
            f'<text class="tick" x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>'
        )
    axes += _text(width / 2, height - 8, "middle", f"{cost} a question", "tick")
    axes += _text(left, 14, "start", metric, "tick")
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{_html(metric)} against {cost}">{axes}'
        f'<polyline class="front" points="{line}"/>{"".join(marks)}</svg>'
    )


def _question_list(run: EvaluationRun) -> str:
    by_key: dict[str, list[Row]] = {}
    for row in run.rows:
        by_key.setdefault(row.question.key, []).append(row)
    metric = next(iter(run.measures), "")
    scores = {system: run.values(system, metric) for system in run.systems}
    items = []
    for key, rows in list(by_key.items())[:LISTED]:
        question = rows[0].question
        answers = []
        for row in rows:
            score = scores[row.system].get(key)
            kind = "" if score is None or metric not in run.metrics else "right" if score >= 0.5 else "wrong"
            text = row.error if row.answer is None else row.answer.text
            detail = [] if score is None else [f"{metric} {score:.2f}"]
            if row.answer is not None:
                detail += [] if row.tokens is None else [f"{row.tokens:,} tokens"]
                detail += [] if row.answer.acted is None else ["acted" if row.answer.acted else "did not act"]
                if row.answer.uncertainty is not None:
                    detail.append(f"uncertainty {row.answer.uncertainty:.3g}")
            small = f"<small>{_html('; '.join(detail))}</small>"
            answers.append(f'<dt>{_html(row.system)}</dt><dd class="{kind}">{_html(text)} {small}</dd>')
        if question.references:
            answers.insert(0, f"<dt>reference</dt><dd>{_html(' | '.join(question.references))}</dd>")
        items.append(
            f"<details><summary>{_html(question.text)}</summary><dl>{''.join(answers)}</dl></details>"
        )
    more = len(by_key) - len(items)
    return "".join(items) + (f"<p>{more:,} more questions are in the run.</p>" if more > 0 else "")


def _html(text: str) -> str:
    return escape(printable(text))


def _text(x: float, y: float, anchor: str, text: str, kind: str = "name") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_html(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>surerag evaluation</title>
<style>
:root { color-scheme: light dark; --ink: #1c1f24; --soft: #5d6470; --line: #dfe3e8; --paper: #fff;
  --blue: #1b6ca8; --red: #b3422f; --green: #2f6f2e; --amber: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #a2a9b3; --line: #353b44;
  --paper: #16191d; --blue: #6db3e8; --red: #ef8b78; --green: #84c983; --amber: #e0b35a; } }
body { margin: 0 auto; max-width: 78rem; padding: 1.5rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } small, .tick { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th { overflow-wrap: normal; } td { white-space: nowrap; }
th, td { text-align: right; padding: .35rem .5rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; font-weight: 600; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font: 13px system-ui, sans-serif; }
svg .tick { fill: var(--soft); } .axis { stroke: var(--line); } .reach { stroke: var(--soft); }
.dot { fill: var(--soft); } .dot.front { fill: var(--blue); }
polyline.front { fill: none; stroke: var(--blue); stroke-dasharray: 5 4; }
details { border-bottom: 1px solid var(--line); } summary { cursor: pointer; padding: .4rem 0; }
dl { margin: 0 0 .8rem 1rem; } dt { color: var(--soft); font-size: .88rem; }
dd { margin: 0 0 .4rem; white-space: pre-wrap; }
.right { border-left: 3px solid var(--green); padding-left: .5rem; }
.wrong { border-left: 3px solid var(--red); padding-left: .5rem; }
.pass { color: var(--green); } .fail { color: var(--red); } .undecided { color: var(--amber); }
@media (max-width: 640px) {
  body { padding: 1rem; } thead { display: none; } svg text { font-size: 20px; }
  tr { display: block; border-bottom: 2px solid var(--line); padding: .4rem 0; }
  td { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: .1rem 0; }
  td::before { content: attr(data-label); color: var(--soft); font-weight: 400; }
}
</style>
</head>
<body>
<h1>$title</h1>
$introduction
$gates
<table><thead><tr>$head</tr></thead><tbody>$body</tbody></table>
<p><small>$notes</small></p>
$picture
<h2>Questions</h2>
$questions
</body>
</html>
"""
