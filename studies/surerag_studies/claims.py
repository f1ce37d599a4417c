"""Claims: what a study tests, the figures that decide, and whether they are enough.

Bounds were set before any result was looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from surerag.evaluation.formatting import plain_table

_VERDICTS = {
    True: Text("holds", style="green"),
    False: Text("does not hold", style="bold red"),
    None: Text("undecided", style="yellow"),
}


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that a study tests.

    Attributes:
        statement: In words.
        finding: The figures that decide it.
        holds: Whether they are enough; None where the data leave it undecided.
    """

    statement: str
    finding: str
    holds: bool | None


def claims_table(claims: Iterable[Claim], *, undecided: str | None = None) -> Table:
    """Show which claims hold.

    Args:
        claims: In order.
        undecided: What makes a claim undecided, below the table.
    """
    table = plain_table("Claims tested")
    table.add_column("Claim", ratio=5)
    table.add_column("Found", ratio=4)
    table.add_column("", no_wrap=True)
    for claim in claims:
        table.add_row(claim.statement, claim.finding, _VERDICTS[claim.holds])
    table.caption = undecided
    return table
