"""The study as tables for a terminal of eighty columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from surerag.evaluation.differences import PairedDifference
from surerag.evaluation.formatting import percent, percent_with_interval, plain_table
from surerag.evaluation.statistics import Proportion
from surerag_studies.claims import claims_table
from surerag_studies.dynqr.choosing import choices_table
from surerag_studies.dynqr.results import DynQRStudy, Row, StageRow, Threshold, TrainingStudy
from surerag_studies.formatting import interval, points
from surerag_studies.transfer import CLAIMS, RATES, SIZES, carrying
from surerag_studies.worlds import place_of

METRIC_NAMES = {
    "perplexity": "Perplexity",
    "ln_entropy": "LN-entropy",
    "token_entropy": "Token entropy",
    "lowest_probability": "Lowest prob.",
    "energy": "Energy",
}


def study_tables(study: DynQRStudy) -> RenderableType:
    """Return every table of the study."""
    return Group(
        Padding(heading(study), (0, 0, 1, 0)),
        carrying(rows_table(study), None, RATES),
        carrying(cost_table(study), "calls and retrievals of an answer that is rewritten, or not", RATES),
        carrying(kinds_table(study), None, RATES),
        carrying(sweep_table(study), "that fewer questions are rewritten as θ rises", RATES),
        carrying(choices_table(study.choices), "that a larger sample chooses more steadily", RATES),
        carrying(metrics_table(study), None, RATES),
        carrying(gold_table(study), None, "how often uncertainty falls"),
        *(carrying(training_table(found), None) for found in [study.training] if found is not None),
        carrying(claims_table(study.claims), CLAIMS, SIZES),
    )


def heading(study: DynQRStudy) -> Text:
    """Name the run."""
    return Text.assemble(
        (f"DynQR on {place_of(study.regime)}", "bold"),
        f", seed {study.seed}, n = {study.n:,}\n",
        f"Reader and rewriter {study.model}; encoder {study.encoder}; k = {study.k}\n",
        f"Intervals are {percent(study.confidence, 0)}; differences are paired, in points.",
    )


def rows_table(study: DynQRStudy) -> Table:
    """Tables 1 and 2: what rewriting gets right, and what each part of the method adds."""
    table = plain_table("Accuracy, % (cf. DynQR, Tables 1 and 2)")
    table.add_column("", no_wrap=True)
    for name in ("All", "Vague", "Clear", "vs original query"):
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
    found = ", ".join(f"{_shown(one)} ({one.documents})" for one in study.thresholds)
    table.caption = (
        f"Vague: under-specified questions. Calibrated θ = {found}: the lower end of the interval of "
        f"{study.rule}, on {study.n_calibration:,} questions of seed {study.calibration_seed}."
    )
    return table


def cost_table(study: DynQRStudy) -> Table:
    """Cost of a question each way, and the loss against rewriting always."""
    table = plain_table("Accuracy against rewriting always, and cost per question")
    table.add_column("", no_wrap=True)
    for name in ("vs always", "Re-\nwrites", "Search", "Calls", "Tokens\nread"):
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
    for name in ("Original", "Always", "DynQR", "Re-\nwritten", "DynQR vs original"):
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
    table = plain_table("Threshold sweep (cf. DynQR, Table 3)")
    for name in ("θ, perplexity", "Rewritten, %", "Substitute, %", "Expand, %"):
        table.add_column(name, justify="right")
    for point in study.sweep:
        table.add_row(
            f"{point.threshold:.4f}",
            percent_with_interval(point.rewritten),
            percent_with_interval(point.substitute),
            percent_with_interval(point.expand),
        )
    return table


def metrics_table(study: DynQRStudy) -> Table:
    """Table 5: the uncertainties compared, each at its own θ."""
    table = plain_table("Uncertainties compared, substitute, in % (cf. DynQR, Table 5)")
    table.add_column("", no_wrap=True)
    for name in ("θ", "Re-\nwritten", "Accuracy", "vs perplexity", "AUROC"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in study.metrics:
        table.add_row(
            METRIC_NAMES[row.metric],
            _shown(row.threshold),
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
    table = plain_table("A gold passage replaces one at random (cf. DynQR, Figure 3)")
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
    table.caption = "Questions for which a gold passage was not retrieved."
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


def _shown(threshold: Threshold) -> str:
    return f"{threshold.threshold.value:.3f}"


def _share(share: Proportion | None) -> str:
    return "n/a" if share is None else f"{100 * share.value:.1f}"


def _gap(gap: PairedDifference | None) -> str:
    return "" if gap is None else points(gap)


def training_table(study: TrainingStudy) -> Table:
    """The reader's uncertainty after each stage of training."""
    table = plain_table("Rewriters on held-out queries, by stage of training")
    table.add_column("", no_wrap=True)
    for name in ("Clear", "Per-\nplexity", "Change of\nits log", "Accuracy, %"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in study.stages:
        table.add_row(*_cells(row))
    table.add_section()
    table.add_row("Other rewards", style="italic")
    for row in study.rewards:
        table.add_row(*_cells(row))
    table.caption = (
        f"Base {study.base}, teacher {study.teacher}; {study.n_distil:,} queries to distil, "
        f"{study.n_align:,} to align with {study.rewrites} rewrites each, {study.n_held_out:,} held out. "
        "Perplexity: geometric mean. Change: paired, against the row before; of other rewards, against the "
        "distilled rewriter. Clear: rewrites that are the question in the world's own words. "
        f"{study.seconds / 60:.1f} minutes in all."
    )
    return table


def _cells(row: StageRow) -> tuple[str, ...]:
    return (
        row.stage.removesuffix(", uncertainty").removeprefix("aligned, "),
        percent(row.clear.value, 0),
        f"{row.uncertainty:.2f}",
        _change(row.against_previous),
        percent_with_interval(row.accuracy),
    )


def _change(gap: PairedDifference | None) -> str:
    return "" if gap is None else interval(gap, 2, "+")
