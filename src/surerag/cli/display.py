"""What a terminal shows while something runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

console = Console()
"""Results go here: standard output."""


class Stages:
    """One bar for each stage of a run; stages of unknown length show the time they take.

    Called with a stage's name, it returns what :func:`surerag.run_many` takes as ``progress``.
    """

    def __init__(self, bars: Progress) -> None:
        self._bars = bars

    def __call__(self, name: str) -> Callable[[int, int | None], None]:
        """Begin a stage that tells how far it is."""
        task = self._bars.add_task(name, total=None)
        return lambda done, total: self._bars.update(task, completed=done, total=total)

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """Show a stage that cannot tell how far it is."""
        task = self._bars.add_task(name, total=None)
        yield
        self._bars.update(task, total=1, completed=1)


@contextmanager
def staged() -> Iterator[Stages]:
    """Show stages on the terminal; silent where standard error is none."""
    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as bars:
        yield Stages(bars)
