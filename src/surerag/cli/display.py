"""Prints messages on the terminal; control codes in texts of documents and servers are removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType

from surerag.text import printable


def show(content: RenderableType, *, wrap: bool = True) -> None:
    """Print a text, or a table of rich, on standard output.

    On a terminal, lines of a text are wrapped between words. With ``wrap=False``, lines stay whole, so that a
    command can be copied.
    """
    console = Console()
    if isinstance(content, str):
        _print(console, content, wrap=wrap)
    else:
        console.print(content)


def _print(console: Console, text: str, *, wrap: bool = True, style: str = "") -> None:
    soft_wrap = not (wrap and console.is_terminal)
    console.print(printable(text), markup=False, highlight=False, soft_wrap=soft_wrap, style=style)


def show_findings(sentences: Sequence[str]) -> None:
    """Print the findings of a run: first the main finding, then the other findings as a list."""
    for number, text in enumerate(sentences):
        show(f"- {text}" if number else f"\n{text}")
    show("")


def show_error(message: str) -> None:
    """Print an error message on standard error, in one line; a terminal wraps the line between words."""
    _print(Console(stderr=True), f"Error: {' '.join(printable(message).split())}", style="red")


def show_note(message: str) -> None:
    """Print a note on standard error."""
    _print(Console(stderr=True), f"Note: {message}.")


@contextmanager
def step(message: str) -> Iterator[None]:
    """Show a message on standard error while a step runs; without a terminal, print the message once."""
    errors = Console(stderr=True)
    if not errors.is_terminal:
        _print(errors, message)
        yield
        return
    with errors.status(printable(message)):
        yield
