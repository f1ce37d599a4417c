"""The study as tables for a terminal of eighty columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from surerag.evaluation.dynqr.results import DynQRStudy, Row, Threshold
from surerag.evaluation.dynqr.training_tables import training_table
from surerag.evaluation.formatting import percent, percent_with_interval
from surerag.evaluation.lazy_rag.tables import plain_table
from surerag.evaluation.statistics import PairedDifference, Proportion

METRIC_NAMES = {
    "perplexity": "Perplexity",
    "ln_entropy": "LN-entropy",
    "token_entropy": "Token entropy",
    "lowest_probability": "Lowest prob.",
    "energy": "Energy",
}


def study_tables(study: DynQRStudy) -> RenderableType:
    """Return everything that the study shows."""
    return Group(
        Padding(heading(study), (0, 0, 1, 0)),
        rows_table(study),
        cost_table(study),
        kinds_table(study),
        sweep_table(study),
        metrics_table(study),
        gold_table(study),
        *(training_table(found) for found in [study.training] if found is not None),
        claims_table(study),
    )


def heading(study: DynQRStudy) -> Text:
    """Say what was run."""
    return Text.assemble(
        ("DynQR on the closed world", "bold"),
        f", seed {study.seed}, n = {study.n:,}\n",
        f"Reader and rewriter {study.model}; encoder {study.encoder}; k = {study.k}\n",
        f"Intervals are {percent(study.confidence, 0)}; differences are paired, in points.",
    )


def rows_table(study: DynQRStudy) -> Table:
    """Tables 1 and 2: what rewriting gets right, and what each part of the method adds."""
    table = plain_table("Accuracy, % (form of DynQR, Tables 1 and 2)")
    table.add_column("", no_wrap=True)
    for name in ("All", "Vague", "Clear", "To original query"):
        table.add_column(name, justify="right", no_wrap=True)
    for documents, rows in _by_setting(study.rows).items():
        _section(table, documents)
        for row in rows:
            table.add_row(
                row.label,
                percent_with_interval(row.accuracy),
                _share(row.vague),
                _share(row.clear),
                _gap(row.against_original) if row.label != "Original query" else "",
                style=_style(row),
            )
    thetas = ", ".join(f"{_theta(one)} ({one.documents})" for one in study.thresholds)
    table.caption = (
        f"Vague: under-specified questions. Calibrated θ = {thetas}: the lower end of the interval of "
        f"{study.rule}, on {study.n_calibration:,} questions of seed {study.calibration_seed}."
    )
    return table


def cost_table(study: DynQRStudy) -> Table:
    """What each way costs a question, and what it loses against rewriting always."""
    table = plain_table("Against rewriting always, and cost of a question")
    table.add_column("", no_wrap=True)
    for name in ("To always", "Re-\nwrites", "Search", "Calls", "Tokens\nread"):
        table.add_column(name, justify="right", no_wrap=True)
    for documents, rows in _by_setting(study.rows).items():
        _section(table, documents)
        for row in rows:
            table.add_row(
                row.label,
                _gap(row.against_always) if row.label != "Always rewrite" else "",
                percent(row.rewritten),
                f"{row.retrievals:.2f}",
                f"{row.calls:.2f}",
                f"{row.prompt_tokens:.0f}",
                style=_style(row),
            )
    return table


def kinds_table(study: DynQRStudy) -> Table:
    """Show for which questions rewriting pays."""
    table = plain_table("By kind of question, at the calibrated θ (substitute, in %)")
    table.add_column("", no_wrap=True)
    for name in ("Original", "Always", "DynQR", "Re-\nwritten", "DynQR to original"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in study.kinds:
        table.add_row(
            row.kind,
            _share(row.original),
            _share(row.always),
            _share(row.dynqr),
            _share(row.rewritten),
            _gap(row.against_original),
        )
    table.caption = "Questions: " + ", ".join(f"{row.kind} {row.n:,}" for row in study.kinds) + "."
    return table


def sweep_table(study: DynQRStudy) -> Table:
    """Table 3: accuracy and frequency of rewriting over θ."""
    table = plain_table("Threshold sweep (form of DynQR, Table 3)")
    for name in ("θ, perplexity", "Rewritten, %", "Substitute, %", "Expand, %"):
        table.add_column(name, justify="right")
    for point in study.sweep:
        table.add_row(
            f"{point.theta:.4f}",
            percent_with_interval(point.rewritten),
            percent_with_interval(point.substitute),
            percent_with_interval(point.expand),
        )
    return table


def metrics_table(study: DynQRStudy) -> Table:
    """Table 5: the uncertainties compared, each at its own θ."""
    table = plain_table("Uncertainties compared, substitute, in % (form of DynQR, Table 5)")
    table.add_column("", no_wrap=True)
    for name in ("θ", "Re-\nwritten", "Accuracy", "To perplexity", "AUROC"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in study.metrics:
        table.add_row(
            METRIC_NAMES[row.metric],
            _theta(row.threshold),
            _share(row.rewritten),
            _share(row.accuracy),
            _gap(row.against_perplexity),
            "n/a" if row.separation is None else f"{row.separation.auroc.value:.3f}",
        )
    table.caption = (
        f"LN-entropy over {study.samples} sampled answers. AUROC: how well the first answer's uncertainty "
        "tells wrong ones from right ones."
    )
    return table


def gold_table(study: DynQRStudy) -> Table:
    """Figure 3: what a gold passage in place of one at random does to the reader's uncertainty."""
    table = plain_table("A gold passage replaces one at random (form of DynQR, Figure 3)")
    table.add_column("", no_wrap=True)
    for name in ("n", "Uncertainty\nfalls, %", "Perplexity\nbefore, after", "Right, %"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in study.gold:
        table.add_row(
            row.kind,
            f"{row.falls.n:,}",
            percent_with_interval(row.falls),
            f"{row.before:.3f}, {row.after:.3f}",
            f"{_share(row.correct_before)}, {_share(row.correct_after)}",
        )
    table.caption = "Questions of whose gold passages one was not retrieved."
    return table


def claims_table(study: DynQRStudy) -> Table:
    """What the study was asked to show."""
    table = plain_table("What it was to show")
    table.add_column("Claim", ratio=5)
    table.add_column("Found", ratio=4)
    table.add_column("")
    for claim in study.claims:
        verdict = Text("holds", style="green") if claim.holds else Text("does not hold", style="bold red")
        table.add_row(claim.statement, claim.finding, verdict)
    return table


def _by_setting(rows: tuple[Row, ...]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.documents or "", []).append(row)
    return found


def _section(table: Table, documents: str) -> None:
    """Begin the rows of a setting; those without one come first."""
    if documents:
        table.add_section()
        table.add_row(documents.capitalize(), style="italic")


def _style(row: Row) -> str | None:
    return "bold" if row.label == "DynQR" else None


def _theta(threshold: Threshold) -> str:
    return f"{threshold.theta.value:.3f}"


def _share(share: Proportion | None) -> str:
    return "n/a" if share is None else f"{100 * share.value:.1f}"


def _gap(gap: PairedDifference | None) -> str:
    return "" if gap is None else f"{100 * gap.value:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
