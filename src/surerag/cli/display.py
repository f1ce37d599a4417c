"""Prints messages on the terminal; control codes in texts of documents and servers are removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType

from surerag.text import printable


def show(content: RenderableType) -> None:
    """Print a text, or a table of rich, on standard output."""
    console = Console()
    if isinstance(content, str):
        console.print(printable(content), markup=False, highlight=False, soft_wrap=True)
    else:
        console.print(content)


def show_findings(sentences: Sequence[str]) -> None:
    """Print the findings of a run: first the main finding, then the other findings as a list."""
    for number, text in enumerate(sentences):
        show(f"- {text}" if number else f"\n{text}")
    show("")


def show_error(message: str) -> None:
    """Print an error message on standard error, in one line."""
    line = " ".join(printable(message).split())
    Console(stderr=True).print(f"Error: {line}", style="red", markup=False, highlight=False, soft_wrap=True)


def show_note(message: str) -> None:
    """Print a note on standard error."""
    Console(stderr=True).print(f"Note: {printable(message)}.", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def step(message: str) -> Iterator[None]:
    """Show a message on standard error while a step runs; without a terminal, print the message once."""
    errors = Console(stderr=True)
    if not errors.is_terminal:
        errors.print(printable(message), markup=False, highlight=False, soft_wrap=True)
        yield
        return
    with errors.status(printable(message)):
        yield
