"""What evaluators are handed for one item: nothing, one text, or several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from surerag.errors import InputError


def texts(name: str, given: Any) -> list[str]:
    """Return nothing, one text or several as a list.

    Args:
        name: What to call it in an error.
        given: Whatever was passed in.

    Raises:
        InputError: If something else than texts is among them.
    """
    if given is None:
        return []
    several = isinstance(given, Iterable) and not isinstance(given, str | bytes)
    found = list(given) if several else [given]
    strange = [type(item).__name__ for item in found if not isinstance(item, str)]
    if strange:
        raise InputError(f"{name} holds a {strange[0]}", hint=f"pass {name} as a text or a list of texts")
    return found


def texts_or_none(name: str, given: Any) -> list[str] | None:
    """Return texts, or None where there are none, or something else is among them."""
    try:
        return texts(name, given) or None
    except InputError:
        return None
