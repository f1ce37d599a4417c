"""Units of a comparison: made and committed one by one, within what may be spent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from surerag.errors import BudgetError, InputError
from surerag.evaluation.inputs.questions import Asked, QuestionFile, groups_of
from surerag.evaluation.rows import Question
from surerag.evaluation.systems.asking import Work
from surerag.evaluation.systems.rows import KIND, schemas, tables_of
from surerag.prices import Costs
from surerag.runs import IN_PROCESS, WHOLE, Engine, Maker, Part, Run, Shard, Task
from surerag.runs.manifest import Kind

UNIT: Final = 128
"""Questions in a unit of work: what is committed at a time."""


class Purse:
    """What may be spent, and what was.

    Args:
        most: Money at most; None for no bound.
        at_once: Units under way at a time, each of which costs what the dearest one so far did.
    """

    def __init__(self, most: float | None, at_once: int = 1) -> None:
        self._most, self._at_once, self.spent, self._largest = most, at_once, 0.0, 0.0

    def pay(self, money: float | None) -> None:
        """Note what a unit cost.

        Raises:
            BudgetError: If that is not known, and there is a bound.
        """
        if money is None and self._most is not None:
            raise BudgetError(
                "what was asked cannot be kept within a cost: the price of a model is not known",
                hint="give its price in a file (--prices FILE, load_prices(FILE)), or leave the bound out",
            )
        self.spent += money or 0.0
        self._largest = max(self._largest, money or 0.0)

    def check(self) -> None:
        """Refuse further units that the rest does not last for.

        Raises:
            BudgetError: If units like the dearest so far would cost more than is left.
        """
        ahead = self._at_once * self._largest
        if self._most is not None and self.spent + ahead > self._most:
            raise BudgetError(
                f"{self.spent:.4g} of {self._most:.4g} is spent, and another {self._at_once * UNIT} "
                f"questions may cost {ahead:.4g}",
                hint="what was answered is kept: allow more, and the same call goes on from here",
            )


def spent_on(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return what some rows cost; None where a price is not known."""
    known = [row["money"] for row in rows if row["error"] is None]
    return None if None in known else float(sum(known))


@dataclass(frozen=True)
class UnitMaker:
    """Asks a unit's questions of all systems, and commits what they say.

    Attributes:
        work: What is done with them.
    """

    work: Work

    @property
    def kind(self) -> Kind:
        """Of run: a comparison."""
        return KIND

    @property
    def schemas(self) -> Any:
        """Of a comparison's tables."""
        return schemas()

    def make(self, run: Run, unit: int, rows: Sequence[Question], source: str) -> Part:
        """Make a unit."""
        with run.answers(unit) as answers:
            found = self.work.rows(rows, answers)
        failed = sum(one["error"] is not None for one in found)
        note = {"money": spent_on(found), "failed": failed, "spent": _costs(found).to_dict()}
        return run.commit(unit, tables_of(found), source=source, note=note, keep_answers=False)


def run_units(
    run: Run,
    maker: Maker,
    questions: QuestionFile | Iterable[Asked],
    purse: Purse,
    advance: Callable[[], None] = lambda: None,
    *,
    engine: Engine = IN_PROCESS,
    shard: Shard = WHOLE,
) -> None:
    """Have made what was not asked yet, unit by unit.

    Raises:
        InputError: If other questions were answered before.
        BudgetError: If the rest of the money does not last.
    """
    sizes: dict[int, int] = {}

    def missing() -> Iterator[Task]:
        for number, group in enumerate(groups_of(questions, UNIT, unique=True)):
            if not shard.has(number):
                continue
            if number in run.manifest.parts:
                _check_source(run, number, group.digest)
                done(run.manifest.parts[number], group.size)
            else:
                purse.check()
                sizes[number] = group.size
                yield Task(number, group.digest, group.read)

    def done(part: Part, size: int) -> None:
        purse.pay(part.note.get("money"))
        for _ in range(size):
            advance()

    with closing(engine(run, missing(), maker)) as made:
        for part in made:
            done(part, sizes.pop(part.unit))
    run.finish()


def _costs(rows: Sequence[Mapping[str, Any]]) -> Costs:
    def total(name: str) -> Any:
        return sum(one[name] or 0 for one in rows)

    return Costs(
        prompt_tokens=total("prompt_tokens"),
        completion_tokens=total("completion_tokens"),
        cached_tokens=total("cached_tokens"),
        calls=total("calls"),
        seconds=total("seconds"),
    )


def _check_source(run: Run, number: int, source: str) -> None:
    if run.manifest.parts[number].source != source:
        raise InputError(
            f"{run.place} holds the answers to other questions, from question {number * UNIT + 1} on",
            hint="write to another folder, or begin anew with --restart (on_change='restart')",
        )
