"""Which passage moved the reader's belief: from SePer without context to SePer with all passages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from surerag import drivers
from surerag.evaluation.comparison.measuring import Measured
from surerag.methods.seper.component import SePer
from surerag.methods.seper.result import Belief, SePerResult


@dataclass(frozen=True, slots=True)
class Bar:
    """What one more passage, or one more step, changed.

    Attributes:
        texts: The passage; or all that the reader was shown after a step.
        start: SePer before it.
        end: SePer with it.
    """

    texts: tuple[str, ...]
    start: float
    end: float

    @property
    def change(self) -> float:
        """What it was worth, after those before it."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Answer:
    """One distinct sampled answer.

    Attributes:
        text: The answer.
        count: Samples that gave it.
        weight: Its share of the reader's belief.
        means_gold: Degree to which it means the gold answer that it is nearest to.
    """

    text: str
    count: int
    weight: float
    means_gold: float


@dataclass(frozen=True, slots=True)
class Waterfall:
    """One question, and how belief in its gold answers changed.

    Attributes:
        id: Of the question.
        system: Name of the system.
        question: As asked.
        golds: Gold answers.
        delta: ΔSePer; the sum of all bars.
        before: SePer without context.
        after: SePer with all of it.
        by_step: Whether bars are steps of the system rather than passages of one context.
        bars: In the order in which the reader is shown the passages.
        answers_before: Sampled without context, the likeliest first.
        answers_after: Sampled with all of it.
    """

    id: str
    system: str
    question: str
    golds: tuple[str, ...]
    delta: float
    before: float
    after: float
    by_step: bool
    bars: tuple[Bar, ...]
    answers_before: tuple[Answer, ...]
    answers_after: tuple[Answer, ...]


@dataclass
class Extremes:
    """Keeps where the rows with the largest and the smallest ΔSePer stand, of those that found something.

    Attributes:
        each: Rows to keep at either end.
    """

    each: int
    _best: list[_Kept] = field(default_factory=list)
    _worst: list[_Kept] = field(default_factory=list)
    _seen: int = 0

    def add(self, delta: float, where: Where) -> None:
        """Look at one row; of equal ones, the first stay."""
        self._seen += 1
        for kept, sign in ((self._best, -1), (self._worst, 1)):
            if len(kept) < self.each or (kept and sign * delta < kept[-1].rank):
                kept.append(_Kept(sign * delta, self._seen, where))
                kept.sort(key=lambda entry: entry[:2])
                del kept[self.each :]

    def places(self) -> list[Where]:
        """Return where the kept rows stand, the largest ΔSePer first, none of them twice."""
        found = {entry.seen: entry.where for entry in self._best}
        found |= {entry.seen: entry.where for entry in reversed(self._worst) if entry.seen not in found}
        return list(found.values())


class Where(NamedTuple):
    """A row's place: its unit, and how many rows of that are before it."""

    unit: int
    at: int


class _Kept(NamedTuple):
    rank: float
    seen: int
    where: Where


def waterfalls(measured: Sequence[Measured], seper: SePer, *, window: int = 64) -> list[Waterfall]:
    """Measure the first passage, the first two, and so on, of rows whose last step found something.

    A question with k passages costs k − 1 contexts more than were asked already. They share their
    beginnings, which a local reader reads once. The steps of a system with several are known.

    Raises:
        Exception: If reader or entailer fails.
    """
    programs = [
        seper.program(row.question, row.golds, row.contexts[0][:count])
        for row in (one.row for one in measured)
        if len(row.contexts) == 1
        for count in range(1, len(row.contexts[0]))
    ]
    grown = iter(drivers.run_many(programs, seper.services, window=window))
    found = []
    for one in measured:
        row, known = one.row, [step for step in one.steps if step is not None]
        if len(row.contexts) == 1:
            beliefs = [next(grown) for _ in row.contexts[0][1:]] + known
            texts: list[tuple[str, ...]] = [(passage.text,) for passage in row.contexts[0]]
        else:
            beliefs = known
            texts = [tuple(p.text for p in step) for step in row.contexts if step]
        found.append(_waterfall(one, texts, beliefs))
    return found


def _waterfall(one: Measured, texts: Sequence[tuple[str, ...]], beliefs: Sequence[SePerResult]) -> Waterfall:
    row, last = one.row, beliefs[-1]
    levels = [last.before.seper, *(belief.after.seper for belief in beliefs)]
    return Waterfall(
        id=row.id,
        system=row.system,
        question=row.question,
        golds=row.golds,
        delta=last.delta,
        before=last.before.seper,
        after=last.after.seper,
        by_step=len(row.contexts) > 1,
        bars=tuple(
            Bar(shown, start, end) for shown, start, end in zip(texts, levels, levels[1:], strict=False)
        ),
        answers_before=_answers(last.before),
        answers_after=_answers(last.after),
    )


def _answers(belief: Belief) -> tuple[Answer, ...]:
    counts = Counter(sample.text for sample in belief.answers)
    weights = dict.fromkeys(counts, 0.0)
    degrees = {sample.text: max(sample.entailment) for sample in belief.answers}
    for sample in belief.answers:
        weights[sample.text] += sample.weight
    ordered = sorted(counts, key=lambda text: -weights[text])
    return tuple(Answer(text, counts[text], weights[text], degrees[text]) for text in ordered)
