"""What all HTML pages share: templates that escape whatever is shown, and embedded pictures."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surerag.evaluation.formatting import shown
from surerag.extras import extra

if TYPE_CHECKING:
    from jinja2 import Template


def template(name: str, **filters: Callable[..., Any]) -> Template:
    """Return a template of ``templates/``, in which every value is escaped and a missing one is an error.

    Args:
        name: Of its file.
        **filters: Functions that it uses, by the names that it has for them.

    Raises:
        MissingExtraError: If the template engine is not installed.
    """
    with extra("report"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
    environment = Environment(
        loader=PackageLoader("surerag.evaluation"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(name)


def data_uri(file: Path) -> str:
    """Return an SVG file as an image: unlike markup, it runs nothing, whatever text went into the figure."""
    return "data:image/svg+xml;base64," + base64.b64encode(file.read_bytes()).decode("ascii")
