"""How many passages: the fewest with which plain RAG's answers lose nothing that matters."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from surerag.evaluation.run import EvaluationRun
from surerag.evaluation.statistics import POWER, SIGNIFICANCE, pairs
from surerag.measures.statistics import Estimate, paired_difference

_PLAIN = re.compile(r"plain(@\d+)?")


@dataclass(frozen=True, slots=True)
class PassageCount:
    """A system that shows so many passages, and its difference to the system that shows most of them.

    Attributes:
        system: Its name.
        passages: Passages that it shows at most.
        difference: Its score less the one with most passages; None for that system itself.
        loses_nothing: Whether the interval of the difference excludes a loss of the margin, for this number
            and for each larger one.
    """

    system: str
    passages: int
    difference: Estimate | None
    loses_nothing: bool


def passage_counts(run: EvaluationRun, margin: float) -> list[PassageCount]:
    """Return the systems of plain RAG, such as ``plain@2`` and ``plain@10``, those with most passages first.

    They are tested in this order, up to the first that is not shown to lose less than the margin. So no
    correction for their number is needed (fixed-sequence testing, Maurer et al. 1995).

    Args:
        run: The run; fewer than two such systems, or no reference answers, give an empty list.
        margin: Loss of the mean score that does not matter, such as 0.02.
    """
    metric = next((name for name in run.measures if name in run.metrics), "")
    shown = {}
    for system in run.comparable:
        if metric and _PLAIN.fullmatch(str(run.settings(system).get("system", ""))):
            answers = (row.answer for row in run.answered(system).values())
            shown[system] = max((len(answer.contexts) for answer in answers if answer), default=0)
    most, *others = sorted(shown, key=lambda system: -shown[system]) or [""]
    if not others:
        return []
    counts = [PassageCount(most, shown[most], None, loses_nothing=True)]
    for system in others:
        difference = paired_difference(*pairs(run, system, most, metric))
        holds = counts[-1].loses_nothing and excludes_loss(difference, margin)
        counts.append(PassageCount(system, shown[system], difference, holds))
    return counts


def excludes_loss(difference: Estimate, margin: float) -> bool:
    """Whether the interval of a difference excludes a loss of the margin."""
    return difference.interval is not None and difference.interval.lower > -margin


def questions_to_exclude(difference: Estimate, margin: float, tests: int = 1) -> int | None:
    """Return about how many questions would exclude a loss of the margin, four times in five.

    That is so if both systems are equally right, and as many of their answers differ as in the sample; the
    interval has 95 % over the number of tests.

    Example:
        >>> from surerag.measures.statistics import paired_difference
        >>> difference = paired_difference([1] * 5 + [0] * 95, [0] * 5 + [1] * 5 + [0] * 90)
        >>> questions_to_exclude(difference, 0.02)
        2264
    """
    if difference.interval is None or margin <= 0:
        return None
    z = NormalDist().inv_cdf(1 - SIGNIFICANCE / tests / 2)
    error = (difference.interval.upper - difference.interval.lower) / 2 / z
    needed = ((z + NormalDist().inv_cdf(POWER)) * error / margin) ** 2 * difference.n
    return math.ceil(needed)


def fewest(counts: Sequence[PassageCount]) -> PassageCount:
    """Return the smallest number of passages that is shown to lose nothing that matters."""
    return [count for count in counts if count.loses_nothing][-1]
