"""The stages of training as a table."""

from __future__ import annotations

from rich.table import Table

from surerag.evaluation.dynqr.training_results import StageRow, TrainingStudy
from surerag.evaluation.formatting import percent, percent_with_interval
from surerag.evaluation.lazy_rag.tables import plain_table
from surerag.evaluation.statistics import PairedDifference


def training_table(study: TrainingStudy) -> Table:
    """What each stage of training does to the reader's uncertainty."""
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
    return "" if gap is None else f"{gap.value:+.2f} [{gap.low:+.2f}, {gap.high:+.2f}]"
