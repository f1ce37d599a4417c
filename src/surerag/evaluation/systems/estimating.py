"""What a comparison will ask, before it asks: the same work on a few questions, with a reader for free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from surerag import drivers
from surerag.drivers.progress import counted_not_logged
from surerag.evaluation.rows import Question
from surerag.evaluation.systems.pipelines import Parts, build, worst_case_calls
from surerag.prices import Costs, Prices
from surerag.records.field.estimate import DryReader

_TRIED = 8


@dataclass(frozen=True, slots=True)
class Expected:
    """What a system will cost.

    Attributes:
        system: Which.
        expected: For all questions, as far as the first of them tell: answers as long as they may be.
        most_calls: Calls at most, each method at its worst.
    """

    system: str
    expected: Costs
    most_calls: int


def expected(
    names: Sequence[str], parts: Parts, questions: Sequence[Question], total: int, prices: Prices
) -> list[Expected]:
    """Estimate what systems will cost; no model is asked.

    What two systems ask alike is asked once, and counted here for both.

    Args:
        names: Of the systems.
        parts: What they are built of.
        questions: The first ones.
        total: How many there are.
        prices: What tokens cost.
    """
    tried = list(questions[:_TRIED])
    found = []
    for name in names:
        dry = DryReader(parts.reader)
        system = build(name, parts).keeping(_replaced_by(dry))
        with counted_not_logged():
            drivers.run_many(
                [system.program(question.text) for question in tried],
                system.services,
                window=_TRIED,
                return_exceptions=True,
            )
        times = total / max(len(tried), 1)
        costs = Costs(
            prompt_tokens=round(times * dry.cost.read),
            completion_tokens=round(times * dry.cost.written),
            calls=round(times * dry.cost.answers),
        )
        found.append(
            Expected(name, prices.priced(costs, parts.reader.name), total * worst_case_calls(name, parts))
        )
    return found


def _replaced_by(dry: DryReader) -> Callable[[object], DryReader]:
    return lambda _: dry


def total_of(found: Sequence[Expected]) -> Costs:
    """Return what all of it is expected to cost."""
    first, *rest = (one.expected for one in found)
    return sum(rest, start=first)
