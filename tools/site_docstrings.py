"""Docstrings for the site: what only Sphinx reads is put into plain Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:py:)?[a-z]+:`~?([^`]+)`")
EXAMPLE = re.compile(r"^(\s*)Example:$", re.MULTILINE)
LITERAL = re.compile(r"::$", re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Shows the names that roles point at, examples as sessions, and literal blocks without their mark."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Change an object's docstring."""
        if obj.docstring is not None:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = LITERAL.sub(":", EXAMPLE.sub(r"\1Examples:", text))
