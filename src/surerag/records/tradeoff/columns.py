"""The questions of a trace as columns: a few bytes for each in memory, and what they cost in a file."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from surerag.decisions.policy import Scored
from surerag.decisions.rows import Outcomes
from surerag.records.tradeoff.choices import Case, Spending
from surerag.storage import storing

Floats = NDArray[np.float64]
Side = Literal["shut", "opened", "usual"]
_SCORES: Final = ("without", "with_", "plain", "agrees", "plain_agrees")
_SIDES: Final[tuple[Side, ...]] = ("shut", "opened", "usual")
_COSTS: Final = 5
_WIDTH = _COSTS * len(_SIDES)
_PART = 1 << 15
_IN_MEMORY = 1 << 20


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
    """Questions from both sides of a decision.

    Of each, memory holds its signal and its five scores: 13 bytes where there are at most 256 different
    scores, as of right and wrong answers. What it costs, 60 bytes, is in a file without a name, which goes
    with this object.

    Args:
        found: Read once, one at a time.

    Attributes:
        signal: What the decision goes by, shape [n].

    Raises:
        StorageError: If the file cannot be written.
    """

    def __init__(self, found: Iterable[Case]) -> None:
        signal, codes, known = array("d"), array("B"), dict[float | None, int]()
        self._costs = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 (as long as this object)
        costs = array("f")
        for case in found:
            signal.append(case.signal)
            numbers = [known.setdefault(getattr(case, name), len(known)) for name in _SCORES]
            if len(known) > 2 ** (8 * codes.itemsize):
                codes = array("H" if codes.itemsize == 1 else "L", codes)
            codes.extend(numbers)
            for side in _SIDES:
                costs.extend(_counted(getattr(case, side)))
            if len(costs) >= _PART:
                self._put(costs)
                del costs[:]
        self._put(costs)
        self.signal: Floats = np.frombuffer(signal, np.float64)
        self._codes = np.frombuffer(codes, f"u{codes.itemsize}").reshape(-1, len(_SCORES))
        values = np.array([math.nan if value is None else value for value in known], np.float64)
        single = values.astype(np.float32)
        self._values = single if np.array_equal(single, values, equal_nan=True) else values
        self._kept: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.signal)

    def judged(self) -> Columns | None:
        """Return the questions whose answers were both judged; None where none were."""
        missing = np.isnan(self._values)
        kept = ~(missing[self._codes[:, 0]] | missing[self._codes[:, 1]])
        if kept.all():
            return self
        if not kept.any():
            return None
        found = Columns(())
        found.signal, found._codes, found._values = self.signal[kept], self._codes[kept], self._values
        found._costs, found._kept = self._costs, kept
        return found

    def outcomes(self, scored: Scored) -> Outcomes:
        """Return scores without and after acting, by answers or by agreement with the latter."""
        if scored == "agreement":
            return Outcomes(self._score("agrees"), np.ones(len(self), np.float32))
        return Outcomes(self._score("without"), self._score("with_"))

    def plain(self, scored: Scored) -> NDArray[np.floating]:
        """Return scores of the plain pipeline, which is the one after acting where it was not recorded."""
        if scored == "agreement":
            return self._score("plain_agrees")
        plain = self._score("plain")
        missing = np.isnan(plain)
        plain[missing] = self._values[self._codes[missing, _SCORES.index("with_")]]
        return plain

    def spent(self, side: Side) -> Iterator[NDArray[np.float32]]:
        """Yield tokens read, written, calls, seconds and tokens cached, shape [some, 5], in order."""
        at, start = _COSTS * _SIDES.index(side), 0
        self._costs.seek(0)
        while read := self._costs.read(4 * _WIDTH * _PART):
            rows = np.frombuffer(read, np.float32).reshape(-1, _WIDTH)[:, at : at + _COSTS]
            yield rows if self._kept is None else rows[self._kept[start : start + len(rows)]]
            start += len(rows)

    def tokens(self, side: Side) -> NDArray[np.float32]:
        """Return tokens read and generated, shape [n]."""
        parts = (rows[:, :2].sum(axis=1) for rows in self.spent(side))
        return np.concatenate([np.empty(0, np.float32), *parts])

    def mean(self, acts: NDArray[np.bool_] | Side) -> Floats:
        """Return what a question costs in the mean, shape [5].

        Args:
            acts: Which questions act, shape [n]; or one side, where all are on it.
        """
        if not isinstance(acts, np.ndarray):
            return self._sum(acts, np.ones(len(self), np.bool_)) / len(self)
        return (self._sum("shut", ~acts) + self._sum("opened", acts)) / len(self)

    def _sum(self, side: Side, chosen: NDArray[np.bool_]) -> Floats:
        total, start = np.zeros(_COSTS), 0
        for rows in self.spent(side):
            total += rows[chosen[start : start + len(rows)]].sum(axis=0, dtype=np.float64)
            start += len(rows)
        return total

    def times(self, retrieval: float | None = None) -> Times | None:
        """Return the times of the recording: shares of its batches; None where they are not known of each.

        Args:
            retrieval: Milliseconds of one retrieval, if they are known.
        """
        shut, opened, plain = (1000 * float(self.mean(side)[3]) for side in _SIDES)
        return None if math.isnan(shut + opened + plain) else Times(shut, opened, plain, retrieval)

    def _score(self, name: str) -> NDArray[np.floating]:
        found: NDArray[np.floating] = self._values[self._codes[:, _SCORES.index(name)]]
        return found

    def _put(self, costs: array[float]) -> None:
        with storing(Path(gettempdir())):
            self._costs.write(costs.tobytes())


def _counted(spent: Spending) -> tuple[float, float, float, float, float]:
    seconds = math.nan if spent.seconds is None else spent.seconds
    return spent.prompt_tokens, spent.completion_tokens, spent.calls, seconds, spent.cached_tokens
