"""The questions of a trace as columns: a few numbers for each, however many there are."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from surerag.decisions.policy import Scored
from surerag.decisions.rows import DecisionRow
from surerag.records.tradeoff.choices import Case, Spending

Floats = NDArray[np.float64]
_SCORES = ("without", "with_", "plain", "agrees", "plain_agrees")
_SIDES = ("shut", "opened", "usual")


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of a question, without its retrievals.

    Attributes:
        shut: Where it does not act.
        opened: Where it acts.
        plain: Of the plain pipeline.
        retrieval: One retrieval, as it was measured; None where it was not.
        alone: Questions that were asked one by one for these; 0 where they are shares of the batches of the
            recording, which one question alone takes longer than.
    """

    shut: float
    opened: float
    plain: float
    retrieval: float | None
    alone: int = 0


class Columns:
    """Questions from both sides of a decision, 96 bytes each.

    Args:
        found: Read once, one at a time.

    Attributes:
        signal: What the decision goes by, shape [n].
        shut: Prompt tokens, completion tokens, calls and seconds of not acting, shape [n, 4].
        opened: Of acting.
        usual: Of the plain pipeline.
    """

    def __init__(self, found: Iterable[Case] = ()) -> None:
        signal, scores, costs = array("d"), array("d"), array("f")
        for case in found:
            signal.append(case.signal)
            scores.extend(_number(getattr(case, name)) for name in _SCORES)
            for name in _SIDES:
                costs.extend(_counted(getattr(case, name)))
        self.signal: Floats = np.frombuffer(signal, np.float64)
        self._scores = np.frombuffer(scores, np.float64).reshape(-1, len(_SCORES))
        spent = np.frombuffer(costs, np.float32).reshape(-1, len(_SIDES), 4)
        self.shut, self.opened, self.usual = (spent[:, at] for at in range(len(_SIDES)))

    def __len__(self) -> int:
        return len(self.signal)

    def judged(self) -> Columns | None:
        """Return the questions whose answers were both judged; None where none were."""
        kept = np.isfinite(self._scores[:, :2]).all(axis=1)
        if kept.all():
            return self
        if not kept.any():
            return None
        found = Columns()
        found.signal, found._scores = self.signal[kept], self._scores[kept]
        found.shut, found.opened, found.usual = self.shut[kept], self.opened[kept], self.usual[kept]
        return found

    def scores(self, scored: Scored) -> tuple[Floats, Floats, Floats]:
        """Return scores without acting, after acting, and of the plain pipeline, by answers or agreement."""
        without, with_, plain, agrees, plain_agrees = self._scores.T
        if scored == "agreement":
            return agrees, np.ones(len(self)), plain_agrees
        return without, with_, np.where(np.isnan(plain), with_, plain)

    def rows(self, signal: str, scored: Scored) -> Sequence[DecisionRow]:
        """Return what a decision is calibrated on, each made when it is looked at."""
        without, with_, _ = self.scores(scored)
        return _Rows(signal, self.signal, without, with_, self.opened[:, :2].sum(axis=1))

    def times(self, retrieval: float | None = None) -> Times | None:
        """Return the times of the recording: shares of its batches; None where they are not known of each.

        Args:
            retrieval: Milliseconds of one retrieval, if they are known.
        """
        sides = (self.shut, self.opened, self.usual)
        shut, opened, plain = (1000 * float(side[:, 3].mean(dtype=np.float64)) for side in sides)
        return None if math.isnan(shut + opened + plain) else Times(shut, opened, plain, retrieval)


class _Columns(NamedTuple):
    signal: str
    signals: Floats
    without: Floats
    with_: Floats
    cost: NDArray[np.float32]


class _Rows(Sequence[DecisionRow]):
    def __init__(self, *columns: Any) -> None:
        self._of = _Columns(*columns)

    def __len__(self) -> int:
        return len(self._of.signals)

    @overload
    def __getitem__(self, at: int) -> DecisionRow: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[DecisionRow]: ...
    def __getitem__(self, at: int | slice) -> DecisionRow | Sequence[DecisionRow]:
        of = self._of
        if isinstance(at, slice):
            return _Rows(of.signal, *(column[at] for column in of[1:]))
        signal = {of.signal: float(of.signals[at])}
        return DecisionRow(signal, float(of.without[at]), float(of.with_[at]), float(of.cost[at]))

    def __iter__(self) -> Iterator[DecisionRow]:
        return (self[at] for at in range(len(self)))


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _counted(spent: Spending) -> tuple[float, float, float, float]:
    return spent.prompt_tokens, spent.completion_tokens, spent.calls, _number(spent.seconds)
