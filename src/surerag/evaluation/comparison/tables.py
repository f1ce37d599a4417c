"""A comparison as the terminal shows it."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from surerag.evaluation.comparison.results import SystemComparison, bracketed, signed
from surerag.evaluation.formatting import percent, plain_table


def systems_table(comparison: SystemComparison) -> Table:
    """Show what each system was worth, the best first."""
    table = plain_table("What retrieval was worth to this reader")
    table.add_column("System", min_width=8)
    for name in ("n", f"Mean ΔSePer [{percent(comparison.confidence, 0)}]", "SePer", "Helped", "Harmed"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in comparison.systems:
        table.add_row(
            Text(row.system),
            f"{row.n:,}",
            f"{signed(row.delta.value)} {bracketed(row.delta)}",
            f"{_level(row.before)} → {_level(row.after)}",
            percent(row.helped.value),
            percent(row.harmed.value),
        )
    return table


def tests_table(comparison: SystemComparison) -> Table:
    """Show which differences are more than noise."""
    table = plain_table(f"Differences on the same questions (paired {comparison.test} test, Holm)")
    table.add_column("Better")
    table.add_column("Than")
    for name in ("n", f"Difference [{percent(comparison.confidence, 0)}]", "p", "p, Holm"):
        table.add_column(name, justify="right", no_wrap=True)
    for test in comparison.tests:
        table.add_row(
            Text(test.first),
            Text(test.second),
            f"{test.n:,}",
            f"{signed(test.difference.value)} {bracketed(test.difference)}",
            f"{test.p:.2g}",
            f"{test.p_holm:.2g}",
            style="bold" if test.significant else None,
        )
    return table


def _level(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"
