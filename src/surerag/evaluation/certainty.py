"""Measure how well certainty detects wrong answers, and how many of the most certain answers are right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surerag.calibration import CalibrationRow
from surerag.certainty import NO_WORDS
from surerag.evaluation.run import Row, Run
from surerag.measures import auroc
from surerag.measures.certainty import Indication, indication
from surerag.measures.statistics import Estimate, Floats, group_numbers, mean_interval

SHARES = (0.5, 0.7, 0.9)
"""A report states how many of the most certain 50, 70 and 90 % of the answers are right."""
RIGHT = 0.5
"""Minimum score of an answer that counts as right."""
FEWEST = 10
"""Minimum number of answers of which a share of right answers is shown. With 9 answers, the interval spans
more than 30 points, even if all 9 are right. The first point of a curve has at least this number of answers,
and at least a tenth of all answers."""
_CURVE_POINTS = 60


@dataclass(frozen=True, slots=True)
class SurestAnswers:
    """How well certainty separates the right answers of one system from its wrong answers.

    Attributes:
        measure: Name of the measure of uncertainty by which the answers are ordered.
        n: Number of answers with a certainty and a score.
        unmeasured: Number of answers with a score but without log-probabilities.
        auroc: AUROC of the uncertainty as a detector of wrong answers; None if all answers are right or all
            are wrong.
        right: Share of right answers among the most certain 50, 70, 90 and 100 % of the answers; the keys are
            the shares 0.5, 0.7, 0.9 and 1.
        curve: The same as ``right`` for up to 60 shares of answers, in ascending order.
    """

    measure: str
    n: int
    unmeasured: int
    auroc: Estimate | None
    right: Mapping[float, Estimate]
    curve: Mapping[float, Estimate]

    @property
    def tells(self) -> Indication:
        """What high uncertainty indicates; see :func:`surerag.measures.certainty.indication`."""
        return indication(self.auroc)


def surest_answers(run: Run, system: str) -> SurestAnswers | None:
    """Return how well certainty separates right from wrong answers, and how often the surest are right.

    An answer counts as right if its score by the run's first metric is at least 0.5. Return None if no answer
    has both a certainty and a score.

    Raises:
        ConfigurationError: If the run has no such system.

    Example:
        >>> from surerag.certainty import certainty_of
        >>> from surerag.evaluation import EvaluationAnswer, evaluate
        >>> from surerag.messages import TokenTrace
        >>> def answer(question):  # a model that is less sure where it is wrong
        ...     number = int(question)
        ...     trace = TokenTrace(("x",), (-0.01 * number,))
        ...     return EvaluationAnswer("no" if number > 30 else "yes", certainty=certainty_of(trace))
        >>> run = evaluate({"plain": answer}, [(str(number), "yes") for number in range(40)])
        >>> surest = surest_answers(run, "plain")
        >>> surest.tells, surest.auroc.value  # high uncertainty indicates wrong answers
        ('wrong answers', 1.0)
        >>> surest.right[0.7].value, surest.right[1].value  # right among the surest 70 %, and among all
        (1.0, 0.775)
    """
    place = (surest_answers, system)
    if place not in run.derived:
        run.derived[place] = _surest_answers(run, system)
    surest: SurestAnswers | None = run.derived[place]
    return surest


def _surest_answers(run: Run, system: str) -> SurestAnswers | None:
    metric = next((name for name in run.measures if name in run.metrics), "")
    rows = run.certainty_rows(system, metric) if metric else []
    rows = [row for row in rows if row.score_without is not None]
    if not rows:
        return None
    rows.sort(key=lambda row: row.uncertainty)
    uncertainty = np.array([row.uncertainty for row in rows])
    right = np.array([float(row.score_without or 0) >= RIGHT for row in rows])
    groups = group_numbers([row.group for row in rows], len(rows))
    least = min(max(FEWEST, len(rows) // 10), len(rows))
    counts = np.unique(np.linspace(least, len(rows), _CURVE_POINTS).round().astype(int))
    return SurestAnswers(
        next((row.scope["measure"] for row in rows if "measure" in row.scope), ""),
        len(rows),
        len(run.values(system, metric).keys() & run.answered(system).keys()) - len(rows),
        auroc(uncertainty, right, groups.tolist()),
        {share: _right_among(uncertainty, right, groups, _count(share, len(rows))) for share in (*SHARES, 1)},
        {count / len(rows): _right_among(uncertainty, right, groups, count) for count in counts.tolist()},
    )


def answers_by_uncertainty(run: Run, system: str) -> list[tuple[Row, CalibrationRow]]:
    """Return a system's answers with their uncertainties, the least uncertain first.

    Answers without a certainty are left out. An empty or truncated answer has an infinite uncertainty.
    """
    rows, certainties = run.answered(system), run.certainties(system)
    answers = [
        (rows[key], CalibrationRow.of(certainty, 0.0))
        for key, certainty in certainties.items()
        if certainty.uncertainty is not None or certainty.is_cut or certainty.reason == NO_WORDS
    ]
    return sorted(answers, key=lambda answer: answer[1].uncertainty)


def surest_answers_by_system(run: Run) -> dict[str, SurestAnswers]:
    """Return ``SurestAnswers`` by system, for the systems in ``run.comparable`` that report a certainty."""
    by_system = ((system, surest_answers(run, system)) for system in run.comparable)
    return {system: surest for system, surest in by_system if surest is not None}


def _count(share: float, n: int) -> int:
    return max(1, round(share * n))


def _right_among(
    uncertainty: Floats, right: NDArray[np.bool_], groups: NDArray[np.intp], count: int
) -> Estimate:
    values = right[:count].astype(np.float64)
    first, end = (
        int(np.searchsorted(uncertainty, uncertainty[count - 1], side)) for side in ("left", "right")
    )
    if end > count:  # answers with the same uncertainty have no order, so their mean replaces their values
        values[first:] = right[first:end].mean()
    return mean_interval(values, groups[:count])
