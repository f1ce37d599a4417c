"""The study as tables for a terminal of eighty columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from surerag.evaluation.formatting import percent, plain_table
from surerag_studies.decisions.results import DecisionStudy
from surerag_studies.decisions.study import MAX_LOSS, RATES, SHIFT_AT, N


def study_tables(study: DecisionStudy) -> RenderableType:
    """Return every table of the study."""
    head = Text.assemble(
        ("Decisions that hold", "bold"),
        f", seed {study.seed}: {study.splits:,} calibrations a cell, on {N} questions each.\n",
        f"Promise: at most {100 * MAX_LOSS:g} points lost against always acting.",
    )
    tables = [promises_table(study), sizes_table(study)]
    tables += [gates_table(study), answers_table(study)] if study.gates else []
    return Group(Padding(head, (0, 0, 1, 0)), *tables, monitors_table(study))


def promises_table(study: DecisionStudy) -> Table:
    """How often promises are broken, and how often a rule acts."""
    table = plain_table("Promises broken, and rates of acting")
    for name in ("Questions", "Conf.", "Rule"):
        table.add_column(name)
    for name in ("Broken", "on rest", "Acts on", "Best", "Gain"):
        table.add_column(name, justify="right")
    last = ""
    for row in study.promises:
        table.add_row(
            row.source if row.source != last else "",
            f"{row.confidence:g}",
            row.rule,
            percent(row.broken),
            "" if row.broken_on_rest is None else percent(row.broken_on_rest),
            percent(row.rate),
            percent(row.best_rate),
            "" if row.gains_shown is None else percent(row.gains_shown),
            style="bold" if row.rule == "certified" else None,
        )
        last = row.source
    table.caption = (
        "Broken: the loss over all questions of the source exceeds the bound; on rest: that on the other "
        "half of the trace does, which has noise of its own. Best: the rule of the kind that knows the "
        "source. Gain: calibrations whose verdict shows a gain over acting at random. "
        "The last two rules have no confidence."
    )
    return table


def sizes_table(study: DecisionStudy) -> Table:
    """How much a valid test may pass."""
    table = plain_table(f"Seen where the loss is just {100 * MAX_LOSS:g} points, of {N} questions")
    table.add_column("Outcomes that do not act")
    table.add_column("Up to", justify="right")
    for row in study.sizes:
        table.add_row(row.outcomes, percent(row.size, 2))
    table.caption = (
        "2:1 are two that acting mends beside one that it spoils. A test passes at most 1 − confidence."
    )
    return table


def gates_table(study: DecisionStudy) -> Table:
    """What signals tell, and what acting on them gains."""
    table = plain_table("Gain over acting at random equally often, points")
    for name in ("Questions", "Signal"):
        table.add_column(name)
    for name in ("wrong", "helps", *(f"at {100 * rate:.0f} %" for rate in RATES)):
        table.add_column(name, justify="right")
    last = ""
    for row in study.gates:
        gains = [f"{value:+.1f} [{low:+.1f}, {high:+.1f}]" for value, low, high in row.gains]
        name = row.source if row.source != last else ""
        table.add_row(name, row.signal, f"{row.auroc_wrong:.2f}", f"{row.auroc_helps:.2f}", *gains)
        last = row.source
    table.caption = "Wrong, helps: AUROC. Intervals are 95 % for the three rates together."
    return table


def answers_table(study: DecisionStudy) -> Table:
    """What an abstaining reader answers."""
    table = plain_table("Selective answering without retrieval, by perplexity")
    for name in ("Questions", "Risk at most"):
        table.add_column(name)
    for name in ("Broken", "on rest", "Coverage", "Risk", "Over-refused", "Unsupported"):
        table.add_column(name, justify="right")
    for row in study.answers:
        table.add_row(
            row.source,
            percent(row.max_risk, 0),
            percent(row.broken),
            percent(row.broken_on_rest),
            percent(row.coverage),
            percent(row.risk) if row.coverage else "–",
            percent(row.over_refused),
            percent(row.unsupported),
        )
    table.caption = f"Confidence 0.95, calibrated on {N} questions, measured on the others."
    return table


def monitors_table(study: DecisionStudy) -> Table:
    """When a monitor raises an alarm."""
    table = plain_table("Monitor, at most 5 % false alarms a stream of 2,000 questions")
    for name in ("Shift", "Streams", "Alarms", "before it", "Median delay", "90 %"):
        table.add_column(name, justify="right")
    for row in study.monitors:
        delays = ["" if one is None or row.shift == 0 else f"{one:.0f}" for one in (row.delay, row.late)]
        early = "" if row.shift == 0 else percent(row.early)
        table.add_row(f"{row.shift:g} sd", str(row.streams), percent(row.alarms), early, *delays)
    table.caption = f"The signal shifts after {SHIFT_AT} questions; delays are in questions."
    return table
