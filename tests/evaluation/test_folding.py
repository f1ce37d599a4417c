"""Tables on a narrow terminal: no digit is lost, and a wide one is as it was."""

from __future__ import annotations

import io

import pytest
from rich.text import Text

from surerag.cli.display import VisibleConsole
from surerag.evaluation.formatting import plain_table

VALUES = ("1,000,000", "+0.334 [+0.318, +0.350]", "0.251 → 0.585", "12.3 %", "1.2 %")
HEADS = ("n", "Mean ΔSePer [95 %]", "SePer", "Helped", "Harmed")


def printed(width: int, name: str = "a system of a long name") -> str:
    table = plain_table("What it was worth")
    table.add_column("System", min_width=8)
    for head in HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_row(Text(name), *VALUES, style="bold")
    table.add_row(Text("b"), *VALUES)
    table.caption = "A note."
    file = io.StringIO()
    VisibleConsole(file=file, width=width).print(table)
    return file.getvalue()


@pytest.mark.parametrize("width", [60, 80])
def test_a_table_that_does_not_fit_is_shown_row_under_row(width: int) -> None:
    found = printed(width)
    assert max(map(len, found.splitlines())) <= width
    for value in (*VALUES, "Mean ΔSePer [95 %]", "Helped", "Harmed"):
        assert found.count(value) == 2
    assert found.startswith("What it was worth") and "A note." in found


@pytest.mark.parametrize("width", [33, 40])
def test_nothing_is_cut_however_narrow_it_is(width: int) -> None:
    found = printed(width, "x" * 90)
    assert found.count("x") == 90 and "…" not in found
    for number in " ".join(VALUES).split():  # lines break between numbers
        assert found.count(number) >= 2


def test_a_table_that_fits_is_a_table() -> None:
    found = printed(120)
    assert found.count("Mean ΔSePer [95 %]") == 1
    assert len([line for line in found.splitlines() if "+0.334" in line]) == 2
