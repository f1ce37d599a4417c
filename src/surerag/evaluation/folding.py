"""Tables for a terminal that lose no digit: what is too wide is shown row under row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table


class FoldingTable(Table):
    """A table that, where it does not fit, shows each row as a list of its columns' names and values."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Any:
        """Render as a table, or row under row."""
        if self._needed(console, options) <= options.max_width or not self.columns:
            yield from super().__rich_console__(console, options)
            return
        if self.title:
            yield console.render_str(self.title) if isinstance(self.title, str) else self.title
        first, *others = self.columns
        width = max((console.measure(column.header).maximum for column in others), default=0)
        for at, name in enumerate(first.cells):
            yield ""
            yield name
            pairs = Table(box=None, show_header=False, padding=(0, 1), pad_edge=True)
            # Two thirds are for the values, which are not to be cut anywhere.
            pairs.add_column(max_width=min(width, options.max_width // 2), style="dim")
            pairs.add_column(overflow="fold")
            for column in others:
                pairs.add_row(column.header, list(column.cells)[at], style=self.rows[at].style)
            yield pairs
        if self.caption:
            yield ""
            yield console.render_str(self.caption) if isinstance(self.caption, str) else self.caption
        yield ""

    def _needed(self, console: Console, options: ConsoleOptions) -> int:
        """Return how wide it has to be for nothing to be cut: words may wrap, values may not."""
        edges = 2 if self.box and self.show_edge else 0
        inner = sum(max(_width(column, console, options), column.min_width or 0) for column in self.columns)
        return inner + len(self.columns) * (self.padding[1] + self.padding[3]) + edges + len(self.columns) - 1


def _width(column: Column, console: Console, options: ConsoleOptions) -> int:
    found: Iterable[RenderableType] = (column.header, *column.cells)
    sizes = [Measurement.get(console, options.update(max_width=10_000), cell) for cell in found]
    return max(size.maximum if column.no_wrap else size.minimum for size in sizes)
