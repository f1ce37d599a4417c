"""A self-contained HTML page of a run: tables, figures, and questions one can look into.

Everything that comes from documents or models is escaped by the template engine; figures are embedded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from surerag.evaluation.formatting import percent, percent_with_interval
from surerag.evaluation.gate.results import GateReport
from surerag.evaluation.gate.timing import LatencyTable
from surerag.evaluation.pages import data_uri, template
from surerag.evaluation.story import Story
from surerag.methods.lazy_rag.result import LazyRAGResult
from surerag.prices.words import cost_words


@dataclass(frozen=True, slots=True)
class Example:
    """One answered question to show.

    Attributes:
        result: The answer and how it came about.
        gold: The right answer, if it is known.
        correct: Whether the answer is right, if that is known.
    """

    result: LazyRAGResult
    gold: str = ""
    correct: bool | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture and what it shows.

    Attributes:
        file: An SVG file.
        caption: One sentence; also what a screen reader says.
    """

    file: Path
    caption: str


def render_page(
    *,
    title: str,
    lead: str,
    examples: Sequence[Example],
    means: Sequence[str] = (),
    story: Story | None = None,
    report: GateReport | None = None,
    latency: LatencyTable | None = None,
    figures: Sequence[Figure] = (),
    footer: str = "",
) -> str:
    """Return the page.

    Args:
        title: Heading.
        lead: What was run, in a sentence or two.
        examples: Answered questions, each with its decision and passages.
        means: What it comes to, a sentence each; the first thing on the page.
        story: One question step by step.
        report: Figures by mode, where the right answers are known.
        latency: Times by mode, if they were measured.
        figures: Pictures to embed.
        footer: How to get this page again.

    Raises:
        MissingExtraError: If the template engine is not installed.
    """
    return template(
        "page.html.jinja",
        percent=percent,
        interval=percent_with_interval,
        data_uri=data_uri,
        cost_words=cost_words,
    ).render(
        title=title,
        lead=lead,
        means=means,
        story=story,
        examples=examples,
        report=report,
        latency=latency,
        figures=figures,
        footer=footer,
    )
