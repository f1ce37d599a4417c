"""Test requirements on an evaluation run, such as ``accuracy(lazy) >= accuracy(plain) - 0.05``.

A requirement passes if a one-sided test shows that it holds, and fails if a test shows that it does not hold.
Otherwise it is undecided, and more questions are needed. A requirement that does not hold passes with a
probability of at most 1 - ``confidence``.

Binary values (right answers, errors) have exact tests: the binomial test against a number, and
:func:`surerag.calibration.paired_p_value` against another system. Graded metrics, and multiples of another
system's metric, have the test by betting of Waudby-Smith and Ramdas
(:func:`surerag.calibration.betting_p_value`).

No sample can show that a mean cost is small, because rare questions with huge costs may be missing from the
sample. So a requirement on costs has one of two forms. ``tokens(lazy) <= 2000 in 90 % of questions`` names
the share of questions for which it must hold, and has an exact test. ``tokens(lazy) <= 0.8 * tokens(plain)
capped at 8000`` caps large values, and the mean of the capped values has the test by betting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree as ET

import numpy as np

from surerag.calibration import grouped_betting_p_value, paired_p_value
from surerag.errors import ConfigurationError, extra
from surerag.evaluation.run import METRIC_ALIASES, METRICS, Run
from surerag.evaluation.statistics import COSTS, is_binary, pairs
from surerag.measures.statistics import Bounds, Floats, Groups, effective_size, group_numbers
from surerag.text import counted

Outcome = Literal["pass", "fail", "undecided"]
EXIT_CODES: dict[Outcome, int] = {"pass": 0, "fail": 3, "undecided": 4}

_RANGES = {"delta_seper": (-1.0, 1.0), "seper_before": (0.0, 1.0), "seper_after": (0.0, 1.0)}
"""Smallest and largest value of scores by name; a user's own scores have no known range."""
_HALVINGS = 14
_NUMBER = r"\d+(?:\.\d+)?"
_TERM = r"([\w-]+)\(([^()]+)\)"
_FORM = re.compile(
    rf"\s*{_TERM}\s*(>=|<=)\s*(?:(?:({_NUMBER})\s*\*\s*)?{_TERM}(?:\s*([+-])\s*({_NUMBER}))?|(-?{_NUMBER}))"
    rf"(?:\s+in\s+({_NUMBER})\s*%(?:\s+of\s+(?:the\s+)?questions)?|\s+capped\s+at\s+({_NUMBER}))?\s*"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the test of a requirement.

    Attributes:
        requirement: The text of the requirement.
        outcome: ``"pass"``, ``"fail"`` or ``"undecided"``.
        estimate: Left side minus right side of the requirement in the sample, rounded to six decimals. If
            ``of_share`` is true, the estimate is the share of questions that meet the requirement minus the
            required share.
        lower: One-sided lower confidence bound of the estimate.
        upper: One-sided upper confidence bound of the estimate.
        n: Number of questions.
        of_share: Whether the requirement must hold for a share of the questions ("in 90 % of questions").
    """

    requirement: str
    outcome: Outcome
    estimate: float
    lower: float
    upper: float
    n: int
    of_share: bool = False

    def __str__(self) -> str:
        what = "share of questions - required share" if self.of_share else "left side - right side"
        reach = f"{what}: {self.estimate:+.4g}, {self.lower:+.4g} to {self.upper:+.4g}"
        return f"{self.outcome.upper()}: {self.requirement} ({reach}), {counted(self.n, 'question')}"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A parsed requirement: ``measure(system) >= scale * measure(reference) + offset``.

    Attributes:
        text: The text of the requirement.
        measure: Name of the metric or cost.
        system: The system on the left side.
        at_most: Whether the sign is ``<=`` in place of ``>=``.
        reference: The system on the right side; empty if the right side is a number.
        scale: Factor on the right side.
        offset: Number that is added on the right side.
        share: Share of the questions that must meet the requirement; None for a requirement on the mean.
        cap: Value to which larger values are reduced before the mean is taken; None for no cap.
    """

    text: str
    measure: str
    system: str
    at_most: bool
    reference: str = ""
    scale: float = 0.0
    offset: float = 0.0
    share: float | None = None
    cap: float | None = None

    def check(self, systems: Sequence[str], measures: Sequence[str], scores: Sequence[str] = ()) -> None:
        """Check that the requirement fits a run.

        Args:
            systems: Names of the run's systems.
            measures: Names of the run's metrics and costs.
            scores: Names of scores that systems compute themselves.

        Raises:
            ConfigurationError: If a measure or system is unknown. If the sign is >= for a cost or for errors,
                or <= for a metric. If the measure is unbounded, such as a cost, and the requirement has
                neither a share of questions ("in 90 % of questions") nor a cap ("capped at 8000"). If the
                measure is bounded, and the requirement has a share or a cap.
        """
        if self.measure not in (*measures, *scores):
            raise ConfigurationError(
                f"{self.text!r}: there is no measure {self.measure!r}",
                hint=f"measures are {', '.join((*measures, *scores))}",
            )
        for system in (self.system, self.reference):
            if system and system not in systems:
                raise ConfigurationError(
                    f"{self.text!r}: there is no system {system!r}", hint=f"systems are {', '.join(systems)}"
                )
        worse = self.measure in (*COSTS, "errors")
        if self.measure in measures and self.at_most != worse:
            raise ConfigurationError(
                f"{self.text!r} requires a {'minimum' if worse else 'maximum'} of {self.measure}, but "
                f"{'smaller' if worse else 'larger'} values are better",
                hint=f"write {'<=' if worse else '>='}",
            )
        is_bounded = self.measure not in (*COSTS, *scores) or self.measure in _RANGES
        self._check_form(is_bounded)

    def _check_form(self, is_bounded: bool) -> None:
        has_bound = self.share is not None or self.cap is not None
        if is_bounded and has_bound:
            raise ConfigurationError(
                f"the requirement {self.text!r}: expected a requirement on the mean of {self.measure}, got "
                f"one with a {'share of questions' if self.cap is None else 'cap'}",
                hint='remove "in … % of questions" or "capped at …"',
            )
        if not is_bounded and not has_bound:
            raise ConfigurationError(
                f"the requirement {self.text!r} is about the mean of {self.measure}, which no sample can "
                "bound: a rare large value that is not in the sample may make the mean arbitrarily large",
                hint=f'write "{self.text} in 90 % of questions"; or write "{self.text} capped at 10000", so '
                "that larger values count as 10000",
            )


MEASURES = (*METRICS, *COSTS, "errors")
"""Names of the measures in requirements on the command line."""


def parse_requirement(text: str) -> Requirement:
    """Parse a requirement, such as ``"accuracy(lazy) >= 0.7"``.

    Raises:
        ConfigurationError: If the text is not a requirement, or compares two different measures.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"the requirement {text!r} cannot be parsed",
            hint='write "accuracy(lazy) >= accuracy(plain) - 0.05" or '
            '"tokens(lazy) <= 0.8 * tokens(plain) in 90 % of questions"',
        )
    name, system, sign, factor, other, reference, direction, size, number, percent, most = match.groups()
    measure, at_most, text = METRIC_ALIASES.get(name, name), sign == "<=", text.strip()
    share, cap = float(percent) / 100 if percent else None, float(most) if most else None
    if share is not None and not 0 < share < 1:
        raise ConfigurationError(
            f"the requirement {text!r}: expected a share between 0 and 100 %, got {percent} %"
        )
    if number is not None:
        return Requirement(text, measure, system, at_most, offset=float(number), share=share, cap=cap)
    if METRIC_ALIASES.get(other, other) != measure:
        raise ConfigurationError(
            f"the requirement {text!r}: expected the same measure on both sides, got {name} and {other}",
            hint=f"write {name}({system}) {sign} {name}({reference})",
        )
    offset = float(f"{direction or ''}{size or 0}")
    return Requirement(text, measure, system, at_most, reference, float(factor or 1), offset, share, cap)


def check_requirement(run: Run, text: str, confidence: float = 0.95) -> Verdict:
    """Test a requirement on the questions that all systems in the requirement answered.

    The forms of a requirement are ``accuracy(lazy) >= 0.7``, ``f1(lazy) >= f1(plain) - 0.05``,
    ``tokens(lazy) <= 0.8 * tokens(plain) in 90 % of questions`` and ``tokens(lazy) <= 0.8 * tokens(plain)
    capped at 8000``. Questions of one group, such as one document, are treated as dependent.

    Args:
        run: The evaluation run.
        text: The requirement.
        confidence: Confidence level of the one-sided tests, in (0, 1).

    Raises:
        ConfigurationError: If the requirement cannot be parsed, names a metric or system that the run does
            not have, or limits a cost without "in … % of questions" or "capped at …".
        InputError: If the systems have no question in common.
        MissingExtraError: If scipy is not installed.
    """
    requirement = parse_requirement(text)
    requirement.check(run.systems, (*run.metrics, *COSTS, "errors"), run.scores)
    both = pairs(run, requirement.system, requirement.reference or requirement.system, requirement.measure)
    # Questions are shuffled, because the test by betting needs an order that does not depend on the answers.
    number = group_numbers(both.groups, len(both.groups))
    order = np.argsort(np.random.default_rng(0).permutation(number.max() + 1)[number], kind="stable")
    a, b = np.array(both.first)[order], np.array(both.second)[order]
    test, bound = test_for(requirement, a, b, number[order], confidence)
    level = 1 - confidence + 1e-12
    passes, fails = test.shows_above(bound), test.shows_below(bound)
    if requirement.at_most and requirement.share is None:
        passes, fails = fails, passes
    outcome: Outcome = "pass" if passes <= level else "fail" if fails <= level else "undecided"
    means = (test.mean, *test.ends(level))
    estimate, lower, upper = (round(mean - bound, 6) for mean in means)
    of_share = requirement.share is not None
    return Verdict(requirement.text, outcome, estimate, lower, upper, len(a), of_share)


def test_for(
    requirement: Requirement, a: Floats, b: Floats, groups: Groups, confidence: float
) -> tuple[MeanTest, float]:
    """Return a test of a mean, and the value with which the requirement compares the mean.

    Without a share of questions in the requirement, the mean is that of ``a - requirement.scale * b``. If the
    requirement ends in "in 90 % of questions", the mean is the share of questions that meet the requirement.

    Args:
        requirement: The requirement.
        a: Values of the system on the left side, shape [n].
        b: Values of the system on the right side for the same questions, shape [n].
        groups: Group of each question, shape [n].
        confidence: Confidence level of the one-sided tests.
    """
    if requirement.share is not None:
        beyond = a - requirement.scale * b - requirement.offset
        slip = 1e-9 * np.maximum(np.abs(a), 1.0)
        meets = beyond <= slip if requirement.at_most else beyond >= -slip
        return choose_test(meets.astype(float), b, 0.0, (0.0, 1.0), groups, confidence), requirement.share
    bounds = _RANGES.get(requirement.measure, (0.0, 1.0))
    if requirement.cap is not None:
        bounds = (0.0 if requirement.measure in COSTS else -requirement.cap, requirement.cap)
        a, b = np.clip(a, *bounds), np.clip(b, *bounds)
    return choose_test(a, b, requirement.scale, bounds, groups, confidence), requirement.offset


@dataclass(frozen=True, slots=True)
class MeanTest:
    """A test of a mean that lies in [``low``, ``high``].

    Attributes:
        mean: Mean of the sample.
        shows_above: Function from a value to a p-value; if the p-value is small, the mean is above the value.
        shows_below: Function from a value to a p-value; if the p-value is small, the mean is below the value.
        low: Smallest possible mean.
        high: Largest possible mean.
    """

    mean: float
    shows_above: Callable[[float], float]
    shows_below: Callable[[float], float]
    low: float
    high: float

    def ends(self, level: float) -> tuple[float, float]:
        """Return the one-sided lower and upper confidence bounds of the mean at a significance level."""
        return (
            _farthest(lambda value: self.shows_above(value) <= level, self.low, self.high),
            _farthest(lambda value: self.shows_below(value) <= level, self.high, self.low),
        )


def _farthest(holds: Callable[[float], bool], start: float, end: float) -> float:
    for _ in range(_HALVINGS):
        middle = (start + end) / 2
        start, end = (middle, end) if holds(middle) else (start, middle)
    return start


def choose_test(
    a: Floats,
    b: Floats,
    scale: float,
    bounds: Bounds = (0.0, 1.0),
    groups: Groups = None,
    confidence: float = 0.95,
) -> MeanTest:
    """Return a test of the mean of ``a - scale * b``.

    The test is exact if the values are binary and the scale is 0 or 1; otherwise, it is the test by betting.

    Args:
        a: Values of the first system, shape [n].
        b: Values of the second system, shape [n].
        scale: Factor of the second system's values.
        bounds: Smallest and largest possible value of ``a`` and of ``b``.
        groups: Group of each pair. Pairs of one group are treated as dependent.
        confidence: Confidence level of the one-sided tests.
    """
    values = a - scale * b
    mean, n = float(values.mean()), effective_size(values, groups, 2 * confidence - 1)
    shares = bounds == (0.0, 1.0) and is_binary(a)
    if shares and scale == 0:
        return _binomial_test(mean, n)
    if shares and is_binary(b) and scale == 1:
        return _exact_paired_test(mean, values, n)
    low, high = bounds[0] - scale * bounds[1], bounds[1] - scale * bounds[0]
    size = max(high - low, 1e-12)  # the test by betting needs values in a range of length 1

    def shows_above(value: float) -> float:
        return grouped_betting_p_value(
            -values / size, -value / size, groups, confidence, (-high / size, -low / size)
        )

    def shows_below(value: float) -> float:
        return grouped_betting_p_value(
            values / size, value / size, groups, confidence, (low / size, high / size)
        )

    return MeanTest(mean, shows_above, shows_below, low, high)


def _binomial_test(share: float, n: float) -> MeanTest:
    with extra("evaluation"):
        from scipy.special import betainc

    def at_least(value: float) -> float:
        return 1.0 if share == 0 else float(betainc(n * share, n - n * share + 1, min(max(value, 0.0), 1.0)))

    def at_most(value: float) -> float:
        return (
            1.0 if share == 1 else float(betainc(n - n * share, n * share + 1, 1 - min(max(value, 0.0), 1.0)))
        )

    return MeanTest(share, at_least, at_most, 0.0, 1.0)


def _exact_paired_test(mean: float, differences: Floats, n: float) -> MeanTest:
    more, less = (n / len(differences) * float((sign * differences > 0).sum()) for sign in (1, -1))
    size, slip = math.floor(n + 1e-9), 1e-9

    def shows_above(value: float) -> float:
        return paired_p_value(size, math.ceil(less - slip), math.floor(more + slip), -value)

    def shows_below(value: float) -> float:
        return paired_p_value(size, math.ceil(more - slip), math.floor(less + slip), value)

    return MeanTest(mean, shows_above, shows_below, -1.0, 1.0)


def write_junit(verdicts: Sequence[Verdict], path: str | Path) -> None:
    """Write verdicts to a file as JUnit XML; ``fail`` becomes a failure, and ``undecided`` an error."""
    counts = {
        "tests": len(verdicts),
        "failures": sum(one.outcome == "fail" for one in verdicts),
        "errors": sum(one.outcome == "undecided" for one in verdicts),
    }
    suite = ET.Element("testsuite", {"name": "surerag", **{name: str(n) for name, n in counts.items()}})
    for verdict in verdicts:
        case = ET.SubElement(suite, "testcase", classname="surerag.gate", name=verdict.requirement)
        if verdict.outcome != "pass":
            tag = "failure" if verdict.outcome == "fail" else "error"
            ET.SubElement(case, tag, message=str(verdict)).text = str(verdict)
    ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
