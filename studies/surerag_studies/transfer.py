"""What a table of the closed world says about a real reader, and what it does not: a line below each.

In the closed world doubt, error and the benefit of acting look like one thing; on a real reader's records
they do not. Counts, invariances, arithmetic, coverage and the recovery of what was planted are matters of the
code, and hold for any reader. Sizes of effects, accuracies and thresholds belong to this reader and world.
"""

from __future__ import annotations

from rich.table import Table

SIZES = "accuracies and sizes of effects"
RATES = "thresholds, rates and accuracies"
CLAIMS = "agreement, monotony, arithmetic, and the signs of planted effects"


def carrying(table: Table, carries: str | None, stays: str = SIZES) -> Table:
    """Say below a table what carries over to a real reader, and what does not.

    Args:
        table: Its own caption stays, above.
        carries: Kinds of figures that hold for any reader; None for none.
        stays: Kinds of figures that belong to this reader in this world.
    """
    held = f"Carries over to a real reader: {carries or 'nothing here'}. Does not: {stays}."
    table.caption = f"{table.caption}\n{held}" if table.caption else held
    return table
