"""From records to figures and claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from surerag.evaluation.differences import PairedDifference, paired_difference
from surerag.evaluation.statistics import share
from surerag.measures import api_cost
from surerag.world.spec import QuestionKind
from surerag_studies.claims import Claim
from surerag_studies.edc2.contexts import Condition, Method
from surerag_studies.edc2.results import (
    COMPLETION_PRICE,
    PROMPT_PRICE,
    CellFigures,
    KindFigures,
    MethodFigures,
    Record,
)
from surerag_studies.formatting import points

MARGIN = 0.02
"""Accuracy that compression may cost on average."""

HIGH = 0.8
"""Noise or redundancy from which compression is expected to help."""


class Found(NamedTuple):
    """What every method answered under one condition."""

    condition: Condition
    records: Mapping[Method, Sequence[Record]]


def figures(found: Found) -> CellFigures:
    """Return the figures of one condition."""
    plain = found.records["plain"]
    return CellFigures(
        condition=found.condition,
        n=len(plain),
        methods=tuple(_of(method, records, plain) for method, records in found.records.items()),
    )


def claims(cells: Sequence[Found]) -> tuple[Claim, ...]:
    """Judge every claim, over the questions of all cells."""
    high = [cell for cell in cells if cell.condition.level >= HIGH]
    average = _mean_gap(cells, "dynamic", "plain")
    tokens = _tokens(cells, "dynamic") / _tokens(cells, "plain")
    found = [
        Claim(
            f"Not inferior to plain RAG on average by more than {100 * MARGIN:g} points",
            points(average, unit=" points"),
            average.lower_bound > -MARGIN,
        ),
        Claim(
            "At no more than half the context tokens", f"{100 * tokens:.1f} % of the tokens", tokens <= 0.5
        ),
    ]
    for kind in ("noise", "redundancy"):
        some = [cell for cell in high if cell.condition.kind == kind]
        if some:
            gap = _mean_gap(some, "dynamic", "plain")
            found.append(
                Claim(
                    f"Better than plain RAG at {kind} of 80 % and more",
                    points(gap, unit=" points"),
                    gap.low > 0,
                )
            )
    for control in ("average", "random"):
        some = [cell for cell in cells if control in cell.records]
        if some:
            gap = _mean_gap(some, "dynamic", control)
            found.append(
                Claim(
                    f"Dynamic clusters better than {control} ones", points(gap, unit=" points"), gap.low > 0
                )
            )
    some = [cell for cell in cells if "bridged" in cell.records]
    if some:
        found += _on_bridging(some)
    return tuple(found)


def _on_bridging(cells: Sequence[Found]) -> list[Claim]:
    """Judge what is ours in this study: that asking silent clusters again mends what compression costs."""
    found = []
    average = _mean_gap(cells, "bridged", "plain")
    found.append(
        Claim(
            f"With bridging, not inferior to plain RAG on average by more than {100 * MARGIN:g} points",
            points(average, unit=" points"),
            average.lower_bound > -MARGIN,
        )
    )
    if any(record.kind == QuestionKind.TWO_HOP for record in cells[0].records["plain"]):
        gap = _mean_gap(cells, "bridged", "dynamic", QuestionKind.TWO_HOP)
        found.append(
            Claim("Two-hop questions better with bridging", points(gap, unit=" points"), gap.low > 0)
        )
    return found


def _of(method: Method, records: Sequence[Record], plain: Sequence[Record]) -> MethodFigures:
    right = [record.correct for record in records]
    tokens = float(np.mean([record.context_tokens for record in records]))
    costs = [
        api_cost(record.prompt_tokens, record.completion_tokens, PROMPT_PRICE, COMPLETION_PRICE)
        for record in records
    ]
    return MethodFigures(
        method=method,
        accuracy=share(right),
        by_kind=_by_kind(records),
        against_plain=None
        if method == "plain"
        else paired_difference(right, [record.correct for record in plain]),
        holds_answer=float(np.mean([record.holds_answer for record in records])),
        context_tokens=tokens,
        context_share=tokens / float(np.mean([record.context_tokens for record in plain])),
        calls=float(np.mean([record.calls for record in records])),
        fell_back=float(np.mean([record.fell_back for record in records])),
        refused=float(np.mean([record.refused for record in records])),
        cost=float(np.mean(costs)),
    )


def _by_kind(records: Sequence[Record]) -> tuple[KindFigures, ...]:
    """Return a method's accuracy on each kind of question that was asked, in the kinds' order."""
    asked = {record.kind for record in records}
    return tuple(
        KindFigures(kind, share([record.correct for record in records if record.kind == kind]))
        for kind in QuestionKind
        if kind in asked
    )


def _mean_gap(
    cells: Sequence[Found], method: Method, control: Method, kind: QuestionKind | None = None
) -> PairedDifference:
    """Bootstrap the difference over questions: each question's mean over the cells is one observation."""
    return paired_difference(_per_question(cells, method, kind), _per_question(cells, control, kind))


def _per_question(cells: Sequence[Found], method: Method, kind: QuestionKind | None) -> list[float]:
    table = [
        [record.correct for record in cell.records[method] if kind in (None, record.kind)] for cell in cells
    ]
    means: list[float] = np.mean(np.asarray(table, dtype=float), axis=0).tolist()
    return means


def _tokens(cells: Sequence[Found], method: Method) -> float:
    return float(np.mean([record.context_tokens for cell in cells for record in cell.records[method]]))
