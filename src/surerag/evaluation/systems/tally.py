"""Counters of a comparison: what every figure and test needs, however many questions there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surerag.evaluation.ci.paired import Pairs
from surerag.evaluation.systems.rows import NUMBERS

Matrix = NDArray[np.float64]


class Tally:
    """Sums over questions: of each measure by system, and of each pair of systems where both were measured.

    All of it is five matrices of shape [systems, systems] for each measure, so that memory does not grow with
    questions, and that a batch of questions is a few matrix products.

    Args:
        systems: Names, in the order of the rows.

    Attributes:
        questions: That were asked.
        failed: Of them, by system, how many failed.
        incomplete: Questions that at least one system failed on: pairs with it leave them out.
    """

    def __init__(self, systems: Sequence[str]) -> None:
        self.systems = tuple(systems)
        self.questions = 0
        self.incomplete = 0
        self.failed = dict.fromkeys(self.systems, 0)
        self.retrieved = dict.fromkeys(self.systems, 0)
        self.known_retrieved = dict.fromkeys(self.systems, 0)
        self.cached = dict.fromkeys(self.systems, 0)
        self.currencies: set[str] = set()
        self.first_errors: dict[str, str] = {}
        size = len(self.systems)
        self._sums = {
            name: {kind: np.zeros((size, size)) for kind in ("n", "x", "xx", "xy", "lost")}
            for name in NUMBERS
        }
        self._binary = dict.fromkeys(NUMBERS, True)

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add the rows of whole questions."""
        columns = {name: [row[name] for row in rows] for name in (*NUMBERS, *_OTHERS)}
        self.add_columns(columns, len(rows))

    def add_batches(self, batches: Iterable[Any]) -> None:
        """Add Arrow batches, which may end within a question."""
        size = len(self.systems)
        held: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            for name in COLUMNS:
                held[name] += batch.column(name).to_pylist()
            whole = rows - rows % size
            if whole >= _AT_ONCE:
                self.add_columns({name: values[:whole] for name, values in held.items()}, whole)
                held = {name: values[whole:] for name, values in held.items()}
                rows -= whole
        if rows:
            self.add_columns(held, rows)

    def add_columns(self, columns: Mapping[str, Sequence[Any]], rows: int) -> None:
        """Add whole questions as columns."""
        size = len(self.systems)
        n = rows // size
        self.questions += n
        failed = np.array([error is not None for error in columns["error"]]).reshape(n, size)
        self.incomplete += int(failed.any(axis=1).sum())
        for at, name in enumerate(self.systems):
            self.failed[name] += int(failed[:, at].sum())
            told = columns["retrieved"][at::size]
            self.retrieved[name] += sum(one is True for one in told)
            self.known_retrieved[name] += sum(one is not None for one in told)
            self.cached[name] += sum(one or 0 for one in columns["cached_tokens"][at::size])
            if name not in self.first_errors and failed[:, at].any():
                self.first_errors[name] = str(columns["error"][int(failed[:, at].argmax()) * size + at])
        self.currencies |= {one for one in columns["currency"] if one}
        for name in NUMBERS:
            values = np.array(
                [np.nan if one is None else one for one in columns[name]], dtype=np.float64
            ).reshape(n, size)
            self._count(name, values.T)

    def _count(self, name: str, values: Matrix) -> None:
        there = np.isfinite(values)
        if not there.any():
            return
        x, mask = np.where(there, values, 0.0), there.astype(np.float64)
        self._binary[name] = self._binary[name] and bool(np.isin(x, (0.0, 1.0)).all())
        sums = self._sums[name]
        # Of the system in the row, over the questions that the system in the column was measured on as well.
        sums["n"] += mask @ mask.T
        sums["x"] += x @ mask.T
        sums["xx"] += (x * x) @ mask.T
        sums["xy"] += x @ x.T
        if self._binary[name]:
            sums["lost"] += (mask - x) @ x.T

    def measured(self, name: str, system: str) -> int:
        """Return on how many questions a measure was taken of a system."""
        at = self.systems.index(system)
        return int(self._sums[name]["n"][at, at])

    def pairs(self, name: str, first: str, second: str) -> Pairs:
        """Return a measure of two systems, on the questions that it was taken of both."""
        a, b = self.systems.index(first), self.systems.index(second)
        sums = self._sums[name]
        return Pairs(
            n=int(sums["n"][a, b]),
            first=float(sums["x"][a, b]),
            second=float(sums["x"][b, a]),
            first_squared=float(sums["xx"][a, b]),
            second_squared=float(sums["xx"][b, a]),
            product=float(sums["xy"][a, b]),
            # A question on which both are 0 or 1 is lost where the first is 0 and the second 1.
            lost=round(sums["lost"][a, b]) if self._binary[name] else 0,
            gained=round(sums["lost"][b, a]) if self._binary[name] else 0,
            is_binary=self._binary[name],
        )


_OTHERS = ("error", "retrieved", "cached_tokens", "currency")
COLUMNS = (*NUMBERS, *_OTHERS)
"""Columns that are read for a tally."""
_AT_ONCE = 8192
