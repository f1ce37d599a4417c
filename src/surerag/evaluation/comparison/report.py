"""A comparison as one HTML page, with nothing to load from elsewhere.

Everything that comes from documents, models or the data set is escaped by the template engine; figures are
embedded as images, which cannot run anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from surerag.evaluation.comparison.results import SystemComparison, bracketed, signed
from surerag.evaluation.comparison.waterfall import Waterfall
from surerag.evaluation.formatting import percent
from surerag.evaluation.pages import data_uri, template
from surerag.prices.words import cost_words

CAPTIONS = {
    "distribution": "ΔSePer of single questions: how many were helped, harmed or left as they were.",
    "systems": "Mean ΔSePer of each system, with its interval over the questions.",
}
_EVEN = 0.0005
"""Changes below this are shown as 0.000, and have no colour."""


def render_comparison(
    found: SystemComparison,
    *,
    title: str,
    lead: str,
    figures: Sequence[Path] = (),
    falls: Sequence[Waterfall] = (),
    warnings: Sequence[str] = (),
    footer: str = "",
) -> str:
    """Return the page.

    Args:
        found: The comparison; one system is a comparison, too.
        title: Heading.
        lead: What was run, in a sentence or two.
        figures: SVG files as :func:`surerag.evaluation.comparison.plots.write_plots` names them.
        falls: Questions to look into.
        warnings: What a person should know before reading on.
        footer: How to get this page again.

    Raises:
        MissingExtraError: If the template engine is not installed.
    """
    stepped = [row for row in found.systems if row.steps]
    return template(
        "comparison.html.jinja",
        percent=percent,
        signed=signed,
        bracketed=bracketed,
        level=_level,
        share=_share,
        way=_way,
        cost_words=cost_words,
    ).render(
        found=found,
        title=title,
        lead=lead,
        figures=[(data_uri(file), CAPTIONS[file.stem]) for file in figures],
        falls=falls,
        warnings=warnings,
        footer=footer,
        stepped=stepped,
        steps=max((len(row.steps) for row in stepped), default=0),
    )


def _level(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _share(value: float) -> str:
    """Write a part of an axis from 0 to 1, in percent, for a style attribute."""
    return f"{100 * min(max(value, 0.0), 1.0):.2f}"


def _way(change: float) -> str:
    """Name the class of a change, for its colour."""
    if abs(change) < _EVEN:
        return "even"
    return "up" if change > 0 else "down"
