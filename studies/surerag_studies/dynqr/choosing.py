"""Which θ a sample chooses, by which rule, and how much of that is chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from surerag.evaluation.formatting import percent, plain_table
from surerag_studies.dynqr.records import ALWAYS, Record, outcome_of

DRAWS = 400
"""Samples drawn, with replacement, from the questions of the world for calibration."""

MAX_LOSS = 0.01
BUDGET = 0.4


@dataclass(frozen=True, slots=True)
class Spread:
    """A quantity over samples.

    Attributes:
        middle: Median.
        low: 2.5 % of samples give less.
        high: 2.5 % give more.
    """

    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """A rule and a size of sample.

    Attributes:
        rule: In words.
        n: Questions in a sample.
        rewritten: Share of the asked world's questions that are rewritten at the θ chosen.
        accuracy: Accuracy there.
        against_always: That less the accuracy of rewriting always.
    """

    rule: str
    n: int
    rewritten: Spread
    accuracy: Spread
    against_always: Spread


class _Sample:
    """Questions in order of their uncertainty, and what rewriting makes of each."""

    def __init__(self, records: Sequence[Record], places: NDArray[np.intp] | None = None) -> None:
        picked = records if places is None else [records[place] for place in places]
        ordered = sorted(picked, key=lambda one: one.original.uncertainty["perplexity"])
        self.values = np.array([one.original.uncertainty["perplexity"] for one in ordered])
        kept = np.array([one.original.correct for one in ordered], dtype=np.float64)
        made = np.array([outcome_of(one, ALWAYS, "substitute").attempt.correct for one in ordered])
        # Accuracy if the first i are kept as they are and the others are rewritten.
        self._accuracies = (
            np.concatenate([[0.0], np.cumsum(kept)]) + np.concatenate([np.cumsum(made[::-1])[::-1], [0.0]])
        ) / len(ordered)
        # A θ lies on a value; of equal values all are kept.
        self.cuts = np.array([0, *(np.flatnonzero(np.diff(self.values) > 0) + 1), len(ordered)])

    def accuracy(self, threshold: float) -> float:
        return float(self._accuracies[self._kept(threshold)])

    def rewritten(self, threshold: float) -> float:
        return 1 - self._kept(threshold) / len(self.values)

    @property
    def accuracies(self) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self._accuracies[self.cuts]
        return found

    def threshold(self, cut: int) -> float:
        return -math.inf if cut == 0 else float(self.values[cut - 1])

    def _kept(self, threshold: float) -> int:
        return int(np.searchsorted(self.values, threshold, side="right"))


def _best(sample: _Sample) -> float:
    """Return the θ of the best accuracy; of equally good ones, the largest, which costs least."""
    found = sample.accuracies
    return sample.threshold(int(sample.cuts[np.flatnonzero(found == found.max())[-1]]))


def _bounded(sample: _Sample) -> float:
    """Return the largest θ below which no θ loses more than ``MAX_LOSS`` against rewriting always."""
    bad = np.flatnonzero(sample.accuracies < sample.accuracies[0] - MAX_LOSS)
    last = len(sample.cuts) - 1 if not bad.size else bad[0] - 1
    return sample.threshold(int(sample.cuts[last]))


def _within(sample: _Sample) -> float:
    """Return the smallest θ at which at most ``BUDGET`` of the sample are rewritten."""
    shares = 1 - sample.cuts / len(sample.values)
    return sample.threshold(int(sample.cuts[np.flatnonzero(shares <= BUDGET)[0]]))


RULES: tuple[tuple[str, Callable[[_Sample], float]], ...] = (
    ("best accuracy", _best),
    (f"lose at most {percent(MAX_LOSS, 0)}", _bounded),
    (f"rewrite at most {percent(BUDGET, 0)}", _within),
)
SIZES = (100, 500)


def choices(tuning: Sequence[Record], records: Sequence[Record], seed: int = 0) -> tuple[ChoiceRow, ...]:
    """Let samples of the world for calibration choose θ, and look at each choice on the world that is asked.

    Args:
        tuning: What samples are drawn from, with replacement.
        records: Where each θ is applied.
        seed: Of the drawing.
    """
    asked, rng = _Sample(records), np.random.default_rng(seed)
    whole = asked.accuracy(-math.inf)
    found = []
    for n in SIZES:
        samples = [_Sample(tuning, rng.integers(len(tuning), size=n)) for _ in range(DRAWS)]
        for name, rule in RULES:
            chosen = [rule(sample) for sample in samples]
            right = np.array([asked.accuracy(one) for one in chosen])
            acted = [asked.rewritten(one) for one in chosen]
            found.append(ChoiceRow(name, n, _spread(acted), _spread(right), _spread(right - whole)))
    return tuple(found)


def _spread(values: Sequence[float] | NDArray[np.float64]) -> Spread:
    low, middle, high = np.quantile(values, [0.025, 0.5, 0.975])
    return Spread(float(middle), float(low), float(high))


def choices_table(rows: Sequence[ChoiceRow]) -> Table:
    """What each rule makes of samples: the chance in a calibrated θ."""
    table = plain_table("θ by rule and sample, substitute, %: median and 95 % of samples")
    for name in ("Rule", "n", "Rewritten", "Accuracy", "vs always"):
        table.add_column(name, justify="left" if name == "Rule" else "right")
    for row in rows:
        table.add_row(
            row.rule, str(row.n), _shown(row.rewritten), _shown(row.accuracy), _shown(row.against_always, "+")
        )
    table.caption = (
        f"{DRAWS} samples of n questions each, drawn from those for calibration; each θ is applied to the "
        "questions that are asked. The paper takes the best of 100."
    )
    return table


def _shown(found: Spread, sign: str = "") -> str:
    return f"{100 * found.middle:{sign}.1f} [{100 * found.low:{sign}.1f}, {100 * found.high:{sign}.1f}]"
