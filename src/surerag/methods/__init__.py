"""The five methods; each method has a folder with its options, algorithm, result and public class."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import surerag
from surerag.component import Component


def methods_by_name() -> dict[str, type[Component[Any]]]:
    """Return the main class of each method; the keys are the methods' names (attribute ``TITLE``)."""
    classes = {}
    for name, module in surerag._MODULE_OF.items():
        if module.startswith("surerag.methods."):
            value = getattr(import_module(module), name)
            if isinstance(value, type) and issubclass(value, Component) and value.TITLE:
                classes[value.TITLE] = value
    return classes
