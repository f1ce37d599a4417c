"""A gate in tables, for a terminal of sixty columns or more."""

from __future__ import annotations

from rich.table import Table

from surerag.evaluation.formatting import percent, percent_with_interval, plain_table
from surerag.evaluation.gate.results import GateReport
from surerag.evaluation.gate.timing import LatencyTable


def modes_table(report: GateReport) -> Table:
    """Table I: what each mode gets right, and what it costs."""
    table = plain_table("Accuracy and cost by mode (cf. L-RAG, Table I)")
    # On a narrow terminal these two fold; figures never do.
    table.add_column("Mode")
    table.add_column("Accuracy, %", justify="right")
    for name in ("Retrieval\nrate", "Tokens\nread", "of these\nto answer"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.modes:
        table.add_row(
            row.label,
            percent_with_interval(row.accuracy),
            percent(row.retrieval.value) if row.retrieval else "n/a",
            f"{row.prompt_tokens:.0f}",
            f"{row.answer_tokens:.0f}",
            style="bold" if row.threshold == report.calibration.threshold.value else None,
        )
    found = report.calibration
    seed = "" if found.seed is None else f" of seed {found.seed}"
    table.caption = (
        f"Calibrated τ = {found.threshold.value:.3f} nats: the lower end of [{found.threshold.low:.3f}, "
        f"{found.threshold.high:.3f}], the interval of {found.rule}, on {found.n:,} questions{seed}. There: "
        f"accuracy {percent(found.accuracy)}, retrieval {percent(found.retrieval_rate)}."
    )
    return table


def costs_table(report: GateReport, latency: LatencyTable) -> Table:
    """What a question costs in each mode."""
    table = plain_table("A question costs")
    table.add_column("Mode")
    priced = report.modes[0].money is not None
    heads = ("Tokens\nread", "of these\ncached", "written", "Calls", "ms")
    for name in (*heads, *([f"{report.modes[0].currency}\nper 1,000"] if priced else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for row, took in zip(report.modes, latency.modes, strict=True):
        cells = [f"{row.prompt_tokens:.0f}", f"{row.cached_tokens:.0f}", f"{row.completion_tokens:.1f}"]
        cells += [f"{row.calls:.2f}", f"{took.measured:.0f}"]
        table.add_row(row.label, *cells, *([] if row.money is None else [f"{row.money:.3g}"]))
    told = "" if priced else f" Money is unknown: {report.model} has no price by the token."
    table.caption = f"Milliseconds of questions asked one by one, with retrieval as it is here.{told}"
    return table


def gate_table(report: GateReport) -> Table:
    """What the gate knows, saves and costs at the calibrated threshold."""
    table = plain_table(f"The gate at the calibrated τ; intervals are {percent(report.confidence, 0)}")
    table.add_column("")
    table.add_column("Value", justify="right")
    table.add_column("Interval", justify="right")
    chosen = report.calibrated
    if chosen.retrieval is not None:
        rate = chosen.retrieval
        interval = f"[{percent(1 - rate.high)}, {percent(1 - rate.low)}]"
        table.add_row("Retrievals saved", percent(1 - rate.value), interval)
    cost = chosen.against_standard
    low, high = f"{100 * cost.low:+.1f}", f"{100 * cost.high:+.1f}"
    table.add_row(
        "Accuracy less that of standard RAG, points", f"{100 * cost.value:+.1f}", f"[{low}, {high}]"
    )
    if report.separation is not None:
        area = report.separation.auroc
        interval = f"[{area.low:.3f}, {area.high:.3f}]"
        table.add_row("AUROC of entropy for wrong first answers", f"{area.value:.3f}", interval)
    return table
