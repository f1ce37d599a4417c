"""Show an evaluation run as a table for the terminal, or as a self-contained HTML page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from textwrap import shorten
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.jupyter import JupyterMixin
from rich.markup import escape as escape_markup
from rich.table import Table
from rich.text import Text

from surerag.calibration import CalibrationRow
from surerag.errors import writing
from surerag.evaluation.causes import NOTES, PLACES, SKIPPED, Causes, causes_of, remedy_of
from surerag.evaluation.certainty import (
    FEWEST,
    RIGHT,
    SHARES,
    SurestAnswers,
    answers_by_uncertainty,
    surest_answers_by_system,
)
from surerag.evaluation.charts import bar_charts, certainty_charts
from surerag.evaluation.findings import (
    MARGIN,
    causes,
    certainties,
    comparisons,
    findings,
    gates,
    names_of,
    numbers_of_passages,
    problems,
    search_share,
)
from surerag.evaluation.gate import Verdict
from surerag.evaluation.passages import passage_counts
from surerag.evaluation.pipelines import PIPELINES, Pipeline, pipeline_of
from surerag.evaluation.questions import Question
from surerag.evaluation.run import Row, Run
from surerag.evaluation.statistics import COSTS, compare_systems, summarize
from surerag.evaluation.systems import EvaluationAnswer
from surerag.measures.closed import is_closed
from surerag.measures.cost import api_cost
from surerag.measures.statistics import Estimate, mean_interval
from surerag.text import counted, printable

Prices = tuple[float, float]
"""Prices of a million prompt tokens and of a million completion tokens."""
MAX_QUESTIONS = 500
"""Maximum number of questions that a page lists; the run contains all questions."""
MAX_SUREST = 200
"""Maximum number of answers of each system that a page lists, ordered by uncertainty."""
MAX_LINE = 200
"""Maximum number of characters of a question or answer that :func:`example_answers` shows."""
MAX_CHARACTERS = 800
"""Maximum number of characters of a passage that a page shows."""


def table_columns(run: Run, baseline: str = "", prices: Prices = (0.0, 0.0)) -> dict[str, Mapping[str, str]]:
    """Return the text of each cell by column and system: metrics, differences and costs."""
    measures, systems = run.measures, run.comparable
    baseline = baseline or next(iter(systems), "")
    columns: dict[str, Mapping[str, str]] = {
        "n": {system: str(len(run.values(system, "errors"))) for system in systems}
    }
    if (scored := _scored(run)) and scored != columns["n"]:
        columns["scored"] = scored
    for name in measures:
        columns[name] = {system: estimate_text(one) for system, one in summarize(run, name).items()}
    if measures and len(systems) > 1:
        columns |= _comparison_columns(run, measures[0], systems, baseline)
    columns |= _cost_columns(run, systems, prices)
    return {name: {system: column[system] for system in systems} for name, column in columns.items()}


def _scored(run: Run) -> dict[str, str]:
    metric = next((name for name in run.measures if name in run.metrics), "")
    return {system: str(len(run.values(system, metric))) for system in run.comparable} if metric else {}


def _comparison_columns(
    run: Run, measure: str, systems: Sequence[str], baseline: str
) -> dict[str, dict[str, str]]:
    difference = {system: "baseline" if system == baseline else "–" for system in systems}
    adjusted = dict.fromkeys(systems, "–")
    for one in compare_systems(run, measure, baseline):
        difference[one.system] = estimate_text(one.difference, "+")
        adjusted[one.system] = f"{one.adjusted:.3g}"
    return {f"Δ {measure}": difference, "p (Holm)": adjusted}


def _cost_columns(run: Run, systems: Sequence[str], prices: Prices) -> dict[str, dict[str, str]]:
    columns: dict[str, dict[str, str]] = {}
    shares = {system: search_share(run, system) for system in systems}
    if any(share is not None for share in shares.values()):
        columns["searched"] = {name: _percent_text(share) if share else "–" for name, share in shares.items()}
    for cost in COSTS:
        if any(run.values(system, cost) for system in systems):
            means = {system: one and one.value for system, one in summarize(run, cost).items()}
            columns[cost] = _cells(means, number_text)
    if any(prices):
        money = {system: money_spent(run, system, prices) for system in systems}
        columns["money"] = _cells(money, money_text)
    columns["errors"] = {system: str(round(sum(run.values(system, "errors").values()))) for system in systems}
    return columns


def _cells(values: Mapping[str, float | None], form: Callable[[float], str]) -> dict[str, str]:
    return {name: "–" if value is None else form(value) for name, value in values.items()}


_NARROW = len("right in the")
"""Width of the names of rows, in characters, on a narrow terminal."""


class TerminalTable(JupyterMixin):
    """A table and a text that explains it, for ``print``, for a console of rich, and for a notebook."""

    def __init__(self, table: Table, explanation: Text) -> None:
        self._table, self._explanation = table, explanation

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # With narrow names of rows, the intervals of four systems fit into 80 characters.
        is_narrow = len(self._table.columns) > 4 and options.max_width < 100
        self._table.columns[0].max_width = _NARROW if is_narrow else None
        yield self._table
        yield self._explanation

    def __str__(self) -> str:
        console = Console(color_system=None)
        if not console.is_terminal:
            console.width = 100
        with console.capture() as captured:
            console.print(self)
        return captured.get().rstrip()


def terminal_table(run: Run, baseline: str = "", prices: Prices = (0.0, 0.0)) -> TerminalTable:
    """Return a table with a column for each system, and a text that explains the table.

    Args:
        run: The evaluation run.
        baseline: Name of the system that the others are compared with; empty means the first system.
        prices: Price of a million prompt tokens, and of a million completion tokens; with zeros, no money is
            shown.
    """
    layout: dict[str, Any] = {"box": box.SIMPLE, "show_edge": False, "pad_edge": False, "padding": 0}
    table = Table(**layout)
    table.add_column("", overflow="fold")
    for system in run.comparable:
        table.add_column(escape_markup(printable(system)), justify="right", overflow="fold")
    columns = table_columns(run, baseline, prices)
    surest_of = surest_answers_by_system(run)
    for name, by_system in certainty_columns(surest_of).items() if surest_of else ():
        if name not in ("answers", "right in all answers"):
            label = "AUROC of certainty" if name == "AUROC" else name
            columns[label] = {system: by_system.get(system, "–") for system in run.comparable}
    for name, column in columns.items():
        # Each interval is in the line below its value, so that four systems fit into 80 characters.
        texts = (escape_markup(printable(value).replace(" [", "\n[")) for value in (name, *column.values()))
        table.add_row(*texts)
    # A caption would be wrapped to the width of the table, which may be narrow.
    return TerminalTable(table, Text(notes(run), style="table.caption"))


def notes(run: Run) -> str:
    """Return a text that explains the columns of a run's table."""
    text = (
        "n is the number of questions. Intervals have a confidence level of 95 %. Costs are means per "
        "question, but money is the sum, in the currency of the prices."
    )
    if run.measures and len(run.comparable) > 1:
        text += (
            f" Δ {run.measures[0]} is the difference to the baseline on the same questions. p (Holm) says "
            "how often chance alone would cause a difference at least this large, adjusted for the number "
            "of systems (Holm's method). We call a system better or worse only if p is below 0.05."
        )
    text += _notes_on_questions(run.questions)
    if (at_a_time := max((row.at_a_time for row in run.rows), default=1)) > 1:
        text += (
            f" Up to {at_a_time} questions were asked at the same time; the seconds of a question are the "
            "wall time of these questions, divided by their number."
        )
    return text


