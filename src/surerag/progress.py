"""Progress of a long run: a bar on a terminal, ten lines elsewhere, or a callback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

Progress = bool | Callable[[int, int | None], None]
"""True shows a bar, without a terminal ten lines; a callable gets (done, total or None); False is silent."""


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
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        text = progress.TextColumn("{task.description}", markup=False)
        numbers = (progress.BarColumn(), progress.MofNCompleteColumn())
        times = (progress.TimeElapsedColumn(), progress.TimeRemainingColumn())
        with progress.Progress(text, *numbers, *times, console=console, transient=True) as bar:
            task = bar.add_task(description, total=total)
            yield lambda items=1: bar.advance(task, items)
        return
    done, last = 0, -1

    def show_tenths(items: int = 1) -> None:
        nonlocal done, last
        done += items
        if total and 10 * done // total != last:
            last = 10 * done // total
            console.print(f"{description}: {done} of {total}", markup=False, highlight=False, soft_wrap=True)

    yield show_tenths
