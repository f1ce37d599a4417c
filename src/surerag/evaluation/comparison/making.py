"""Who makes the units of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from surerag.evaluation.comparison.units import EVALUATION, measure_unit, row_schema
from surerag.evaluation.rows import Row
from surerag.journal import Answers
from surerag.methods.seper.component import SePer
from surerag.recording import Tab
from surerag.runs import Part, Run
from surerag.runs.manifest import Kind


class RowMaker:
    """Measures the rows of units.

    Args:
        keeping: From where answers are kept, and counted, to a SePer that keeps and counts them there.
        window: Rows that a local model reads, or requests that a server gets, at the same time.
        worked: Whether any row was measured before, so that rows may fail as rows.
    """

    def __init__(
        self, keeping: Callable[[Answers, Tab], SePer], *, window: int, worked: bool = False
    ) -> None:
        self._keeping, self._window, self._worked = keeping, window, worked

    @property
    def kind(self) -> Kind:
        """Of run: an evaluation."""
        return EVALUATION

    @property
    def schemas(self) -> Any:
        """Of its table."""
        return row_schema()

    def make(self, run: Run, unit: int, rows: Sequence[Row], source: str) -> Part:
        """Make a unit."""
        worked = self._worked or bool(run.units)
        part = measure_unit(run, unit, rows, self._keeping, window=self._window, worked=worked, source=source)
        self._worked = worked or part.note["failed"] < part.rows
        return part