def _notes_on_questions(questions: Sequence[Question]) -> str:
    text = ""
    if without := sum(not question.references for question in questions):
        verb = "is" if without == 1 else "are"
        text += f" {counted(without, 'question')} without a reference answer {verb} not scored."
    groups = Counter(question.group for question in questions if question.group)
    if len(groups) > 1 and (together := sum(n for n in groups.values() if n > 1)):
        text += (
            f" {together} questions are about the same document or group as another question; intervals and "
            "tests treat them as dependent."
        )
    if closed := sum(any(map(is_closed, question.references)) for question in questions):
        text += (
            f" For {counted(closed, 'question')} a reference answer is yes or no, true or false, one letter, "
            'an article or "I do not know.": here, contains and f1 compare what the answer says, not words.'
        )
    return text


def estimate_text(estimate: Estimate | None, sign: str = "") -> str:
    """Return the text of an estimate with its confidence interval; a dash for None.

    The argument ``sign="+"`` puts a plus sign before positive numbers.

    Example:
        >>> estimate_text(Estimate(0.5, None, 3)), estimate_text(None)
        ('0.500', '–')
    """
    return "–" if estimate is None else estimate.text(sign)


def number_text(value: float) -> str:
    """Format a number with three significant digits, or as a whole number from 100 on.

    Example:
        >>> number_text(12345.6), number_text(1.75)
        ('12,346', '1.75')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def money_text(amount: float) -> str:
    """Format an amount of money with two decimals; an amount below 0.1 has two significant digits.

    Example:
        >>> money_text(1234.5), money_text(0.001259)
        ('1,234.50', '0.0013')
    """
    return f"{amount:,.2f}" if amount >= 0.1 else f"{float(f'{amount:.2g}'):.12f}".rstrip("0").rstrip(".")


def money_spent(run: Run, system: str, prices: Prices) -> float | None:
    """Return the price of all answers of a system; None if the system reports no tokens."""
    names = ("prompt_tokens", "completion_tokens", "thinking_tokens")
    prompt, completion, thinking = (sum(run.values(system, name).values()) for name in names)
    return api_cost(prompt, completion + thinking, *prices) if run.values(system, "tokens") else None


def forecast(run: Run, n: int, prices: Prices = (0.0, 0.0)) -> str:
    """Return a text with the costs of ``n`` questions, extrapolated from a run of fewer questions."""
    lines, names = [], names_of(run)
    for system in run.systems:
        parts = []
        for cost in COSTS:
            values, groups = run.values(system, cost), run.groups
            if len(values) < 2:
                continue
            of_each = [groups[key] for key in values]
            mean, interval, _ = mean_interval([*values.values()], of_each, bounds=None)
            reach = ""
            if interval is not None:
                lower, upper = (number_text(n * max(bound, 0)) for bound in interval)
                reach = f" ({lower} to {upper})"
            parts.append(f"{number_text(n * mean)} {cost}{reach}")
        answered = len(run.answered(system))
        if any(prices) and parts and (money := money_spent(run, system, prices)) is not None:
            parts.append(f"money {money_text(money * n / answered)} in the currency of --price-in")
        text = "; ".join(parts) or "too few answers for an estimate"
        lines.append(f"{counted(n, 'question')} with {names[system]}, extrapolated from {answered}: {text}")
    return "\n".join(lines)


def example_answers(run: Run, n: int = 3) -> str:
    """Return lines with the first questions of a run, their right answers, and the systems' answers."""
    lines, names = ["Examples:"], names_of(run)
    doubts = {
        (system, row.question.key): f" (uncertainty {_uncertainty_text(of.uncertainty)})"
        for system in run.systems
        for row, of in answers_by_uncertainty(run, system)
    }
    for question in run.questions[:n]:
        right = f"Right: {' | '.join(question.references)}" if question.references else ""
        lines.append(f"- {shorten(question.text, MAX_LINE)} {shorten(right, MAX_LINE)}".rstrip())
        for row in run.rows:
            if row.question.key == question.key:
                text = f"failed: {row.error}" if row.answer is None else row.answer.text
                doubt = doubts.get((row.system, question.key), "")
                lines.append(f"  {names[row.system]}: {shorten(text, MAX_LINE)}{doubt}")
    return "\n".join(lines)


