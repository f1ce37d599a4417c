"""What a decision is calibrated on: a question's signals, and whether each of the two answers is right."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.errors import InputError


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One question, seen from both sides of a decision (retrieve or not, rewrite or not, compress or not).

    Attributes:
        signals: What was known before the decision, by name: numbers, larger for a less certain reader where
            the name says an uncertainty. ``math.inf`` where the first answer was empty.
        correct_without: Score in [0, 1] of the answer without acting; True and False are 1 and 0. None where
            nobody knows.
        correct_with: Score of the answer after acting, likewise.
        cost: What acting costs on this question, in a unit of the user's own (calls, tokens, seconds).
        id: Names the question in reports; optional.

    Raises:
        InputError: If a signal is no number, a score lies outside of [0, 1], or a cost is negative.

    Example:
        >>> row = DecisionRow({"perplexity": 1.3}, correct_without=False, correct_with=True)
        >>> row.benefit
        1.0
    """

    signals: Mapping[str, float] = field(hash=False)
    correct_without: bool | float | None = None
    correct_with: bool | float | None = None
    cost: float = 1.0
    id: str = ""

    def __post_init__(self) -> None:
        """Check every number once, where it comes in."""
        kept = {name: _signal(name, value, self.id) for name, value in self.signals.items()}
        object.__setattr__(self, "signals", kept)
        for name in ("correct_without", "correct_with"):
            value = getattr(self, name)
            if value is not None and not _score(value):
                raise InputError(
                    f"{name} must be True, False or a number in [0, 1]{_named(self.id)}, got {value!r}",
                    hint="pass whether the answer was right, or a score such as token F1",
                )
        if not (math.isfinite(self.cost) and self.cost >= 0):
            raise InputError(f"cost must be a number of at least 0{_named(self.id)}, got {self.cost!r}")

    @property
    def labelled(self) -> bool:
        """Whether both answers were judged."""
        return self.correct_without is not None and self.correct_with is not None

    @property
    def benefit(self) -> float:
        """What acting changes: 1 where it mends a wrong answer, −1 where it spoils a right one.

        Raises:
            InputError: If an answer was not judged.
        """
        if self.correct_without is None or self.correct_with is None:
            raise InputError(f"the answers were not judged{_named(self.id)}", hint="give gold answers")
        return float(self.correct_with) - float(self.correct_without)


class Outcomes(NamedTuple):
    """Scores of labelled rows, as arrays of shape [n]; in single precision where that says the same."""

    without: NDArray[np.floating]
    with_: NDArray[np.floating]

    @property
    def benefit(self) -> NDArray[np.float64]:
        """What acting changes on each question."""
        found: NDArray[np.float64] = np.subtract(self.with_, self.without, dtype=np.float64)
        return found

    def part(self, some: slice | NDArray[np.integer]) -> Outcomes:
        """Return some of them."""
        return Outcomes(self.without[some], self.with_[some])


class Sample(NamedTuple):
    """What a decision is calibrated on, as arrays of shape [n].

    Attributes:
        signals: What the decision goes by.
        outcomes: Scores of both answers; None where some were not judged, which suffices for a budget alone.
        costs: Of acting.
        unjudged: How many were not.
    """

    signals: NDArray[np.float64]
    outcomes: Outcomes | None
    costs: NDArray[np.floating]
    unjudged: int = 0


def sample_of(rows: Iterable[DecisionRow], name: str) -> Sample:
    """Return rows as arrays, by one of their signals; each row is looked at once, and not kept.

    Raises:
        InputError: If there are no rows, or one lacks the signal.
    """
    columns, unjudged = array("d"), 0
    for row in rows:
        _check_signal(row, name)
        unjudged += not row.labelled
        scores = float(row.correct_without or 0.0), float(row.correct_with or 0.0)
        columns.extend((row.signals[name], *scores, float(row.cost)))
    _filled(columns)
    signals, without, with_, costs = np.frombuffer(columns, np.float64).reshape(-1, 4).T
    return Sample(signals, None if unjudged else Outcomes(without, with_), costs, unjudged)


def signal_of(rows: Sequence[DecisionRow], name: str) -> NDArray[np.float64]:
    """Return one signal of every row, shape [n].

    Raises:
        InputError: If there are no rows, or one lacks the signal.
    """
    _filled(rows)
    for row in rows:
        _check_signal(row, name)
    return np.fromiter((row.signals[name] for row in rows), np.float64, len(rows))


def outcomes_of(rows: Sequence[DecisionRow]) -> Outcomes:
    """Return the scores of every row.

    Raises:
        InputError: If there are no rows, or one was not judged.
    """
    _filled(rows)
    unjudged = sum(not row.labelled for row in rows)
    if unjudged:
        raise InputError(
            f"{unjudged} of {len(rows)} rows were not judged",
            hint="give gold answers, or ask for a budget only",
        )
    return Outcomes(
        np.fromiter((float(row.correct_without or 0.0) for row in rows), np.float64, len(rows)),
        np.fromiter((float(row.correct_with or 0.0) for row in rows), np.float64, len(rows)),
    )


def common_signals(rows: Iterable[DecisionRow]) -> tuple[str, ...]:
    """Return the names of the signals that every row has, in the order of the first.

    Example:
        >>> common_signals([DecisionRow({"a": 1.0, "b": 2.0}), DecisionRow({"b": 1.0})])
        ('b',)
    """
    found: tuple[str, ...] | None = None
    for row in rows:
        found = tuple(row.signals if found is None else filter(row.signals.__contains__, found))
    return found or ()


def _check_signal(row: DecisionRow, name: str) -> None:
    if name not in row.signals:
        there = ", ".join(sorted(row.signals)) or "none"
        raise InputError(
            f"a row has no signal {name!r}{_named(row.id)}; there is {there}",
            hint="name one that every row has",
        )


def _filled(rows: Sized) -> None:
    if not len(rows):
        raise InputError("there are no rows to calibrate on", hint="the papers take 100 questions or more")


def _signal(name: str, value: Any, row: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
        raise InputError(
            f"the signal {name!r} must be a number{_named(row)}, got {value!r}",
            hint="write math.inf where the first answer was empty",
        )
    return float(value)


def _score(value: Any) -> bool:
    return isinstance(value, Real | np.bool_) and 0 <= float(value) <= 1


def _named(row: str) -> str:
    return f" in row {row!r}" if row else ""
