"""A comparison as tables for a terminal: narrow ones, so that none loses a digit at sixty columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from surerag.evaluation.ci.condition import SHARES
from surerag.evaluation.formatting import plain_table
from surerag.evaluation.statistics import Estimate
from surerag.evaluation.systems.estimating import Expected, total_of
from surerag.evaluation.systems.results import Difference, SystemsReport, Verdict
from surerag.prices import Costs


def systems_table(report: SystemsReport) -> Table:
    """What each system measures, with intervals: a row for each system and measure that is not the same."""
    names = [name for name in report.systems[0].measures if name != report.measure]
    table = plain_table(f"{title(report.measure)}, on {report.questions:,} questions")
    table.add_column("System", overflow="fold")
    table.add_column(f"{report.confidence:.0%} interval", justify="right", no_wrap=True)
    table.add_column("Retrieves", justify="right", no_wrap=True)
    table.add_column("Also", overflow="fold")
    for one in report.systems:
        measured = [name for name in names if name in one.measures]
        also = [f"{title(name)} {level(name, one.measures[name].value)}" for name in measured]
        if one.failed:
            also.append(f"{one.failed} failed")
        main = one.measures.get(report.measure)
        table.add_row(
            one.name,
            "not measured" if main is None else estimate(report.measure, main),
            "" if one.retrieved is None else f"{100 * one.retrieved:.0f} %",
            ", ".join(also),
        )
    return table


def costs_table(report: SystemsReport) -> Table:
    """What a question costs with each system."""
    table = plain_table("A question costs")
    table.add_column("System", overflow="fold")
    for head in ("tokens", "cached", "calls", "seconds", report.currency or "money"):
        table.add_column(head, justify="right", no_wrap=True)
    for one in report.systems:
        costs = one.costs
        table.add_row(
            one.name,
            _known(costs.get("tokens"), ",.0f"),
            f"{100 * one.cached:.0f} %" if costs.get("tokens") else "unknown",
            _known(costs.get("calls"), ".1f"),
            _known(costs.get("seconds"), ".3g"),
            f"{costs['money']:.2g}" if "money" in costs else "unknown",
        )
    return table


def _known(value: float | None, form: str) -> str:
    """Write a cost; one of nothing was not told."""
    return format(value, form) if value else "unknown"


def verdicts_table(report: SystemsReport) -> Table:
    """How each system stands to the baseline."""
    table = plain_table(f"Against {report.baseline}, on the same questions")
    table.add_column("System", overflow="fold")
    table.add_column(title(report.measure), justify="right", no_wrap=True)
    table.add_column("p, corrected", justify="right", no_wrap=True)
    table.add_column("Shown to be", overflow="fold")
    for one in report.verdicts:
        found = report.difference(one.system)
        told = difference(report.measure, found)
        table.add_row(one.system, told, f"{found.p_holm:.2g}", standing(one, report))
    return table


def estimate_table(costs: Sequence[Expected]) -> Table:
    """What is to come."""
    table = plain_table("To be asked, estimated on its first questions")
    table.add_column("System", overflow="fold")
    for head in ("calls", "at most", "tokens in", "tokens out", "money"):
        table.add_column(head, justify="right", no_wrap=True)
    for one in costs:
        table.add_row(one.system, *_expected(one.expected, one.most_calls))
    table.add_row("together", *_expected(total_of(costs), sum(one.most_calls for one in costs)))
    table.caption = "What systems ask alike is asked once. Answers are counted as long as they may be."
    return table


def _expected(costs: Costs, most: int) -> tuple[str, ...]:
    money = "unknown" if costs.money is None else f"{costs.money:.2g} {costs.currency}"
    return f"{costs.calls:,}", f"{most:,}", f"{costs.prompt_tokens:,}", f"{costs.completion_tokens:,}", money


def standing(one: Verdict, report: SystemsReport) -> str:
    """Say how a system stands, in words."""
    price = {True: f", fewer {report.cost}", False: f", no fewer {report.cost}", None: ""}[one.cheaper]
    if report.cost in ("money", "seconds"):
        price = price.replace("fewer", "less")
    more = f" (about {one.more:,} more questions)" if one.more is not None else ""
    return f"{one.standing}{more}{price}"


def level(measure: str, value: float) -> str:
    """Write a measure in its unit."""
    return f"{100 * value:.1f}" if measure in SHARES else f"{value:.3f}"


def estimate(measure: str, found: Estimate) -> str:
    """Write a measure with its interval."""
    low, high = level(measure, found.low), level(measure, found.high)
    return f"{level(measure, found.value)} [{low}, {high}]"


def difference(measure: str, found: Difference) -> str:
    """Write a difference with its interval."""
    scale, digits = (100, 1) if measure in SHARES else (1, 3)
    values = (found.value, found.low, found.high)
    told = [f"{scale * value:+.{digits}f}" for value in values]
    return f"{told[0]} [{told[1]}, {told[2]}]"


def title(measure: str) -> str:
    """Name a measure at the beginning of a sentence."""
    return {
        "f1": "F1",
        "delta_seper": "ΔSePer",
        "agreement": "Agreement with the reference",
    }.get(measure, measure.replace("_", " ").capitalize())