def write_report(
    run: Run,
    path: str | Path,
    *,
    baseline: str = "",
    prices: Prices = (0.0, 0.0),
    verdicts: Sequence[Verdict] = (),
    title: str = "",
    labels: Mapping[str, str] | None = None,
    margin: float = MARGIN,
) -> None:
    """Write a run as an HTML page without scripts, with findings, tables, charts and questions.

    Args:
        run: The evaluation run.
        path: Path of the file to write.
        baseline: Name of the system that the others are compared with; empty means the first system.
        prices: Price of a million prompt tokens, and of a million completion tokens; with zeros, no money is
            shown.
        verdicts: Verdicts on requirements, to show on the page.
        title: Title of the page; empty means the names of the systems and the number of questions.
        labels: Names that replace the systems' names in the findings.
        margin: Acceptable loss of the mean score, such as 0.02.

    Raises:
        StorageError: If the file cannot be written.
    """
    baseline = baseline or next(iter(run.comparable), "")
    names, surest_of, why = names_of(run, labels), surest_answers_by_system(run), causes_of(run)
    first, *others = [
        *comparisons(run, baseline, names, margin),
        *gates(run, names),
        *problems(run, names),
    ] or [""]
    page = Template(files("surerag.evaluation").joinpath("page.html").read_text("utf-8")).substitute(
        title=_html(title or f"{', '.join(run.comparable)}: {counted(len(run.questions), 'question')}"),
        finding=f'<p class="finding">{_html(first)}</p>' if first else "",
        causes=_causes_section(run, why, causes(run, why, baseline, names)) + _notes_on_files(run),
        details=_list(others),
        gates="".join(f'<p class="{one.outcome}">{_html(str(one))}</p>' for one in verdicts),
        notes=_html(notes(run)),
        table=_table("system", table_columns(run, baseline, prices)),
        charts=bar_charts(run, baseline),
        certainty=_certainty_section(run, surest_of, certainties(run, surest_of, baseline, names), baseline),
        passages=_passages_section(run, margin),
        questions=_question_list(run, why),
        about="".join(f"<dt>{_html(name)}</dt><dd>{_html(text)}</dd>" for name, text in run.about.items()),
    )
    with writing(path):
        Path(path).write_text(page, encoding="utf-8")


