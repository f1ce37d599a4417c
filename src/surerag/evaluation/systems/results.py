"""Figures of a comparison: what each system did, how they differ, and which is recommended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from surerag.evaluation.serialise import to_json
from surerag.evaluation.statistics import Estimate

Standing = Literal["better", "no worse", "worse", "no better", "undecided"]
"""How a system stands to the baseline: shown to be better; shown to lose less than what matters; shown to be
worse; shown to gain less than what matters; or none of these."""


@dataclass(frozen=True, slots=True)
class SystemFigures:
    """What a system did.

    Attributes:
        name: As it was given.
        n: Questions that it answered.
        failed: Questions that it failed on.
        measures: Mean of each measure that was taken, with its interval.
        measured: On how many questions.
        costs: Mean of each cost of a question.
        retrieved: Share of questions that it retrieved for; None where it does not tell.
        cached: Share of the tokens it read that a server had in its cache.
        pareto: Whether no other system was both as good and as cheap, by the figures as they are.
    """

    name: str
    n: int
    failed: int
    measures: Mapping[str, Estimate]
    measured: Mapping[str, int]
    costs: Mapping[str, float]
    retrieved: float | None
    cached: float
    pareto: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """A measure of a system less that of the baseline, on the questions that both answered.

    Attributes:
        measure: Of what.
        system: Whose.
        baseline: Against whose.
        n: Questions.
        value: Mean difference.
        low: Of the two-sided interval.
        high: Of it.
        p: Two-sided p-value of "they do not differ".
        p_holm: The same, corrected for the number of systems.
        lost: Questions that only the baseline got right, where answers are right or wrong.
        gained: Questions that only this one got right.
        spread: Standard deviation of a question's difference.
    """

    measure: str
    system: str
    baseline: str
    n: int
    value: float
    low: float
    high: float
    p: float
    p_holm: float
    lost: int
    gained: int
    spread: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a system stands to the baseline.

    Attributes:
        system: Which.
        standing: In the measure that counts.
        cheaper: Whether it is shown to cost less; False if shown to cost more, None where neither is.
        more: Further questions that would decide it, if things are as they look; None where it is decided.
    """

    system: str
    standing: Standing
    cheaper: bool | None
    more: int | None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Which system to use.

    Attributes:
        system: The one; the baseline where nothing was shown to be worth its place.
        decided: Whether tests say so: no other system may still turn out to be the better choice.
        text: In a paragraph.
        undecided: Systems that may.
        more: Further questions that would decide all of them, as far as that can be said.
    """

    system: str
    decided: bool
    text: str
    undecided: tuple[str, ...]
    more: int | None


@dataclass(frozen=True, slots=True)
class SystemsReport:
    """A comparison.

    Attributes:
        questions: Asked.
        incomplete: Of them, those on which at least one system failed; pairs with it leave them out.
        measure: The one that counts: ``"accuracy"``, or ``"agreement"`` where there are no gold answers.
        cost: What a question costs, for "cheaper" and the picture.
        currency: Of money, where a price is known.
        baseline: What all others are compared with.
        margin: Difference that matters, in the unit of the measure.
        confidence: Of intervals and verdicts.
        systems: Figures of each.
        differences: Of all measures and costs, against the baseline.
        verdicts: In the measure that counts.
        recommendation: Which to use.
        about: What was compared, and how.
        errors: A failure of each system that had one.
    """

    questions: int
    incomplete: int
    measure: str
    cost: str
    currency: str
    baseline: str
    margin: float
    confidence: float
    systems: tuple[SystemFigures, ...]
    differences: tuple[Difference, ...]
    verdicts: tuple[Verdict, ...]
    recommendation: Recommendation
    about: Mapping[str, Any]
    errors: Mapping[str, str]

    def system(self, name: str) -> SystemFigures:
        """Return the figures of a system."""
        return next(one for one in self.systems if one.name == name)

    def difference(self, system: str, measure: str | None = None) -> Difference:
        """Return how a system differs from the baseline, in the measure that counts if none is named."""
        wanted = self.measure if measure is None else measure
        return next(one for one in self.differences if one.system == system and one.measure == wanted)

    def to_json(self) -> str:
        """Return all figures as JSON."""
        return to_json(self)
