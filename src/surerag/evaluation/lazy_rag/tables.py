"""The study as tables for a terminal of eighty columns."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from surerag.evaluation.formatting import p_value, percent, percent_with_interval
from surerag.evaluation.lazy_rag.results import LatencyModel, LatencyRow, LazyRagStudy
from surerag.evaluation.statistics import Comparison


def study_tables(study: LazyRagStudy) -> RenderableType:
    """Return everything that the study shows."""
    return Group(
        Padding(heading(study), (0, 0, 1, 0)),
        modes_table(study),
        kinds_table(study),
        *(separation_table(found) for found in [study.separation] if found is not None),
        sweep_table(study),
        latency_table(study.latency),
        claims_table(study),
    )


def heading(study: LazyRagStudy) -> Text:
    """Say what was run."""
    level = percent(study.confidence, 0)
    return Text.assemble(
        ("L-RAG on the closed world", "bold"),
        f", seed {study.seed}, n = {study.n:,}\n",
        f"Reader {study.model}; encoder {study.encoder}; k = {study.k}, m = {study.m}\n",
        f"Gate: {study.aggregate} entropy of the first {study.gate_tokens} tokens. Intervals are {level}.",
    )


def modes_table(study: LazyRagStudy) -> Table:
    """Table I: what each mode gets right, and what it costs."""
    table = plain_table("Accuracy and cost by mode (form of L-RAG, Table I)")
    table.add_column("Mode", no_wrap=True)
    for name in ("Accuracy, %", "Retrieval\nrate", "Tokens\nread", "of these\nto answer"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in study.modes:
        table.add_row(
            row.label,
            percent_with_interval(row.accuracy),
            percent(row.retrieval.value) if row.retrieval else "n/a",
            f"{row.prompt_tokens:.0f}",
            f"{row.answer_tokens:.0f}",
            style="bold" if row.tau == study.threshold.tau.value else None,
        )
    tau = study.threshold.tau
    table.caption = (
        f"Calibrated τ = {tau.value:.3f} nats: the lower end of [{tau.low:.3f}, {tau.high:.3f}], the "
        f"interval of {study.threshold.rule}, "
        f"on {study.threshold.n:,} questions of seed {study.threshold.seed}. There: "
        f"accuracy {percent(study.threshold.accuracy)}, retrieval {percent(study.threshold.retrieval_rate)}."
    )
    return table


def kinds_table(study: LazyRagStudy) -> Table:
    """Show for which questions the gate opens."""
    table = plain_table("By kind of question, at the calibrated τ (entropy in nats, shares in %)")
    table.add_column("Kind", no_wrap=True)
    for name in ("n", "Entropy", "Gate\nopens", "First\npass", "Lazy", "Standard"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in study.kinds:
        table.add_row(
            row.kind,
            f"{row.first.n:,}",
            "n/a" if row.entropy is None else f"{row.entropy:.3f}",
            f"{100 * row.retrieval.value:.1f}",
            f"{100 * row.first.value:.1f}",
            f"{100 * row.lazy.value:.1f}",
            f"{100 * row.standard.value:.1f}",
        )
    return table


def separation_table(found: Comparison) -> Table:
    """Entropy of wrong answers against that of right ones, the first pass completed for every question."""
    table = plain_table("Entropy of the completed first pass, wrong answers against right ones")
    table.add_column("")
    table.add_column("Value", justify="right")
    table.add_column("Interval", justify="right")
    table.add_row(f"Mean of wrong answers (n = {found.n_high:,}), nats", f"{found.mean_high:.3f}", "")
    table.add_row(f"Mean of right answers (n = {found.n_low:,}), nats", f"{found.mean_low:.3f}", "")
    table.add_row("Gap, nats", f"{found.gap.value:.3f}", f"[{found.gap.low:.3f}, {found.gap.high:.3f}]")
    table.add_row("Cohen's d", f"{found.cohens_d:.2f}", "")
    table.add_row(
        "AUROC, wrong above right",
        f"{found.auroc.value:.3f}",
        f"[{found.auroc.low:.3f}, {found.auroc.high:.3f}]",
    )
    table.add_row("Welch's t-test", f"p {p_value(found.p_welch)}", "")
    table.add_row("Mann-Whitney test", f"p {p_value(found.p_rank)}", "")
    return table


def sweep_table(study: LazyRagStudy) -> Table:
    """Lazy answering over thresholds (the paper's Table II and Figure 4)."""
    table = plain_table("Threshold sweep (form of L-RAG, Table II)")
    for name in ("τ, nats", "Retrieval, %", "Accuracy, %"):
        table.add_column(name, justify="right")
    for point in study.sweep:
        table.add_row(
            f"{point.tau:.4f}", percent_with_interval(point.retrieval), percent_with_interval(point.accuracy)
        )
    return table


def latency_table(model: LatencyModel) -> Table:
    """Table III: the time that a gate saves a question."""
    table = plain_table(f"Time saved a question in ms, the gate costing {model.gate:.0f} (L-RAG, Table III)")
    table.add_column("Rates")
    table.add_column("Configuration", no_wrap=True)
    table.add_column("Retrieval\nrate", justify="right")
    table.add_column("Break-\neven", justify="right")
    for retrieval in model.retrieval:
        table.add_column(f"{retrieval:.0f} ms", justify="right")
    for title, rows in (("paper", model.published), ("here", model.measured)):
        table.add_section()
        for row in rows:
            table.add_row(title, *_latency_cells(row))
    return table


def claims_table(study: LazyRagStudy) -> Table:
    """What the study was asked to show."""
    table = plain_table("What it was to show")
    table.add_column("Claim", ratio=5)
    table.add_column("Found", ratio=4)
    table.add_column("")
    for claim in study.claims:
        verdict = Text("holds", style="green") if claim.holds else Text("does not hold", style="bold red")
        table.add_row(claim.statement, claim.finding, verdict)
    return table


def _latency_cells(row: LatencyRow) -> tuple[str, ...]:
    break_even = "never" if row.break_even is None else f"{row.break_even:.0f} ms"
    savings = (f"{saving:+.0f}" for saving in row.savings)
    return (row.label, percent(row.retrieval_rate), break_even, *savings)


def plain_table(title: str) -> Table:
    """Return an empty table in the style of all others."""
    return Table(
        title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", caption_justify="left"
    )
