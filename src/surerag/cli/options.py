"""A method's options on the command line: bound and sentence are those of the method."""

from __future__ import annotations

from typing import Any

import typer

from surerag.options import Options


def option_of(options: type[Options], name: str) -> Any:
    """Return typer's description of a method's option.

    Args:
        options: The method's options.
        name: Which one.
    """
    option = options.OPTIONS[name]
    least = None if option.bound is None else int(option.bound.least)
    return typer.Option(min=least, help=option.doc.replace("``", ""))
