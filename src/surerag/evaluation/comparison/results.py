"""Results of a comparison: plain values that serialise to JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from surerag.evaluation.serialise import to_json, write_json
from surerag.evaluation.statistics import Estimate, Proportion
from surerag.prices import Costs

TestName = Literal["permutation", "wilcoxon"]
FAILURES: Final = 100
"""So many failures are kept with their reasons; all are counted."""
EDGES: Final = tuple(at / 20 - 1 for at in range(41))
"""Edges of the histograms of ΔSePer."""


@dataclass(frozen=True, slots=True)
class Item:
    """One question of one system, in figures.

    Attributes:
        id: Of the question.
        system: Name of the system.
        before: SePer without context; None where it was not asked, because nothing was found.
        after: SePer with the context of the last step; None likewise.
        delta: ΔSePer of the last step; 0 where nothing was found.
        low: Lower end of the 95 % interval of ``delta`` over the samples.
        high: Its upper end.
        steps: ΔSePer of each step, of several.
        prompt_tokens: Length of the prompt with the context; 0 where nothing was found.
        truncated: Samples, without and with the context, that were cut at ``max_tokens``.
    """

    id: str
    system: str
    before: float | None
    after: float | None
    delta: float
    low: float
    high: float
    steps: tuple[float, ...]
    prompt_tokens: int
    truncated: int


@dataclass(frozen=True, slots=True)
class Failure:
    """One question of one system that could not be measured."""

    id: str
    system: str
    error: str


@dataclass(frozen=True, slots=True)
class SystemRow:
    """One system over all its questions.

    Attributes:
        system: Its name.
        n: Questions that were measured.
        delta: Mean ΔSePer with its bootstrap interval over the questions.
        before: Mean SePer without context, over the questions for which something was found; None if
            that was none.
        after: Mean SePer with context, over the same questions.
        helped: Questions whose ΔSePer is above 0 with its whole interval over the samples.
        harmed: Questions whose ΔSePer is below 0 with its whole interval.
        empty: Questions for which nothing was found.
        failed: Questions that could not be measured.
        prompt_tokens: Mean length of the prompts with context.
        truncated: Samples that were cut at ``max_tokens``: half answers, which seldom mean a gold answer.
        cut: Questions with such samples.
        steps: Mean ΔSePer after each step, with intervals, where the system has several; a question
            whose steps ended earlier counts by its last one.
        histogram: Questions by their ΔSePer, in forty steps from −1 to 1.
    """

    system: str
    n: int
    delta: Estimate
    before: float | None
    after: float | None
    helped: Proportion
    harmed: Proportion
    empty: int
    failed: int
    prompt_tokens: float
    truncated: int
    cut: int
    steps: tuple[Estimate, ...]
    histogram: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Two systems on the questions that both were measured on.

    Attributes:
        first: The system with the larger mean ΔSePer over its own questions.
        second: The other.
        n: Questions that both have.
        difference: Mean of ΔSePer of the first minus that of the second, with its bootstrap interval.
        p: Two-sided p-value of this test alone.
        p_holm: The same, corrected for all the tests of the comparison.
        significant: Whether ``p_holm`` is below one minus the confidence.
    """

    first: str
    second: str
    n: int
    difference: Estimate
    p: float
    p_holm: float
    significant: bool


@dataclass(frozen=True, slots=True)
class SystemComparison:
    """What each system was worth to a reader, and which differences are more than noise.

    Attributes:
        reader: Identity of the reader.
        entailer: Identity of the entailer.
        settings: What SePer was steered by.
        weighting: The weighting that was used: ``"frequency"`` where the reader has no log-probabilities,
            whatever was asked for.
        confidence: Of all intervals over questions.
        test: Which paired test: ``"permutation"`` (of signs, on the mean) or ``"wilcoxon"``.
        systems: One row a system, the best first.
        tests: One for each pair of systems that have at least two questions in common.
        failures: The first hundred that could not be measured; each system's row counts its own.
        costs: What was asked of the reader to measure all of it, each answer once; None if not known.
    """

    reader: str
    entailer: str
    settings: Mapping[str, Any]
    weighting: str
    confidence: float
    test: TestName
    systems: tuple[SystemRow, ...]
    tests: tuple[PairedTest, ...]
    failures: tuple[Failure, ...]
    costs: Costs | None = None

    def __getitem__(self, system: str) -> SystemRow:
        """Return a system's row by its name."""
        for row in self.systems:
            if row.system == system:
                return row
        raise KeyError(system)

    def cut_short(self) -> str:
        """Return in words how many samples were cut at ``max_tokens``; nothing if none was."""
        cut = sum(row.cut for row in self.systems)
        if not cut:
            return ""
        return (
            f"{sum(row.truncated for row in self.systems):,} samples, of {cut:,} of {self.measured:,} "
            f"questions, were cut at {self.settings['max_tokens']} tokens (max_tokens): half an answer "
            "seldom means the gold answer, so that these questions score too low."
        )

    @property
    def measured(self) -> int:
        """Questions of all systems that were measured."""
        return sum(row.n for row in self.systems)

    @property
    def failed(self) -> int:
        """Questions of all systems that could not be measured."""
        return sum(row.failed for row in self.systems)

    def to_json(self) -> str:
        """Return every figure as JSON text."""
        return to_json(self)

    def write_json(self, file: Path) -> None:
        """Write every figure to a file; missing folders are made."""
        write_json(self, file)

    def explain(self) -> str:
        """Return the comparison as a person would want to read it."""
        lines = [f"ΔSePer for {self.reader} ({self.weighting} weights, entailment: {self.entailer})"]
        width = max(len(row.system) for row in self.systems)
        lines += [
            f"{row.system:<{width}}  {signed(row.delta.value)}  {bracketed(row.delta)}  n = {row.n}"
            for row in self.systems
        ]
        for test in self.tests:
            verdict = "" if test.significant else "  (may be chance)"
            lines.append(
                f"{test.first} − {test.second}: {signed(test.difference.value)}  "
                f"{bracketed(test.difference)}, p = {test.p_holm:.3g} after Holm{verdict}"
            )
        return "\n".join([*lines, note] if (note := self.cut_short()) else lines)


def signed(value: float) -> str:
    """Write a difference with its sign; what rounds to zero has none.

    Example:
        >>> signed(0.25), signed(-0.00004), signed(-0.5)
        ('+0.250', '0.000', '−0.500')
    """
    text = f"{value:+.3f}"
    return "0.000" if float(text) == 0 else text.replace("-", "−")


def bracketed(estimate: Estimate) -> str:
    """Write an interval.

    Example:
        >>> bracketed(Estimate(0.1, -0.05, 0.25))
        '[−0.050, +0.250]'
    """
    return f"[{signed(estimate.low)}, {signed(estimate.high)}]"
