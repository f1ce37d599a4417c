"""From figures of rows to a comparison: no model in sight, and no row kept."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, get_args

import numpy as np

from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.comparison.measuring import Measured
from surerag.evaluation.comparison.results import (
    EDGES,
    FAILURES,
    Failure,
    Item,
    PairedTest,
    SystemComparison,
    SystemRow,
    TestName,
)
from surerag.evaluation.comparison.significance import (
    holm,
    mean_with_interval,
    permutation_p,
    wilcoxon_p,
)
from surerag.evaluation.comparison.units import item_from, item_of
from surerag.evaluation.resampling import Floats
from surerag.evaluation.statistics import Estimate, wilson_interval
from surerag.methods.seper.component import SePer
from surerag.options import plain
from surerag.prices import Costs, load_prices

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Analysis:
    """How a comparison is analysed.

    Attributes:
        confidence: Of intervals over questions; one minus it is the level of the tests.
        test: ``"permutation"`` or ``"wilcoxon"``.
        baseline: Compare every system with this one only, which costs less of the tests' power; by
            default all pairs are compared.
        seed: Of resampling.

    Raises:
        ConfigurationError: If a value is out of range.
    """

    confidence: float = CONFIDENCE
    test: TestName = "permutation"
    baseline: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise ConfigurationError(f"confidence must be in (0, 1), got {self.confidence!r}")
        if self.test not in get_args(TestName):
            raise ConfigurationError(f"test must be one of {get_args(TestName)}, got {self.test!r}")

    def check(self, systems: Sequence[str]) -> None:
        """Refuse a baseline that is none of the systems, before anything is asked.

        Raises:
            ConfigurationError: If it is none.
        """
        if self.baseline is not None and self.baseline not in systems:
            raise ConfigurationError(
                f"the baseline {self.baseline!r} is none of the systems {list(systems)}",
                hint="name one of them",
            )


@dataclass
class Tally:
    """Takes figures one by one, and keeps twelve bytes of each: its question's number and its ΔSePer.

    Attributes:
        systems: Names of all systems, in order; one without a measured question is an error at the end.
        failures: The first of what could not be measured.
        weightings: Which weightings were used.
    """

    systems: Sequence[str]
    failures: list[Failure] = field(default_factory=list)
    weightings: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._of = {name: _System() for name in self.systems}
        self._question, self._last = -1, ""

    def add(self, item: Item, weights: Iterable[str] = ()) -> None:
        """Take what was measured of a question for one system; all systems of a question come together."""
        self.weightings.update(weights)
        self._of[item.system].add(item, self._number(item.id))

    def fail(self, failure: Failure) -> None:
        """Take what could not be measured."""
        self._number(failure.id)
        self._of[failure.system].failed += 1
        if len(self.failures) < FAILURES:
            self.failures.append(failure)

    def take(self, record: Mapping[str, Any]) -> None:
        """Take a row of a run's table; see :data:`surerag.evaluation.comparison.units.FIGURES`."""
        if record["error"] is not None:
            self.fail(Failure(record["id"], record["system"], record["error"]))
        else:
            self.add(item_from(record), record["weights"])

    def measured(self, measured: Measured) -> None:
        """Take a row that was just measured."""
        if measured.error:
            self.fail(Failure(measured.row.id, measured.row.system, measured.error))
        else:
            self.add(item_of(measured), {step.weights for step in measured.steps if step is not None})

    def compared(self, seper: SePer, analysis: Analysis, spent: Costs | None = None) -> SystemComparison:
        """Return what it all comes to.

        Args:
            seper: What measured.
            analysis: How to analyse.
            spent: What measuring cost, if it is known; money is added where the reader has a price.

        Raises:
            InputError: If a system has no measured question.
        """
        return self.told(seper.reader.name, seper.entailer.name, settings_of(seper), analysis, spent)

    def told(
        self,
        reader: str,
        entailer: str,
        settings: Mapping[str, Any],
        analysis: Analysis,
        spent: Costs | None = None,
    ) -> SystemComparison:
        """Return the same, where nothing is left of what measured but its name and settings."""
        rows = [self._row(name, of, analysis) for name, of in self._of.items()]
        rows.sort(key=lambda row: -row.delta.value)
        return SystemComparison(
            reader=reader,
            entailer=entailer,
            settings=settings,
            # One item without log-probabilities suffices to say that not all are weighted as asked.
            weighting=" and ".join(sorted(self.weightings)) or str(settings["weights"]),
            confidence=analysis.confidence,
            test=analysis.test,
            systems=tuple(rows),
            tests=self._tests([row.system for row in rows], analysis),
            failures=tuple(self.failures),
            costs=None if spent is None else load_prices().priced(spent, reader),
        )

    def _number(self, name: str) -> int:
        """Return a question's number: rows of one follow each other."""
        if name != self._last:
            self._question, self._last = self._question + 1, name
        return self._question

    def _row(self, name: str, of: _System, analysis: Analysis) -> SystemRow:
        n = len(of.deltas)
        if n == 0:
            raise InputError(
                f"no question of the system {name!r} could be measured",
                hint=f"the first failure was {self.failures[0].error}" if self.failures else "",
            )
        deltas = np.frombuffer(of.deltas)
        return SystemRow(
            system=name,
            n=n,
            delta=_mean(deltas, analysis),
            before=of.before / of.asked if of.asked else None,
            after=of.after / of.asked if of.asked else None,
            helped=wilson_interval(of.helped, n, analysis.confidence),
            harmed=wilson_interval(of.harmed, n, analysis.confidence),
            empty=n - of.asked,
            failed=of.failed,
            prompt_tokens=of.prompt_tokens / of.asked if of.asked else 0.0,
            truncated=of.truncated,
            cut=of.cut,
            steps=tuple(_mean(values, analysis) for values in of.by_step()),
            histogram=tuple(int(count) for count in np.histogram(deltas, EDGES)[0]),
        )

    def _tests(self, ranked: Sequence[str], analysis: Analysis) -> tuple[PairedTest, ...]:
        """Compare pairs of systems by question, system and ΔSePer alone."""
        found = []
        for first, second in combinations(ranked, 2):
            if analysis.baseline is not None and analysis.baseline not in (first, second):
                continue
            differences = self._of[first].minus(self._of[second])
            if len(differences) < 2:
                continue
            p = (
                permutation_p(differences, seed=analysis.seed)
                if analysis.test == "permutation"
                else wilcoxon_p(differences)
            )
            found.append((first, second, len(differences), _mean(differences, analysis), p))
        corrected = holm([p for *_, p in found])
        return tuple(
            PairedTest(*known, p_holm=p_holm, significant=p_holm < 1 - analysis.confidence)
            for known, p_holm in zip(found, corrected, strict=True)
        )