def notebook_html(run: Run) -> str:
    """Return the findings and the table of a run as HTML for a notebook."""
    table = _table("system", table_columns(run)) if run.comparable else ""
    return f"{_list(findings(run))}{table}<p><small>{_html(notes(run))}</small></p>"


def _list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{_html(text)}</li>' for text in sentences)}</ul>" if sentences else ""


def _table(first: str, columns: Mapping[str, Mapping[str, str]]) -> str:
    head = "".join(f"<th>{_html(name)}</th>" for name in (first, *columns))
    rows = ""
    for system in next(iter(columns.values()), {}):
        cells = {first: system, **{name: column[system] for name, column in columns.items()}}
        rows += f"<tr>{''.join(_cell(*cell) for cell in cells.items())}</tr>"
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def certainty_columns(surest_of: Mapping[str, SurestAnswers]) -> dict[str, Mapping[str, str]]:
    """Return the cells, by column and system: AUROC, and shares of right answers among the surest answers.

    A share of fewer than :data:`FEWEST` answers is left out.
    """
    columns: dict[str, Mapping[str, str]] = {
        "AUROC": {system: estimate_text(surest.auroc) for system, surest in surest_of.items()}
    }
    for share in (*SHARES, 1):
        name = "right in all answers" if share == 1 else f"right in the surest {100 * share:.0f} %"
        cells = {
            system: _percent_text(surest.right[share])
            if share == 1 or surest.right[share].n >= FEWEST
            else "–"
            for system, surest in surest_of.items()
        }
        if set(cells.values()) != {"–"}:
            columns[name] = cells
    columns["answers"] = {system: str(surest.n) for system, surest in surest_of.items()}
    return columns


def _percent_text(estimate: Estimate) -> str:
    value, *interval = estimate.text(scale=100, digits=0).split(" ", 1)
    return " ".join([value, "%", *interval])


_MEASURES = {
    "greatest_3_mean_entropy": "the mean of an answer's three greatest token entropies",
    "negative_log_likelihood": "the negative log-likelihood of an answer",
}


