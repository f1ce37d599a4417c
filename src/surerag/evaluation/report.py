"""A table for the terminal, and one self-contained HTML page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from rich import box
from rich.markup import escape as escape_markup
from rich.table import Table

from surerag.errors import MissingExtraError, extra
from surerag.evaluation.findings import base_of, findings, searched
from surerag.evaluation.gate import Verdict
from surerag.evaluation.run import EvaluationRun, Row
from surerag.evaluation.statistics import COSTS, compare_systems, summarize
from surerag.measures.statistics import Estimate, mean_interval
from surerag.text import printable

_TOKENS = ("prompt_tokens", "completion_tokens", "thinking_tokens")
LISTED = 500
"""Questions that a page lists; the others are in the run."""
PASSAGE = 800
"""Characters of a passage that a page shows."""


def summary_rows(
    run: EvaluationRun, *, baseline: str = "", price_in: float = 0.0, price_out: float = 0.0
) -> tuple[list[str], list[list[str]]]:
    """Return the head and the cells of the table of systems: metrics with intervals, differences, costs.

    Systems that were asked only some of the questions are not in it; :func:`findings` names them.

    Args:
        run: The run.
        baseline: System to compare with; empty for the first.
        price_in: Money for a million tokens read.
        price_out: Money for a million tokens written.
    """
    measures, systems = run.measures, run.comparable
    baseline = baseline or next(iter(systems), "")
    columns: dict[str, Mapping[str, str]] = {
        "system": {system: system for system in systems},
        "n": {system: str(len(run.values(system, "errors"))) for system in systems},
    }
    for name in measures:
        columns[name] = {system: estimate_text(one) for system, one in summarize(run, name).items()}
    if measures and len(systems) > 1:
        columns |= _comparison_columns(run, measures[0], systems, baseline)
    columns |= _cost_columns(run, systems, price_in, price_out)
    return list(columns), [[column[system] for column in columns.values()] for system in systems]


def _comparison_columns(
    run: EvaluationRun, measure: str, systems: Sequence[str], baseline: str
) -> dict[str, dict[str, str]]:
    difference = {system: "baseline" if system == baseline else "–" for system in systems}
    adjusted = dict.fromkeys(systems, "–")
    for one in compare_systems(run, measure, baseline):
        difference[one.system] = estimate_text(one.difference, "+")
        adjusted[one.system] = f"{one.adjusted:.3g}"
    return {f"Δ {measure}": difference, "p (Holm)": adjusted}


def _cost_columns(
    run: EvaluationRun, systems: Sequence[str], price_in: float, price_out: float
) -> dict[str, dict[str, str]]:
    columns: dict[str, dict[str, str]] = {}
    shares = {system: searched(run, system) for system in systems}
    if any(share is not None for share in shares.values()):
        columns["searched"] = _cells(shares, lambda share: f"{100 * share:.0f} %")
    for cost in COSTS:
        if any(run.values(system, cost) for system in systems):
            means = {system: one and one.value for system, one in summarize(run, cost).items()}
            columns[cost] = _cells(means, number_text)
    if price_in or price_out:
        money = {system: money_spent(run, system, price_in, price_out) for system in systems}
        columns["money"] = _cells(money, lambda amount: f"{amount:.4g}")
    columns["errors"] = {system: str(round(sum(run.values(system, "errors").values()))) for system in systems}
    return columns


def _cells(values: Mapping[str, float | None], form: Callable[[float], str]) -> dict[str, str]:
    """Return numbers as texts, a dash where there is none."""
    return {name: "–" if value is None else form(value) for name, value in values.items()}


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
    """Return what a reader of the table has to know: intervals, the test, and what seconds are."""
    measures, questions = run.measures, run.questions
    text = "n: questions asked. Intervals are at 95 %. Costs are means of a question, money is the sum."
    if measures and len(run.comparable) > 1:
        text += (
            f" Δ {measures[0]}: difference to the baseline on the same questions. p (Holm): how often chance "
            "alone would bring such a difference, adjusted for the number of systems (Holm's method); below "
            "0.05 it counts as shown."
        )
    if without := sum(not question.references for question in questions):
        text += f" {without} questions have no reference answers and no metric."
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
    """Return what ``n`` questions would cost, extrapolated from a run of a few with their intervals."""
    lines = []
    for system in run.systems:
        parts = []
        for cost in COSTS:
            values = list(run.values(system, cost).values())
            if len(values) < 2:
                continue
            mean, interval, _ = mean_interval(values, bounds=None)
            reach = ""
            if interval is not None:
                lower, upper = (number_text(n * max(bound, 0)) for bound in interval)
                reach = f" ({lower} to {upper})"
            parts.append(f"{number_text(n * mean)} {cost}{reach}")
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
    labels: Mapping[str, str] | None = None,
) -> None:
    """Write the run as one HTML page without scripts: what it shows, a table, charts, and every question.

    Args:
        run: The run; what :meth:`~surerag.evaluation.EvaluationRun.record` recorded of it is on the page.
        path: The page.
        baseline: System to compare with; empty for the first.
        price_in: Money for a million tokens read.
        price_out: Money for a million tokens written.
        verdicts: Requirements that were tested.
        title: Of the page.
        labels: Names to show for systems in the sentences.
    """
    head, cells = summary_rows(run, baseline=baseline, price_in=price_in, price_out=price_out)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td data-label="{_html(name)}">{_cell(cell)}</td>'
            for name, cell in zip(head, line, strict=True)
        )
        + "</tr>"
        for line in cells
    )
    first, *others = findings(run, baseline, labels) or [""]
    page = Template(_PAGE).substitute(
        head="".join(f"<th>{_html(name)}</th>" for name in head),
        title=_html(title or f"{', '.join(run.comparable)}: {len(run.questions)} questions"),
        finding=f'<p class="finding">{_html(first)}</p>' if first else "",
        details="".join(f"<li>{_html(text)}</li>" for text in others),
        gates="".join(f'<p class="{one.outcome}">{_html(str(one))}</p>' for one in verdicts),
        notes=_html(notes(run)),
        body=body,
        charts=charts(run, baseline),
        questions=_question_list(run),
        about="".join(f"<dt>{_html(name)}</dt><dd>{_html(text)}</dd>" for name, text in run.about.items()),
    )
    Path(path).write_text(page, encoding="utf-8")


def charts(run: EvaluationRun, baseline: str = "") -> str:
    """Return SVG charts, a line for each system: its metric with the interval, its searches, and its costs.

    Without matplotlib, a sentence that says so.
    """
    systems = run.comparable
    baseline = baseline or next(iter(systems), "")
    shares = {s: Estimate(100 * v, None, 0) for s in systems if (v := searched(run, s)) is not None}
    panels: list[tuple[str, str | dict[str, Estimate]]] = [
        *((f"{name}, with intervals of 95 %", name) for name in run.measures[:1]),
        ("questions searched for, %", shares),
        *((f"{cost} a question", cost) for cost in ("tokens", "seconds")),
    ]
    filled = [(name, _estimates(run, of) if isinstance(of, str) else of) for name, of in panels]
    try:
        return "".join(
            f"<figure>{_chart(name, values, baseline)}</figure>" for name, values in filled if len(values) > 1
        )
    except MissingExtraError as error:
        return f"<p><small>No charts: {_html(str(error))}</small></p>"


def _estimates(run: EvaluationRun, measure: str) -> dict[str, Estimate]:
    summary = summarize(run, measure)
    return {system: estimate for system in run.comparable if (estimate := summary[system]) is not None}


def _chart(title: str, values: Mapping[str, Estimate], baseline: str) -> str:
    """Return a chart of one value for each system; names are ticks of an axis, where nothing covers them."""
    with extra("evaluation"):
        import matplotlib as mpl
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    ink, mark = "#010203", "#040506"  # replaced by colours of the page, which has a dark mode
    settings: Any = {
        **dict.fromkeys(
            ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), ink
        ),
        "svg.fonttype": "none",
        "svg.hashsalt": title,
        "text.parse_math": False,
        "font.family": "sans-serif",
        "font.size": 11,
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(4.8, 1.0 + 0.34 * len(values)), layout="constrained")
        FigureCanvasSVG(figure)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        axes = figure.add_subplot()
        places = range(len(values))
        for place, estimate in zip(places, values.values(), strict=True):
            if estimate.interval is not None:
                axes.plot(estimate.interval, (place, place), color=mark, linewidth=2, alpha=0.5)
        axes.plot([one.value for one in values.values()], places, "o", color=mark, markersize=7)
        if baseline in values:
            axes.axvline(values[baseline].value, color=ink, linewidth=0.8, linestyle=":")
        names = [name if len(name) < 25 else f"{name[:22]} …" for name in map(printable, values)]
        axes.set_yticks(list(places), names)
        axes.set_ylim(len(values) - 0.5, -0.5)
        if min(one.value for one in values.values()) >= 0:
            axes.set_xlim(left=0)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.locator_params(axis="x", nbins=5)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()[buffer.getvalue().index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return svg.replace(ink, "currentColor").replace(mark, "var(--blue)")


def _cell(text: str) -> str:
    """Return a cell whose interval goes below its value."""
    value, bracket, interval = text.partition(" [")
    return f"<span>{_html(value)}{f'<br><small> [{_html(interval)}</small>' if bracket else ''}</span>"


_KINDS = {
    "differ": "Where the systems differ",
    "wrong": "Wrong",
    "right": "Right",
    "": "Without a reference answer",
}


def _question_list(run: EvaluationRun) -> str:
    """Return the questions: those that some systems got wrong, that all got wrong, that all got right."""
    systems = run.comparable
    metric = next((name for name in run.measures if name in run.metrics), "")
    scores = {system: run.values(system, metric) if metric else {} for system in systems}
    by_key: dict[str, list[Row]] = {}
    for row in run.rows:
        if row.system in systems:
            by_key.setdefault(row.question.key, []).append(row)
    groups: dict[str, list[list[Row]]] = {kind: [] for kind in _KINDS}
    for key, rows in by_key.items():
        kinds = {_kind(scores[row.system].get(key)) for row in rows} - {""}
        groups["differ" if len(kinds) > 1 else next(iter(kinds), "")].append(rows)
    text, left = "", LISTED
    for kind, questions in groups.items():
        if questions[:left]:
            items = "".join(_question(run, rows, metric, scores) for rows in questions[:left])
            text += f"<h3>{_KINDS[kind]} ({len(questions):,})</h3>{items}"
        left -= len(questions[:left])
    more = len(by_key) - LISTED
    return text + (f"<p>{more:,} more questions are in the run.</p>" if more > 0 else "")


def _kind(score: float | None) -> str:
    return "" if score is None else "right" if score >= 0.5 else "wrong"


def _question(
    run: EvaluationRun, rows: Sequence[Row], metric: str, scores: Mapping[str, Mapping[str, float]]
) -> str:
    question = rows[0].question
    answers, passages = [], dict[str, int]()
    for row in rows:
        score = scores[row.system].get(question.key)
        kind = _kind(score)
        text = row.error if row.answer is None else row.answer.text
        shown = () if row.answer is None else row.answer.contexts
        numbers = [passages.setdefault(passage, len(passages) + 1) for passage in shown]
        detail = [kind or metric] if score in (0, 1) else [] if score is None else [f"{metric} {score:.2f}"]
        detail += _details(run, row)
        if numbers:
            detail.append(f"saw passage{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}")
        small = f"<small>{_html('; '.join(filter(None, detail)))}</small>"
        answers.append(f'<dt>{_html(row.system)}</dt><dd class="{kind}">{_html(text)}<br>{small}</dd>')
    if question.references:
        answers.insert(0, f"<dt>reference</dt><dd>{_html(' | '.join(question.references))}</dd>")
    seen = "".join(
        f"<li>{_html(text[:PASSAGE])}{' …' if len(text) > PASSAGE else ''}</li>" for text in passages
    )
    seen = f"<details><summary>passages</summary><ol>{seen}</ol></details>" if seen else ""
    return f"<details><summary>{_html(question.text)}</summary><dl>{''.join(answers)}</dl>{seen}</details>"


_ACTED = {"rewritten": ("rewrote the question", "left the question as it is")}
_COMPRESSED = ("compressed the passages", "left the passages as they are")


def _details(run: EvaluationRun, row: Row) -> list[str]:
    """Return what a system did for an answer, how uncertain it was, and what it took, in words."""
    answer, base, settings = row.answer, base_of(run, row.system), run.settings(row.system)
    if answer is None:
        return ["failed"]
    detail = []
    if answer.acted is not None:
        words = ("searched", "answered without a search")
        if base == "plain" and row.system.partition("+")[0] != "plain":
            words = _COMPRESSED
        did, did_not = _ACTED.get(base, words)
        detail.append(did if answer.acted else did_not)
    if answer.uncertainty is not None:
        options = settings.get("options", settings)
        gate = options.get("metric") or options.get("gate")
        name = gate if isinstance(gate, str) else "uncertainty"
        detail.append(f"{name.replace('_', ' ')} {answer.uncertainty:.2g}")
    if answer.finish == "length":
        detail.append("cut off at its longest length")
    return [*detail, *([] if row.tokens is None else [f"{row.tokens:,} tokens"])]


def _html(text: str) -> str:
    return escape(printable(text))


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
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } small { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th { overflow-wrap: normal; } td { white-space: nowrap; vertical-align: top; }
td:first-child { white-space: normal; min-width: 6rem; }
th, td { text-align: right; padding: .35rem .4rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; font-weight: 600; }
.finding { font-size: 1.15rem; font-weight: 600; margin: .6rem 0; } ul { padding-left: 1.2rem; }
.wide { overflow-x: auto; } .charts { display: grid; gap: 1rem 2rem; margin: 1.5rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
figure { margin: 0; max-width: 32rem; } svg { width: 100%; height: auto; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; } details details { margin-left: 1rem; border: 0; }
ol { white-space: pre-wrap; font-size: .92rem; }
details { border-bottom: 1px solid var(--line); } summary { cursor: pointer; padding: .4rem 0; }
dl { margin: 0 0 .8rem 1rem; } dt { color: var(--soft); font-size: .88rem; }
dd { margin: 0 0 .4rem; white-space: pre-wrap; }
.right { border-left: 3px solid var(--green); padding-left: .5rem; }
.wrong { border-left: 3px solid var(--red); padding-left: .5rem; }
.pass { color: var(--green); } .fail { color: var(--red); } .undecided { color: var(--amber); }
@media (max-width: 640px) {
  body { padding: 1rem; } thead { display: none; }
  tr { display: block; border-bottom: 2px solid var(--line); padding: .4rem 0; }
  td { display: flex; justify-content: space-between; gap: .6rem; border: 0; padding: .1rem 0; }
  td br { display: none; }
  td::before { content: attr(data-label); color: var(--soft); font-weight: 400; }
}
</style>
</head>
<body>
<h1>$title</h1>
$finding
<ul>$details</ul>
$gates
<div class="wide"><table><thead><tr>$head</tr></thead><tbody>$body</tbody></table></div>
<p><small>$notes</small></p>
<div class="charts">$charts</div>
<h2>Questions</h2>
<p><small>Uncertainties are of the answer or of L-RAG's first answer: entropies are in nats (natural
logarithms; 0 is certain), perplexities begin at 1.</small></p>
$questions
<h2>How this was made</h2>
<dl class="about">$about</dl>
</body>
</html>
"""
