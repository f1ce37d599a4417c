"""Progress of a long run: a bar on a terminal, or a callback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

Progress = bool | Callable[[int, int | None], None]
"""True shows a bar on a terminal; a callable gets (done, total or None); False is silent."""


class Advance(Protocol):
    """Reports that so many items more are done."""

    def __call__(self, items: int = 1) -> None:
        """Report it."""


@contextmanager
def reporting(progress: Progress, total: int | None, description: str = "Questions") -> Iterator[Advance]:
    """Yield a function to call for each item that is done, or for several at once."""
    if callable(progress):
        done = 0

        def advance(items: int = 1) -> None:
            nonlocal done
            done += items
            progress(done, total)

        yield advance
    elif progress:
        with _bar(total, description) as advance_bar:
            yield advance_bar
    else:
        yield lambda items=1: None


@contextmanager
def _bar(total: int | None, description: str) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total)
        yield lambda items=1: bar.advance(task, items)
