"""Progress of a long run: a bar on a terminal, or a callback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

Progress = bool | Callable[[int, int | None], None]
"""True shows a bar on a terminal; a callable gets (done, total or None); False is silent."""


@contextmanager
def reporting(
    progress: Progress, total: int | None, description: str = "Questions"
) -> Iterator[Callable[[], None]]:
    """Yield a function to call once for each item that is done."""
    done = count(1)
    if callable(progress):
        yield lambda: progress(next(done), total)
    elif progress:
        with _bar(total, description) as advance:
            yield advance
    else:
        yield lambda: None


@contextmanager
def _bar(total: int | None, description: str) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)
