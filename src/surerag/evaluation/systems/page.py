"""A comparison as a page: the recommendation, tables that fit a phone, and the questions behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surerag.evaluation.pages import template
from surerag.evaluation.systems.picture import pareto_svg
from surerag.evaluation.systems.pipelines import BASES, STEPS, described
from surerag.evaluation.systems.results import SystemsReport
from surerag.evaluation.systems.scoring import MEASURES, WITHOUT_GOLDS
from surerag.evaluation.systems.tables import difference, estimate, level, standing, title
from surerag.extras import extra

Rows = Callable[[Sequence[str] | None], Iterable[Mapping[str, Any]]]
"""Reads the results, the columns that are named or all of them."""

SHOWN = 40
_TEXT = 600


@dataclass(frozen=True, slots=True)
class Looked:
    """A question to look into.

    Attributes:
        question: As asked.
        golds: Gold answers.
        rows: What each system made of it.
        right: Systems that were right, of those that were measured.
        of: Systems that were measured.
    """

    question: str
    golds: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    right: int
    of: int


def render_report(
    report: SystemsReport, rows: Rows, *, lead: str = "", conditions: Sequence[tuple[str, str, str]] = ()
) -> str:
    """Return the page, complete in itself: no script, nothing from elsewhere.

    Args:
        report: The figures.
        rows: The results, which are read twice: what is shown is held, not all of it.
        lead: What was compared, in a sentence.
        conditions: Of a gate: the condition, its outcome, and what was found.

    Raises:
        MissingExtraError: If the template engine is not installed.
    """
    with extra("report"):
        from markupsafe import Markup

    others = [name for name in ("tokens", "seconds", "money") if name != report.cost]
    # What is drawn was escaped by the one who drew it.
    pictures = [Markup(svg) for cost in (report.cost, *others) if (svg := pareto_svg(report, cost))]  # noqa: S704
    names = list(dict.fromkeys(name for one in report.systems for name in one.measures))
    looked = list(looked_into(report, rows))
    return template("systems.html.jinja").render(
        report=report,
        lead=lead,
        conditions=conditions,
        pictures=pictures,
        measures=names,
        meanings=MEASURES,
        companions=WITHOUT_GOLDS,
        looked=looked,
        title=title,
        level=level,
        estimate=estimate,
        difference=difference,
        standing=lambda one: standing(one, report),
        described=_described,
        text_limit=_TEXT,
    )


def looked_into(report: SystemsReport, rows: Rows, most: int = SHOWN) -> Iterator[Looked]:
    """Yield the questions on which systems differ, those that single a system out first; then others.

    Args:
        report: The figures.
        rows: The results.
        most: Questions at most.
    """
    ranks: dict[str, tuple[int, int]] = {}
    for place, group in enumerate(_groups(rows(["id", "system", report.measure, "error"]))):
        values = [row[report.measure] for row in group if row[report.measure] is not None]
        right = sum(value > 0.5 for value in values)
        apart = min(right, len(values) - right)
        failed = any(row["error"] is not None for row in group)
        # What all do alike tells little; one system against all others tells most.
        rank = (0 if apart or failed else 1, apart if apart else place)
        ranks[group[0]["id"]] = rank
        if len(ranks) > 4 * most:
            ranks = dict(sorted(ranks.items(), key=lambda item: item[1])[:most])
    chosen = dict(sorted(ranks.items(), key=lambda item: item[1])[:most])
    found = {}
    for group in _groups(rows(None)):
        if group[0]["id"] in chosen:
            values = [row[report.measure] for row in group if row[report.measure] is not None]
            found[group[0]["id"]] = Looked(
                group[0]["question"],
                tuple(group[0]["answers"] or ()),
                tuple(group),
                sum(value > 0.5 for value in values),
                len(values),
            )
    yield from (found[name] for name in chosen if name in found)


def _groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Put the rows of a question together; they follow each other."""
    group: list[Mapping[str, Any]] = []
    for row in rows:
        if group and row["id"] != group[0]["id"]:
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def _described(name: str) -> str:
    known = all(word.strip() in {**BASES, **STEPS} for word in name.split("+"))
    return described(name) if known else ""
