"""The regimes as tables for a terminal of eighty columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from surerag.evaluation.formatting import plain_table
from surerag.evaluation.statistics import Estimate, Proportion
from surerag.world.regimes import REGIMES
from surerag_studies.claims import claims_table
from surerag_studies.regimes.measuring import Figures
from surerag_studies.regimes.study import RegimesStudy
from surerag_studies.transfer import carrying

_KINDS = "the kinds of trouble"
_SHARES = "their shares, which were chosen so that the records look like a real reader's"


def study_tables(study: RegimesStudy) -> RenderableType:
    """Return every table of the study."""
    heading = Text.assemble(
        ("Regimes of the closed world", "bold"),
        f", seed {study.seed}, n = {study.n:,} each\nReader {study.model}; encoder {study.encoder}.\n",
        "First answers from the nearest summary, second ones with retrieved passages. Intervals are 95 %.",
    )
    return Group(
        Padding(heading, (0, 0, 1, 0)),
        summaries_table(),
        answers_table(study),
        doubt_table(study),
        claims_table(study.claims),
    )


def summaries_table() -> Table:
    """Say what misleads in each regime."""
    table = plain_table("What misleads")
    table.add_column("Regime", no_wrap=True)
    table.add_column("")
    for one in REGIMES.values():
        table.add_row(one.name, one.summary)
    return table


def answers_table(study: RegimesStudy) -> Table:
    """Show what is right without and with retrieval."""
    table = plain_table(
        "Right answers, and questions that retrieval helps and hurts, %", padding=(0, 1, 0, 0)
    )
    table.add_column("Records", no_wrap=True)
    for name in ("Without", "With", "Helps", "Hurts"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in (*study.worlds, *study.real):
        _section(table, one, study)
        table.add_row(one.name, *map(_share, (one.without, one.with_, one.helps, one.hurts)))
    table.caption = "NQ and TriviaQA: records of Llama-3.1-8B-Instruct (AdaRAGUE), with BM25, n = 500 each."
    return carrying(table, _KINDS, _SHARES)


def doubt_table(study: RegimesStudy) -> Table:
    """Show what doubt, the first answer's perplexity, tells."""
    table = plain_table("What doubt tells (perplexity of the first answer)", padding=(0, 1, 0, 0))
    table.add_column("Records", no_wrap=True)
    for name in (
        "Wrong, surer\nhalf, %",
        "AUROC,\nwrong",
        "AUROC,\nhelps",
        "Gain,\npoints",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for one in (*study.worlds, *study.real):
        _section(table, one, study)
        gain = one.gain
        table.add_row(
            one.name,
            _share(one.surely_wrong),
            _area(one.wrong),
            _area(one.benefit),
            f"{100 * gain.value:+.1f}\n[{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]",
        )
    table.caption = (
        "Gain: accuracy where the half of the questions with the most doubt retrieves, less that of a random "
        "half. The real reader's doubt is that of another prompt than its answers."
    )
    return carrying(table, _KINDS, _SHARES)


def _section(table: Table, one: Figures, study: RegimesStudy) -> None:
    if study.real and one is study.real[0]:
        table.add_section()


def _share(found: Proportion) -> str:
    return f"{100 * found.value:.1f}\n[{100 * found.low:.1f}, {100 * found.high:.1f}]"


def _area(found: Estimate | None) -> str:
    return "n/a" if found is None else f"{found.value:.2f}\n[{found.low:.2f}, {found.high:.2f}]"
