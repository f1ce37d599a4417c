"""Progress and messages on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.text import Text

from surerag.visible import visible


class VisibleConsole(Console):
    """Prints all texts, in tables and bars too, without what a terminal would obey; styles are its own."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Turn a string into text, whole sequences taken out."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object; what else became text, by whatever way, is made visible here."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(visible(text), style)


console = VisibleConsole()
"""Results go here: standard output."""
errors = VisibleConsole(stderr=True)
"""All else goes here: standard error."""


class Bar:
    """One stage: how far it is, and a word beside it."""

    def __init__(self, bars: Progress, name: str) -> None:
        self._bars, self._name = bars, name
        self._task = bars.add_task(name, total=None)

    def __call__(self, done: int, total: int | None) -> None:
        """Show how far it is."""
        self._bars.update(self._task, completed=done, total=total)

    def note(self, text: str) -> None:
        """Show a word beside the stage's name."""
        self._bars.update(self._task, description=f"{self._name}: {text}")


class Stages:
    """One bar for each stage of a run; stages of unknown length show the time they take.

    Called with a stage's name, it returns what :func:`surerag.run_many` takes as ``progress``.
    """

    def __init__(self, bars: Progress) -> None:
        self._bars = bars

    def __call__(self, name: str) -> Bar:
        """Begin a stage that tells how far it is."""
        return Bar(self._bars, name)

    @contextmanager
    def working(self, name: str) -> Iterator[None]:
        """Show a stage that cannot tell how far it is."""
        task = self._bars.add_task(name, total=None)
        yield
        self._bars.update(task, total=1, completed=1)


@contextmanager
def staged() -> Iterator[Stages]:
    """Show stages on the terminal; silent where standard error is none."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as bars:
        yield Stages(bars)


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Say, where a demo is interrupted, that nothing of it was kept."""
    try:
        yield
    except KeyboardInterrupt:
        console.print("A demo keeps nothing of what was answered: the same command begins anew.")
        raise