class _System:
    """What is kept of one system."""

    def __init__(self) -> None:
        self.questions, self.deltas = array("I"), array("d")
        self.steps: list[array[float]] = []
        self.before = self.after = self.prompt_tokens = 0.0
        self.asked = self.helped = self.harmed = self.failed = self.truncated = self.cut = 0

    def add(self, item: Item, question: int) -> None:
        self.questions.append(question)
        self.deltas.append(item.delta)
        self.helped += item.low > 0
        self.harmed += item.high < 0
        self.truncated += item.truncated
        self.cut += item.truncated > 0
        if item.before is not None and item.after is not None:
            self.asked += 1
            self.before += item.before
            self.after += item.after
            self.prompt_tokens += item.prompt_tokens
        if self.steps or len(item.steps) > 1:
            self._add_steps(item.steps)

    def _add_steps(self, steps: Sequence[float]) -> None:
        n = len(self.deltas) - 1
        while len(self.steps) < len(steps):  # who had fewer steps counts by the last one
            self.steps.append(array("d", self.steps[-1] if self.steps else self.deltas[:n]))
        for at, values in enumerate(self.steps):
            values.append(steps[min(at, len(steps) - 1)] if steps else 0.0)

    def by_step(self) -> Iterator[Floats]:
        for values in self.steps:
            yield np.frombuffer(values)

    def minus(self, other: _System) -> Floats:
        """Return the differences on the questions that both have."""
        mine, theirs = np.frombuffer(self.questions, np.uint32), np.frombuffer(other.questions, np.uint32)
        if np.array_equal(mine, theirs):
            return np.frombuffer(self.deltas) - np.frombuffer(other.deltas)
        _, at, there = np.intersect1d(mine, theirs, assume_unique=True, return_indices=True)
        found: Floats = np.frombuffer(self.deltas)[at] - np.frombuffer(other.deltas)[there]
        return found


def settings_of(seper: SePer) -> Mapping[str, Any]:
    """Return all that steers a SePer, as plain values under its own names; prompts as their texts."""
    options = {name: plain(value) for name, value in seper.chosen().items()}
    prompts = options.pop("prompts")
    return {**options, **seper.rules._asdict(), **prompts}


def _mean(values: Floats, analysis: Analysis) -> Estimate:
    return mean_with_interval(values, confidence=analysis.confidence, seed=analysis.seed)
