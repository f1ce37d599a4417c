"""The study as tables for a terminal of eighty columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from surerag.evaluation.formatting import percent, percent_with_interval, plain_table
from surerag_studies.claims import claims_table
from surerag_studies.edc2.results import CellFigures, CompressionStudy, MethodFigures
from surerag_studies.formatting import points
from surerag_studies.transfer import CLAIMS, SIZES, carrying
from surerag_studies.worlds import place_of

_LABELS = {
    "plain": "Plain RAG",
    "single": "Each alone",
    "dynamic": "Dynamic",
    "bridged": "Bridging",
    "whole": "One, τ=20",
    "average": "Average",
    "random": "Random",
}


_CALLS = "numbers of calls to compress"


def study_tables(study: CompressionStudy) -> RenderableType:
    """Return every table of the study."""
    noisy = [cell for cell in study.cells if cell.condition.kind == "noise"]
    redundant = [cell for cell in study.cells if cell.condition.kind == "redundancy"]
    parts: list[RenderableType] = [Padding(_heading(study), (0, 0, 1, 0))]
    for top_k in sorted({cell.condition.top_k for cell in noisy}):
        some = [cell for cell in noisy if cell.condition.top_k == top_k]
        parts.append(carrying(_table(f"Noise at top-k {top_k} (cf. Tables 2 and 4)", some), _CALLS))
    if redundant:
        parts.append(carrying(_table("Redundancy at top-k 20 (cf. Table 3)", redundant), _CALLS))
    if study.large is not None:
        cell = study.large
        table = _table(f"Top-k {cell.condition.top_k}, n = {cell.n}", [cell])
        table.caption = "Plain RAG reads the best passages, as many as the window holds."
        parts.append(carrying(table, _CALLS))
    return Group(*parts, carrying(_kinds(study), None), carrying(claims_table(study.claims), CLAIMS, SIZES))


def _heading(study: CompressionStudy) -> Text:
    return Text.assemble(
        (f"EDC²-RAG on {place_of(study.regime)}", "bold"),
        f", seed {study.seed}, n = {study.n:,}\n",
        f"Reader {study.model}; encoder {study.encoder}\n",
        f"Intervals are {percent(study.confidence, 0)}; differences are paired, in points.\n",
        "Fell back: every cluster yielded nothing, so the original passages were shown.\n",
        "Bridging: silent clusters were asked once more, beside what the others yielded.",
    )


def _table(title: str, cells: Sequence[CellFigures]) -> Table:
    table = plain_table(title, padding=(0, 0))
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("Method", no_wrap=True)
    for name in ("Accuracy, %", "vs plain", "Tokens", "Calls", "Fell\nback"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in sorted(cells, key=lambda cell: cell.condition.level):
        for at, row in enumerate(cell.methods):
            level = percent(cell.condition.level, 0) if at == 0 else ""
            table.add_row(level, *_cells(row), end_section=at == len(cell.methods) - 1)
    return table


def _cells(row: MethodFigures) -> tuple[str, ...]:
    return (
        _LABELS[row.method],
        percent_with_interval(row.accuracy),
        "" if row.against_plain is None else points(row.against_plain),
        f"{row.context_tokens:.0f}",
        f"{row.calls:.1f}",
        "" if row.method == "plain" else percent(row.fell_back, 0),
    )


def _kinds(study: CompressionStudy) -> Table:
    table = plain_table("Accuracy by kind of question, %", padding=(0, 1, 0, 0))
    for name in ("Top-k", "", "Method"):
        table.add_column(name, no_wrap=True)
    cells = [*study.cells, *([study.large] if study.large is not None else [])]
    shown = [found.kind for found in cells[0].methods[0].by_kind]
    for kind in shown:
        table.add_column(kind, justify="right", no_wrap=True)
    for cell in cells:
        named = (str(cell.condition.top_k), f"{cell.condition.kind} {percent(cell.condition.level, 0)}")
        for at, row in enumerate(cell.methods):
            figures = {found.kind: f"{100 * found.accuracy.value:.1f}" for found in row.by_kind}
            table.add_row(
                *(named if at == 0 else ("", "")),
                _LABELS[row.method],
                *(figures.get(kind, "") for kind in shown),
                end_section=at == len(cell.methods) - 1,
            )
    return table
