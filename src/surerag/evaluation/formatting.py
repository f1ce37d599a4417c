"""How figures are written, wherever they are shown."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.padding import PaddingDimensions
from rich.table import Table

from surerag.evaluation.folding import FoldingTable
from surerag.evaluation.statistics import Proportion
from surerag.visible import visible


def shown(value: Any) -> Any:
    """Make a template's text visible; other values, and what is markup already, stay as they are."""
    return visible(value) if type(value) is str else value


def percent(value: float, digits: int = 1) -> str:
    """Write a share as a percentage.

    Example:
        >>> percent(0.0)
        '0.0 %'
    """
    return f"{100 * value:.{digits}f} %"


def percent_with_interval(share: Proportion) -> str:
    """Write a share with its interval, in percent.

    Example:
        >>> percent_with_interval(Proportion(8, 10, 0.8, 0.4902, 0.9433))
        '80.0 [49.0, 94.3]'
    """
    return f"{100 * share.value:.1f} [{100 * share.low:.1f}, {100 * share.high:.1f}]"


def p_value(p: float) -> str:
    """Write a p-value; below the smallest normal number there is nothing to tell apart.

    Example:
        >>> p_value(0.0312), p_value(1e-40), p_value(0.0)
        ('= 0.031', '= 1.0e-40', '< 1e-300')
    """
    if p < 1e-300:
        return "< 1e-300"
    return f"= {p:.1e}" if p < 0.001 else f"= {p:.3f}"


def plain_table(title: str, *, padding: PaddingDimensions = (0, 1)) -> Table:
    """Return an empty table in the style of all others; where it does not fit, it folds.

    Args:
        title: Above it.
        padding: Around each cell, as rich takes it.
    """
    return FoldingTable(
        title=title,
        box=box.SIMPLE_HEAD,
        padding=padding,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
    )