def _certainty_section(
    run: Run, surest_of: Mapping[str, SurestAnswers], sentences: Sequence[str], baseline: str
) -> str:
    systems = sorted(run.comparable, key=lambda system: system != baseline)
    answers_of = {system: of for system in systems if (of := answers_by_uncertainty(run, system))}
    if not sentences and not answers_of:
        return ""
    section = f"<h2>How sure is each answer?</h2>{_list(sentences)}"
    if not answers_of:
        return section
    lists = "".join(
        _answers_by_uncertainty(run, system, of, is_open=system == next(iter(answers_of)))
        for system, of in answers_of.items()
    )
    used = dict.fromkeys(row.scope.get("measure", "") for of in answers_of.values() for _, row in of)
    measures = " or ".join(_MEASURES.get(measure, measure) for measure in filter(None, used))
    note = f"Certainty is measured by {measures}. The measurement needs no further call or token."
    if not surest_of:
        return f"{section}{lists}<p><small>{_html(note)}</small></p>"
    note += (
        " AUROC is the probability that the model is less sure of a wrong answer than of a right answer; 0.5 "
        "is chance. Intervals have a confidence level of 95 %. Each curve shows the share of right answers "
        "among the surest answers, with its interval. The dotted line is the share of right answers among "
        "all answers."
    )
    if unmeasured := sum(surest.unmeasured for surest in surest_of.values()):
        verb = "is" if unmeasured == 1 else "are"
        note += f" {counted(unmeasured, 'answer')} without log-probabilities {verb} left out."
    table = _table("system", certainty_columns(surest_of))
    curves = f'<div class="charts">{certainty_charts(surest_of)}</div>'
    return f"{section}{table}<p><small>{_html(note)}</small></p>{curves}{lists}"


def _answers_by_uncertainty(
    run: Run, system: str, answers: Sequence[tuple[Row, CalibrationRow]], *, is_open: bool
) -> str:
    metric = next((name for name in run.measures if name in run.metrics), "")
    scores = run.values(system, metric) if metric else {}
    lines = ""
    for row, of in answers[:MAX_SUREST]:
        kind = _right_or_wrong(scores.get(row.question.key))
        text = "" if row.answer is None else shorten(row.answer.text, MAX_LINE)
        cells = {
            "question": shorten(row.question.text, MAX_LINE),
            "answer": text,
            "uncertainty": _uncertainty_text(of.uncertainty),
        }
        if scores:
            cells["right?"] = kind or "not scored"
        lines += f'<tr class="{kind}">{"".join(_cell(*cell) for cell in cells.items())}</tr>'
    head = "".join(f"<th>{name}</th>" for name in cells)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
    more = len(answers) - MAX_SUREST
    table += f"<p>{counted(more, 'less certain answer')} not listed.</p>" if more > 0 else ""
    title = f"{_html(system)}: {counted(len(answers), 'answer')}, the surest first"
    return f'<details class="answers"{" open" * is_open}><summary>{title}</summary>{table}</details>'


def _uncertainty_text(uncertainty: float) -> str:
    return "empty or cut off" if uncertainty == math.inf else f"{uncertainty:.2g}"


_UNPLACED = "unplaced"
"""Class of the segment for wrong answers whose place (:meth:`Causes.place`) is not known."""


def _causes_section(run: Run, why: Causes, sentences: Sequence[str]) -> str:
    if not sentences:
        return ""
    counts: dict[str, dict[str, int]] = {}
    for system in run.comparable:
        if why.reports_passages(system):
            places = {str(place): n for place, n in why.count(system).items()}
            counts[system] = {**places, _UNPLACED: why.count_wrong(system) - sum(places.values())}
    text = f"<p>{_html(' '.join(sentences))}</p>"
    if not counts:
        return f'<section class="causes">{text}</section>'
    bars = "".join(_causes_bar(system, of) for system, of in counts.items())
    shown = [place for place in PLACES if why.names is not None or place != "nowhere"]
    texts: dict[str, str] = {
        place: "The reference answer {1}: improve {0}.".format(*remedy_of(why, place)) for place in shown
    }
    if any(of[_UNPLACED] for of in counts.values()):
        texts[_UNPLACED] = (
            'The reference answer is only yes, no, a letter or "I do not know.", so a search for its words '
            "proves nothing."
        )
    legend = "".join(f'<li><i class="{place}"></i>{_html(text)}</li>' for place, text in texts.items())
    note = (
        "The search for a reference answer compares words, like the metric “contains”. A passage with the "
        "same meaning in other words is not found."
    )
    legend = f'<ul class="legend">{legend}</ul><p><small>{_html(note)}</small></p>'
    return f'<section class="causes">{text}<dl>{bars}</dl>{legend}</section>'


