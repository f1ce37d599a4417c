"""From measured rows to a comparison: pure functions, no model in sight."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, get_args

from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.comparison.measuring import Measured
from surerag.evaluation.comparison.results import (
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
from surerag.evaluation.statistics import Estimate, share
from surerag.methods.seper.component import SePer
from surerag.options import plain

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
    """Takes measured rows one by one and keeps their figures only.

    Attributes:
        systems: Names of all systems, in order; one without a measured question is an error at the end.
        items: Figures of what was measured.
        failures: What was not.
        weightings: How often each weighting was used.
    """

    systems: Sequence[str]
    items: list[Item] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    weightings: dict[str, int] = field(default_factory=dict)

    def add(self, measured: Measured) -> None:
        """Take one measured row."""
        row = measured.row
        if measured.error:
            self.failures.append(Failure(row.id, row.system, measured.error))
            return
        for step in measured.steps:
            if step is not None:
                self.weightings[step.weights] = self.weightings.get(step.weights, 0) + 1
        self.items.append(item_of(measured))

    def compared(self, seper: SePer, analysis: Analysis) -> SystemComparison:
        """Return what it all comes to.

        Raises:
            InputError: If a system has no measured question.
        """
        by_system = {name: [item for item in self.items if item.system == name] for name in self.systems}
        rows = [self._row(name, items, analysis) for name, items in by_system.items()]
        rows.sort(key=lambda row: -row.delta.value)
        return SystemComparison(
            reader=seper.reader.name,
            entailer=seper.entailer.name,
            settings=settings_of(seper),
            # One item without log-probabilities suffices to say that not all are weighted as asked.
            weighting=" and ".join(sorted(self.weightings)) or seper.rules.weights,
            confidence=analysis.confidence,
            test=analysis.test,
            systems=tuple(rows),
            tests=_tests([row.system for row in rows], by_system, analysis),
            items=tuple(self.items),
            failures=tuple(self.failures),
        )

    def _row(self, name: str, items: Sequence[Item], analysis: Analysis) -> SystemRow:
        if not items:
            raise InputError(
                f"no question of the system {name!r} could be measured",
                hint=f"the first failure was {self.failures[0].error}" if self.failures else "",
            )
        asked = [item for item in items if item.before is not None]
        before = [item.before for item in items if item.before is not None]
        after = [item.after for item in items if item.after is not None]
        return SystemRow(
            system=name,
            n=len(items),
            delta=_mean([item.delta for item in items], analysis),
            before=statistics.fmean(before) if before else None,
            after=statistics.fmean(after) if after else None,
            helped=share([item.low > 0 for item in items], analysis.confidence),
            harmed=share([item.high < 0 for item in items], analysis.confidence),
            empty=len(items) - len(asked),
            failed=sum(failure.system == name for failure in self.failures),
            prompt_tokens=statistics.fmean(item.prompt_tokens for item in asked) if asked else 0.0,
            truncated=sum(item.truncated for item in items),
            steps=_steps(items, analysis),
        )


def item_of(measured: Measured) -> Item:
    """Return a measured row's figures."""
    row, last = measured.row, measured.steps[-1] if measured.steps else None
    deltas = tuple(0.0 if step is None else step.delta for step in measured.steps)
    if last is None:
        # ΔSePer of no context is SePer of no context minus itself.
        return Item(row.id, row.system, None, None, 0.0, 0.0, 0.0, deltas, 0, 0)
    return Item(
        id=row.id,
        system=row.system,
        before=last.before.seper,
        after=last.after.seper,
        delta=last.delta,
        low=last.interval.lower,
        high=last.interval.upper,
        steps=deltas,
        prompt_tokens=last.after.prompt_tokens,
        truncated=last.truncated,
    )


def settings_of(seper: SePer) -> Mapping[str, Any]:
    """Return all that steers a SePer, as plain values under its own names; prompts as their texts."""
    options = {name: plain(value) for name, value in seper.chosen().items()}
    prompts = options.pop("prompts")
    return {**options, **seper.rules._asdict(), **prompts}


def _tests(
    ranked: Sequence[str], by_system: Mapping[str, Sequence[Item]], analysis: Analysis
) -> tuple[PairedTest, ...]:
    pairs = [
        pair for pair in combinations(ranked, 2) if analysis.baseline is None or analysis.baseline in pair
    ]
    deltas = {name: {item.id: item.delta for item in items} for name, items in by_system.items()}
    found = []
    for first, second in pairs:
        common = [name for name in deltas[first] if name in deltas[second]]
        if len(common) < 2:
            continue
        differences = [deltas[first][name] - deltas[second][name] for name in common]
        p = (
            permutation_p(differences, seed=analysis.seed)
            if analysis.test == "permutation"
            else wilcoxon_p(differences)
        )
        found.append((first, second, len(common), _mean(differences, analysis), p))
    corrected = holm([p for *_, p in found])
    return tuple(
        PairedTest(*known, p_holm=p_holm, significant=p_holm < 1 - analysis.confidence)
        for known, p_holm in zip(found, corrected, strict=True)
    )


def _steps(items: Sequence[Item], analysis: Analysis) -> tuple[Estimate, ...]:
    longest = max(len(item.steps) for item in items)
    if longest < 2:
        return ()
    return tuple(
        _mean([item.steps[min(at, len(item.steps) - 1)] if item.steps else 0.0 for item in items], analysis)
        for at in range(longest)
    )


def _mean(values: Sequence[float], analysis: Analysis) -> Estimate:
    return mean_with_interval(values, confidence=analysis.confidence, seed=analysis.seed)
