"""Find the smallest number of passages that is enough for plain RAG.

A number is enough if the score is at most a margin below the score with the largest number of passages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from surerag.evaluation.run import Run
from surerag.evaluation.statistics import POWER, SIGNIFICANCE, pairs
from surerag.measures.statistics import Estimate, paired_difference

_PLAIN = re.compile(r"plain(@\d+)?")


@dataclass(frozen=True, slots=True)
class PassageCount:
    """The comparison of a plain RAG system with the plain RAG system that has the most passages.

    Attributes:
        system: Name of the system.
        passages: Largest number of passages in a prompt of the system.
        difference: Mean score of the system minus the mean score of the system with the most passages; None
            for the system with the most passages.
        within_margin: Whether the lower end of the confidence interval of ``difference`` is above
            ``-margin`` for this system, and also for each system whose number of passages is larger but not
            the largest.
    """

    system: str
    passages: int
    difference: Estimate | None
    within_margin: bool


def passage_counts(run: Run, margin: float) -> list[PassageCount]:
    """Return a ``PassageCount`` for each plain RAG system, such as ``plain@10``, most passages first.

    Each system is compared with the system that has the most passages, in this order. The tests stop at the
    first system whose mean score may be worse by the margin or more. Because of the fixed order, no
    correction for the number of tests is needed (Maurer et al. 1995).

    Args:
        run: The evaluation run.
        margin: Acceptable loss of the mean score, such as 0.02.

    Returns:
        The counts; an empty list if the run has only one plain RAG system, or no reference answers.
    """
    metric = next((name for name in run.measures if name in run.metrics), "")
    n_passages = {}
    for system in run.comparable:
        if metric and _PLAIN.fullmatch(str(run.settings(system).get("system", ""))):
            answers = (row.answer for row in run.answered(system).values())
            n_passages[system] = max((len(answer.contexts) for answer in answers if answer), default=0)
    most, *others = sorted(n_passages, key=lambda system: -n_passages[system]) or [""]
    if not others:
        return []
    counts = [PassageCount(most, n_passages[most], None, within_margin=True)]
    for system in others:
        difference = paired_difference(*pairs(run, system, most, metric))
        holds = counts[-1].within_margin and excludes_loss(difference, margin)
        counts.append(PassageCount(system, n_passages[system], difference, holds))
    return counts


def excludes_loss(difference: Estimate, margin: float) -> bool:
    """Return whether the confidence interval of a difference excludes a loss of ``margin`` or more."""
    return difference.interval is not None and difference.interval.lower > -margin


def questions_to_exclude(difference: Estimate, margin: float, tests: int = 1) -> int | None:
    """Return about how many questions are needed to exclude a loss of ``margin`` with 80 % probability.

    The estimate assumes that both systems are equally good, and that their answers differ as often as in the
    sample. The significance level, 5 %, is divided by the number of tests. The result is None if the
    difference has no interval, or the margin is not positive.

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
    """Return the entry with the fewest passages, among the entries whose ``within_margin`` is true."""
    return [count for count in counts if count.within_margin][-1]
