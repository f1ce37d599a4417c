"""The study as tables for a terminal of eighty columns."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from surerag.evaluation.dense.claims import points
from surerag.evaluation.dense.method_tables import cuts_tables, diagnosis_table, methods_tables
from surerag.evaluation.dense.results import DenseStudy, GapRow, Understanding
from surerag.evaluation.formatting import p_value, percent, percent_with_interval
from surerag.evaluation.lazy_rag.tables import plain_table

_JUDGES = {
    "judge": "the reader itself judges which answers mean the same",
    "exact": "the world's accepted forms say which answers mean the same",
}
_SHOWN = 12
"""Thresholds that a table shows; every one is in the JSON."""

_STYLES = {"holds": "green", "does not hold": "bold red", "undecided": "yellow"}


def study_tables(study: DenseStudy) -> RenderableType:
    """Return everything that the study shows."""
    parts: list[RenderableType] = [Padding(_heading(study), (0, 0, 1, 0)), retrievers_table(study)]
    for one in study.measured:
        parts += [intervals_table(one), thresholds_table(one, study.threshold)]
    parts += [*cuts_tables(study), *methods_tables(study), diagnosis_table(study)]
    return Group(*parts, costs_table(study), claims_table(study))


def _heading(study: DenseStudy) -> Text:
    return Text.assemble(
        ("DENSE-RAG on the closed world", "bold"),
        f", seed {study.seed}, n = {study.n:,} questions\n",
        f"Reader {study.model}; encoder {study.encoder}; k = {study.k} of {study.pool} retrieved\n",
        f"Corpus: {study.corpus:,} passages, {percent(study.redundancy, 0)} of them repeat others, "
        f"{study.outdated} are outdated.\n",
        f"Entailment: {_JUDGES[study.entailment]}.\n",
        f"As a judge, the reader is right on {percent_with_interval(study.judge)} % of "
        f"{study.judge.n:,} pairs.\n",
        f"Chunks: T_max = {study.t_max} words and marks, the corpus' longest passage (512 tokens in the "
        f"paper); τ = {study.tau:.3f}, the median of this corpus and encoder (0.6 in the paper).\n",
        f"Certain: DENSE up to {study.threshold:g} nats. Intervals are {percent(study.confidence, 0)}, over "
        "questions; differences are in points of percent.",
    )


def retrievers_table(study: DenseStudy) -> Table:
    """What the contexts are like."""
    table = plain_table(f"Contexts of mixed quality: retrievers took turns, k = {study.k}")
    table.add_column("Retriever", no_wrap=True)
    for name in ("n", "Tells\nall, %", "Accuracy, %", "Uncer-\ntain, %", "Certain less\nuncertain"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in study.retrievers:
        table.add_row(
            row.name,
            str(row.accuracy.n),
            f"{100 * row.told.value:.1f}",
            percent_with_interval(row.accuracy),
            f"{100 * row.uncertain.value:.1f}",
            "n/a" if row.gap is None else points(row.gap, digits=0),
        )
    table.caption = "Tells all: the k passages hold every fact that the answer follows from."
    return table


def intervals_table(one: Understanding) -> Table:
    """Figure 2."""
    table = plain_table(f"Accuracy by DENSE, k = {one.k} (form of Figure 2), n = {one.n:,}")
    table.add_column("DENSE, nats", no_wrap=True)
    for name in ("n", "Accuracy, %"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in one.intervals:
        bar = "█" * round(30 * row.accuracy.value)
        high = "" if math.isinf(row.high) else f"{row.high:g}"
        name = f"{row.low:g} to {high}" if high else f"above {row.low:g}"
        table.add_row(name, str(row.accuracy.n), percent_with_interval(row.accuracy), bar)
    fall = one.trend.correlation
    test = "no trend to test: all are alike"
    if math.isfinite(fall.value):
        test = (
            f"r = {fall.value:+.3f} [{fall.low:+.3f}, {fall.high:+.3f}], z = {one.trend.z:.2f}, "
            f"p {p_value(one.trend.p)} (Cochran and Armitage, one-sided)"
        )
    table.caption = (
        f"Trend: {test}. Accuracy of the contexts as they are: {percent_with_interval(one.unchanged)} %; "
        f"with one passage rephrased {points(one.edited)}, with all of them {points(one.rephrased)} points."
    )
    return table


def thresholds_table(one: Understanding, threshold: float) -> Table:
    """Figures 3 and 4."""
    rows = shown_thresholds(one, threshold)
    title = f"Certain against uncertain, k = {one.k} (form of Figures 3 and 4)"
    table = plain_table(title)
    table.add_column("Threshold", justify="right", no_wrap=True)
    for name in ("n", "Certain, %", "n", "Uncertain, %", "Gap, points"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            f"{row.threshold:.3f}",
            str(row.certain.n),
            f"{100 * row.certain.value:.1f}",
            str(row.uncertain.n),
            f"{100 * row.uncertain.value:.1f}",
            points(row.gap),
            style="bold" if row is one.gap else None,
        )
    main = one.gap
    table.caption = (
        f"DENSE takes {len(one.thresholds)} values that part these questions; {len(rows)} rows are shown, "
        "all are in the JSON. "
    )
    if main is not None:
        table.caption += (
            f"Bold: the method's threshold; certain {percent_with_interval(main.certain)} %, "
            f"uncertain {percent_with_interval(main.uncertain)} %."
        )
    return table


def shown_thresholds(one: Understanding, threshold: float) -> list[GapRow]:
    """Return the method's threshold, and of all others as many as a table can hold, evenly."""
    rows = list(one.thresholds)
    if len(rows) > _SHOWN:
        rows = [rows[round(at * (len(rows) - 1) / (_SHOWN - 1))] for at in range(_SHOWN)]
    if one.gap is not None:
        rows = [*rows, one.gap]
    return sorted(rows, key=lambda row: row.threshold)


def costs_table(study: DenseStudy) -> Table:
    """What the study took."""
    table = plain_table("What it took")
    table.add_column("Stage", no_wrap=True)
    for name in ("Prompts", "Tokens", "Pairs judged", "Seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for cost in study.costs:
        counts = (cost.prompts, cost.prompt_tokens, cost.judged)
        table.add_row(cost.stage, *(f"{count:,}" for count in counts), f"{cost.seconds:.1f}")
    table.caption = "What was asked before is not asked again, and not counted."
    return table


def claims_table(study: DenseStudy) -> Table:
    """What it was to show."""
    table = plain_table("What it was to show")
    table.add_column("Claim", ratio=5)
    table.add_column("Found", ratio=4)
    table.add_column("", no_wrap=True)
    for claim in study.claims:
        table.add_row(claim.statement, claim.finding, Text(claim.verdict, style=_STYLES[claim.verdict]))
    table.caption = (
        "Undecided: the interval holds 0, or the p-value is not small after correction for the number of "
        "comparisons."
    )
    return table
