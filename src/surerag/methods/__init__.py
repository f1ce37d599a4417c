"""The methods: one room each, around an algorithm that reads like the paper's."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import surerag
from surerag.component import Component


def methods_by_name() -> dict[str, type[Component[Any]]]:
    """Return the main class of each method, as its attribute ``TITLE`` declares it."""
    found = {}
    for name, module in surerag._MODULE_OF.items():
        if module.startswith("surerag.methods."):
            value = getattr(import_module(module), name)
            if isinstance(value, type) and issubclass(value, Component) and value.TITLE:
                found[value.TITLE] = value
    return found