def _causes_bar(system: str, counts: Mapping[str, int]) -> str:
    total, parts = sum(counts.values()), ""
    for place, n in counts.items():
        if n:
            percent = 100 * n / total
            label = str(n) if percent > 4 else ""
            parts += f'<span class="{place}" style="width:{percent:.2f}%">{label}</span>'
    return f'<dt>{_html(system)}: {total} wrong</dt><dd><div class="bar">{parts}</div></dd>'


def _notes_on_files(run: Run) -> str:
    text = ""
    for fact, one, many in (
        (SKIPPED, "One file was not read", "files were not read"),
        (
            NOTES,
            "One note on a file that may have been read wrongly",
            "notes on files that may have been read wrongly",
        ),
    ):
        lines = [line for line in run.about.get(fact, "").splitlines() if line != "none"]
        if lines:
            items = "".join(f"<li>{_html(line)}</li>" for line in lines)
            title = one if len(lines) == 1 else f"{len(lines)} {many}"
            text += f"<details><summary>{title}</summary><ul>{items}</ul></details>"
    return text


def _passages_section(run: Run, margin: float) -> str:
    counts = passage_counts(run, margin)
    if not counts:
        return ""
    metric = next(name for name in run.measures if name in run.metrics)
    right = summarize(run, metric)
    columns: dict[str, dict[str, str]] = {
        "passages": {one.system: str(one.passages) for one in counts},
        metric: {one.system: estimate_text(right[one.system]) for one in counts},
        f"Δ to {counts[0].passages}": {one.system: estimate_text(one.difference, "+") for one in counts},
    }
    for cost in COSTS:
        means = summarize(run, cost)
        values = {one.system: (mean := means[one.system]) and mean.value for one in counts}
        columns[cost] = _cells(values, number_text)
    sentences = _list(numbers_of_passages(run, margin))
    return f"<h2>How many passages?</h2>{sentences}{_table('system', columns)}"


def _cell(name: str, text: str) -> str:
    value, bracket, interval = text.partition(" [")
    small = f"<br><small> [{_html(interval)}</small>" if bracket else ""
    return f'<td data-label="{_html(name)}"><span>{_html(value)}{small}</span></td>'


_KINDS = {
    "differ": "Only some systems are right",
    "wrong": "No system is right",
    "right": "Every system is right",
    "": "Without a reference answer",
}


def _question_list(run: Run, why: Causes) -> str:
    systems = run.comparable
    metric = next((name for name in run.measures if name in run.metrics), "")
    scores = {system: run.values(system, metric) if metric else {} for system in systems}
    by_key: dict[str, list[Row]] = {}
    for row in run.rows:
        if row.system in systems:
            by_key.setdefault(row.question.key, []).append(row)
    groups: dict[str, list[list[Row]]] = {kind: [] for kind in _KINDS}
    for key, rows in by_key.items():
        kinds = {_right_or_wrong(scores[row.system].get(key)) for row in rows} - {""}
        groups["differ" if len(kinds) > 1 else next(iter(kinds), "")].append(rows)
    text, n_left = "", MAX_QUESTIONS
    for kind, questions in groups.items():
        if questions[:n_left]:
            items = "".join(_question_details(run, rows, metric, scores, why) for rows in questions[:n_left])
            text += f"<h3>{_KINDS[kind]} ({len(questions):,})</h3>{items}"
        n_left -= len(questions[:n_left])
    more = len(by_key) - MAX_QUESTIONS
    return text + (f"<p>{more:,} more questions are in the run.</p>" if more > 0 else "")


def _right_or_wrong(score: float | None) -> str:
    return "" if score is None else "right" if score >= RIGHT else "wrong"


