"""Progress and messages on a terminal; texts of documents and servers are printed without control codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from surerag.text import printable


def show(content: str | Table) -> None:
    """Print a text or a table on standard output."""
    console = Console()
    if isinstance(content, str):
        console.print(printable(content), markup=False, highlight=False, soft_wrap=True)
    else:
        console.print(content)


def show_findings(sentences: Sequence[str]) -> None:
    """Print what a run shows: a sentence, and a line for each other one."""
    for number, text in enumerate(sentences):
        show(f"- {text}" if number else f"\n{text}")
    show("")


def show_error(message: str) -> None:
    """Print a message in one line on standard error."""
    line = " ".join(printable(message).split())
    Console(stderr=True).print(f"Error: {line}", style="red", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def step(message: str) -> Iterator[None]:
    """Show a message while something of unknown length is done; without a terminal, print it once."""
    errors = Console(stderr=True)
    if not errors.is_terminal:
        errors.print(printable(message), markup=False, highlight=False, soft_wrap=True)
        yield
        return
    with errors.status(printable(message)):
        yield


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows how many of how many are done; without a terminal, in ten lines."""
    errors = Console(stderr=True)
    if errors.is_terminal:
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=errors) as bars:
            task = bars.add_task(printable(label), total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)
        return
    last = -1

    def show_tenths(done: int, total: int) -> None:
        nonlocal last
        tenth = 10 * done // max(total, 1)
        if tenth != last:
            last = tenth
            errors.print(f"{label}: {done} of {total}", markup=False, highlight=False, soft_wrap=True)

    yield show_tenths
