"""What records say of a reader: how often it surely errs, what retrieval hurts, and what doubt tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surerag.decisions.rows import DecisionRow, outcomes_of, signal_of
from surerag.evaluation.differences import PairedDifference, paired_difference
from surerag.evaluation.statistics import Estimate, Proportion, auroc, share
from surerag_studies.lazy_rag.gates import retrieving

HALF = 0.5


@dataclass(frozen=True, slots=True)
class Figures:
    """Records of one reader on one set of questions, in figures.

    Attributes:
        name: Of the world or data set.
        n: Questions.
        signal: The uncertainty that stands for doubt.
        without: Right answers without retrieval.
        with_: Right answers with it.
        helps: Questions that only retrieval gets right.
        hurts: Questions that only retrieval gets wrong.
        surely_wrong: Wrong answers among the half of the questions with the least doubt.
        wrong: Probability that doubt is larger for a wrong answer than for a right one; None where there are
            not two of each.
        benefit: Probability that doubt is larger where retrieval helps than elsewhere; None likewise.
        gain: Accuracy where the half with the most doubt retrieves, less that of a random half.
    """

    name: str
    n: int
    signal: str
    without: Proportion
    with_: Proportion
    helps: Proportion
    hurts: Proportion
    surely_wrong: Proportion
    wrong: Estimate | None
    benefit: Estimate | None
    gain: PairedDifference


def figures_of(name: str, rows: Sequence[DecisionRow], doubt: str = "entropy") -> Figures:
    """Measure records.

    Args:
        name: Whose they are.
        rows: Judged without and with retrieval.
        doubt: The signal that stands for doubt.
    """
    found = outcomes_of(rows)
    return measured(name, doubt, signal_of(rows, doubt), found.without > 0, found.with_ > 0)


def measured(name: str, signal: str, doubt: ArrayLike, without: ArrayLike, with_: ArrayLike) -> Figures:
    """Measure records that are arrays of shape [n]: doubt, and what is right without and with retrieval."""
    first, second = np.asarray(without, dtype=bool), np.asarray(with_, dtype=bool)
    values = np.asarray(doubt, dtype=np.float64)
    # Places in order: an infinite doubt is a number like all others.
    places = np.unique(values, return_inverse=True)[1].astype(np.float64)
    helps = ~first & second
    opens = retrieving(places, HALF)
    at_random = (1 - HALF) * first + HALF * second
    surest = np.argsort(places, kind="stable")[: len(places) // 2]
    return Figures(
        name=name,
        n=first.size,
        signal=signal,
        without=share(first),
        with_=share(second),
        helps=share(helps),
        hurts=share(first & ~second),
        surely_wrong=share(~first[surest]),
        wrong=_separates(places, ~first),
        benefit=_separates(places, helps),
        gain=paired_difference(np.where(second, opens, 0.0) + np.where(first, 1 - opens, 0.0), at_random),
    )


def _separates(doubt: NDArray[np.float64], flags: NDArray[np.bool_]) -> Estimate | None:
    return auroc(doubt[flags], doubt[~flags]) if 1 < flags.sum() < flags.size - 1 else None