def _question_details(
    run: Run,
    rows: Sequence[Row],
    metric: str,
    scores: Mapping[str, Mapping[str, float]],
    why: Causes,
) -> str:
    question, key = rows[0].question, rows[0].question.key
    answers = ""
    if question.references:
        answers = f"<dt>reference</dt><dd>{_html(' | '.join(question.references))}</dd>"
    passages, sources = dict[str, int](), dict[str, str]()  # numbers and sources of the shown passages
    for row in rows:
        score, in_prompt = scores[row.system].get(key), ""
        if row.answer is not None:
            numbers = [passages.setdefault(one, len(passages) + 1) for one in row.answer.contexts]
            sources |= dict(zip(row.answer.contexts, row.answer.sources, strict=False))
            in_prompt = _passages_text(numbers, row.answer.n_summaries)
        detail = [_score_text(metric, score), *_details(run, row), in_prompt, _where(why, row)]
        text = row.error if row.answer is None else row.answer.text
        small = f"<small>{_html('; '.join(filter(None, detail)))}</small>"
        kind = _right_or_wrong(score)
        answers += f'<dt>{_html(row.system)}</dt><dd class="{kind}">{_html(text)}<br>{small}</dd>'
    is_wrong = any(_right_or_wrong(scores[row.system].get(key)) == "wrong" for row in rows)
    listed = "".join(
        _passage_item(text, sources.get(text, ""), holds=is_wrong and why.holds(text, question))
        for text in passages
    )
    seen = f"<details><summary>passages</summary><ol>{listed}</ol></details>" if listed else ""
    return f"<details><summary>{_html(question.text)}</summary><dl>{answers}</dl>{seen}</details>"


def _score_text(metric: str, score: float | None) -> str:
    if score is None:
        return ""
    return _right_or_wrong(score) if score in (0, 1) else f"{metric} {score:.2f}"


def _passages_text(numbers: Sequence[int], n_summaries: int) -> str:
    kinds = {
        ("summary", "summaries"): numbers[:n_summaries],
        ("passage", "passages"): numbers[n_summaries:],
    }
    texts = [f"{nouns[len(some) > 1]} {', '.join(map(str, some))}" for nouns, some in kinds.items() if some]
    return f"{' and '.join(texts)} in the prompt" if texts else ""


def _passage_item(text: str, source: str, *, holds: bool) -> str:
    head = ": ".join(filter(None, [source, "contains the reference answer" if holds else ""]))
    head = f"<b>{_html(head)}</b>\n" if head else ""
    excerpt = f"{text[:MAX_CHARACTERS]} …" if len(text) > MAX_CHARACTERS else text
    return f"<li>{head}{_html(excerpt)}</li>"


def _where(why: Causes, row: Row) -> str:
    place, names = why.place(row), (why.names or {}).get(row.question.key, ())
    if place is None:
        return ""
    documents = f" ({', '.join(names)})" if place == "elsewhere" and names else ""
    return f"the reference answer {remedy_of(why, place)[1]}{documents}"


def _details(run: Run, row: Row) -> list[str]:
    answer, settings = row.answer, run.settings(row.system)
    if answer is None:
        return ["failed"]
    detail = [] if answer.acted is None else [_decision(answer, settings)]
    if answer.query not in ("", row.question.text):
        detail.append(f"searched for “{answer.query}”")
    # The reason of L-RAG's decision already contains the score.
    if answer.uncertainty is not None and f"{answer.uncertainty:.3g}" not in answer.reason:
        options = settings.get("options", settings)
        gate = answer.gate or options.get("metric") or options.get("gate")
        name = gate if isinstance(gate, str) else "uncertainty"
        detail.append(f"{name.replace('_', ' ')} {answer.uncertainty:.2g}")
    if answer.certainty is not None and answer.certainty.uncertainty is not None:
        detail.append(f"uncertainty of the answer {answer.certainty.uncertainty:.2g}")
    if answer.finish == "length":
        detail.append("cut off at the maximum length")
    return [*detail, *([] if row.tokens is None else [counted(row.tokens, "token")])]


def _decision(answer: EvaluationAnswer, settings: Mapping[str, Any]) -> str:
    # Only query rewriting reports both a decision and a query.
    pipeline = pipeline_of(settings) or (PIPELINES["rewritten"] if answer.query else Pipeline())
    did, did_not = pipeline.acted
    return f"{did if answer.acted else did_not}{f' ({answer.reason})' if answer.reason else ''}"


def _html(text: str) -> str:
    return escape(printable(text))
