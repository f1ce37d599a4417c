"""The study as tables."""

from __future__ import annotations

from rich.table import Table

from surerag.evaluation.formatting import plain_table
from surerag_studies.compare.study import SYSTEMS, CompareStudy


def worlds_table(found: CompareStudy) -> Table:
    """What was chosen in each world."""
    table = plain_table(
        f"Planted worlds, {found.worlds[0].n} questions each: accuracy, % (tokens a question)"
    )
    table.add_column("World", overflow="fold")
    for name in SYSTEMS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Planted")
    table.add_column("Chosen")
    table.add_column("")
    for one in found.worlds:
        told = (
            "right"
            if one.right
            else "wrong"
            if one.wrong
            else f"open: {', '.join(one.undecided) or 'chosen'}"
        )
        table.add_row(
            f"{one.kind}, {one.seed}",
            *(f"{100 * one.accuracy[name]:.1f} ({one.tokens[name]:.0f})" for name in SYSTEMS),
            one.best,
            one.chosen,
            told,
        )
    n = len(found.worlds)
    table.caption = f"Right and decided: {found.right} of {n}. Wrong winners: {found.wrong} of {n}."
    return table


def gate_table(found: CompareStudy) -> Table:
    """How often a gate passes and fails."""
    table = plain_table(
        f"A gate with a margin of 5 points on questions drawn anew from {found.recorded:,} recorded answers, "
        f"{found.runs:,} times: % [95 % interval]"
    )
    for head in ("Questions", "Differ", "Change", "Passes", "Fails", "Neither"):
        table.add_column(head, justify="right")
    for one in found.gate:
        table.add_row(
            f"{one.n:,}",
            f"{100 * one.discordance:.1f} %",
            f"{100 * one.change:+.1f}",
            *(
                f"{100 * share.value:.1f} [{100 * share.low:.1f}, {100 * share.high:.1f}]"
                for share in (one.passes, one.fails, one.undecided)
            ),
        )
    return table
