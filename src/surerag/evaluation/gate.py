"""Requirements that a run has to meet, such as ``accuracy(lazy) >= accuracy(plain) - 0.05``.

A requirement passes if the run shows that it holds, at a one-sided confidence; it fails if the run shows that
it does not; else it is undecided, and more questions would decide it.

Right and wrong answers, errors included, are tested exactly: by the binomial test against a number, by
:func:`surerag.calibration.paired_p_value` against another system. Graded metrics, and shares of another
system's metric, are tested by betting. So at most 1 - ``confidence`` of the requirements that do not hold
pass. Costs have no upper bound, hence no exact test: their normal bounds allow for values that were not seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Literal
from xml.etree import ElementTree as ET

import numpy as np

from surerag.calibration import betting_p_value, paired_p_value
from surerag.errors import ConfigurationError, extra
from surerag.evaluation.run import METRIC_ALIASES, METRICS, EvaluationRun
from surerag.evaluation.statistics import COSTS, is_binary, pairs
from surerag.measures.statistics import Floats, paired_difference

Outcome = Literal["pass", "fail", "undecided"]
EXIT_CODES: dict[Outcome, int] = {"pass": 0, "fail": 3, "undecided": 4}

LEAST = 20
"""Questions below which costs are not judged."""
_HALVINGS = 14
_ONE_SIGMA = 0.6826894921370859
"""Confidence of an interval of one standard error to either side."""
_NUMBER = r"\d+(?:\.\d+)?"
_TERM = r"([\w-]+)\(([^()]+)\)"
_FORM = re.compile(
    rf"\s*{_TERM}\s*(>=|<=)\s*(?:(?:({_NUMBER})\s*\*\s*)?{_TERM}(?:\s*([+-])\s*({_NUMBER}))?|(-?{_NUMBER}))\s*"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run shows about a requirement.

    ``estimate`` is its left side less its right side on the sample, in six digits behind the point; ``lower``
    and ``upper`` are one-sided bounds of that, and ``n`` is the number of questions.
    """

    requirement: str
    outcome: Outcome
    estimate: float
    lower: float
    upper: float
    n: int

    def __str__(self) -> str:
        reach = f"left - right: {self.estimate:+.4g}, {self.lower:+.4g} to {self.upper:+.4g}"
        return f"{self.outcome.upper()}: {self.requirement} ({reach}), {self.n} questions"


@dataclass(frozen=True, slots=True)
class Requirement:
    """``measure(system) >= scale * measure(reference) + offset``; ``<=`` where more is worse."""

    text: str
    measure: str
    system: str
    at_most: bool
    reference: str = ""
    scale: float = 0.0
    offset: float = 0.0

    def check(self, systems: Sequence[str], measures: Sequence[str], scores: Sequence[str] = ()) -> None:
        """Refuse unknown measures and systems, ``>=`` of costs and errors, and ``<=`` of metrics."""
        if self.measure not in (*measures, *scores):
            raise ConfigurationError(
                f"{self.text!r}: there is no measure {self.measure!r}",
                hint=f"there is {', '.join((*measures, *scores))}",
            )
        for system in (self.system, self.reference):
            if system and system not in systems:
                raise ConfigurationError(
                    f"{self.text!r}: there is no system {system!r}", hint=f"there is {', '.join(systems)}"
                )
        worse = self.measure in (*COSTS, "errors")
        if self.measure in measures and self.at_most != worse:
            raise ConfigurationError(
                f"the requirement {self.text!r} asks for a {'large' if worse else 'small'} {self.measure}",
                hint=f"write {'<=' if worse else '>='}",
            )


MEASURES = (*METRICS, *COSTS, "errors")
"""What requirements of the command line are about."""


def parse_requirement(text: str) -> Requirement:
    """Read a requirement."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"the requirement {text!r} cannot be read",
            hint='write "accuracy(lazy) >= accuracy(plain) - 0.05" or "tokens(lazy) <= 0.8 * tokens(plain)"',
        )
    name, system, sign, factor, other, reference, direction, size, number = match.groups()
    measure, at_most, text = METRIC_ALIASES.get(name, name), sign == "<=", text.strip()
    if number is not None:
        return Requirement(text, measure, system, at_most, offset=float(number))
    if METRIC_ALIASES.get(other, other) != measure:
        raise ConfigurationError(f"the requirement {text!r} compares {name} with {other}")
    offset = float(f"{direction or ''}{size or 0}")
    return Requirement(text, measure, system, at_most, reference, float(factor or 1), offset)


def check_requirement(run: EvaluationRun, text: str, confidence: float = 0.95) -> Verdict:
    """Test a requirement on the questions that both systems answered.

    Forms: ``f1(lazy) >= f1(plain) - 0.05``, ``tokens(lazy) <= 0.8 * tokens(plain)`` and
    ``accuracy(lazy) >= 0.7``.

    Raises:
        ConfigurationError: If it cannot be read, or names a metric or system that the run does not have.
        InputError: If the systems have no question in common.
        MissingExtraError: If scipy is not installed.
    """
    requirement = parse_requirement(text)
    requirement.check(run.systems, (*run.metrics, *COSTS, "errors"), run.scores)
    first, second = pairs(
        run, requirement.system, requirement.reference or requirement.system, requirement.measure
    )
    # Questions may be sorted; bets need an order that does not depend on the answers.
    order = np.random.default_rng(0).permutation(len(first))
    a, b = np.array(first)[order], np.array(second)[order]
    bounded = requirement.measure in run.metrics or requirement.measure == "errors"
    test = choose_test(a, b, requirement.scale, bounded)
    level = 1 - confidence + 1e-12
    passes, fails = test.shows_above(requirement.offset), test.shows_below(requirement.offset)
    if requirement.at_most:
        passes, fails = fails, passes
    outcome: Outcome = "pass" if passes <= level else "fail" if fails <= level else "undecided"
    if not bounded and len(a) < LEAST:
        outcome = "undecided"
    means = (float((a - requirement.scale * b).mean()), *test.ends(level))
    estimate, lower, upper = (round(mean - requirement.offset, 6) for mean in means)
    return Verdict(requirement.text, outcome, estimate, lower, upper, len(a))


@dataclass(frozen=True, slots=True)
class MeanTest:
    """P-values of "the mean is at most this", or at least (``shows_below``); it lies in [low, high]."""

    shows_above: Callable[[float], float]
    shows_below: Callable[[float], float]
    low: float
    high: float

    def ends(self, level: float) -> tuple[float, float]:
        """Return the one-sided bounds of the mean: where either test just rejects."""
        return (
            _farthest(lambda value: self.shows_above(value) <= level, self.low, self.high),
            _farthest(lambda value: self.shows_below(value) <= level, self.high, self.low),
        )


def _farthest(holds: Callable[[float], bool], start: float, end: float) -> float:
    """Return the value farthest from ``start`` up to which a condition holds, by halving."""
    for _ in range(_HALVINGS):
        middle = (start + end) / 2
        start, end = (middle, end) if holds(middle) else (start, middle)
    return start


def choose_test(a: Floats, b: Floats, scale: float, bounded: bool) -> MeanTest:
    """Return the test of the mean of ``a - scale * b``; bounded values lie in [0, 1]."""
    if not bounded:
        return _normal_test(a - scale * b)
    if is_binary(a) and scale == 0:
        return _binomial_test(a)
    if is_binary(a) and is_binary(b) and scale == 1:
        return _exact_paired_test(a - b)
    values = a - scale * b
    return MeanTest(
        lambda value: betting_p_value(-values, -value, bounds=(-1.0, scale)),
        lambda value: betting_p_value(values, value, bounds=(-scale, 1.0)),
        -scale,
        1.0,
    )


def _binomial_test(values: Floats) -> MeanTest:
    with extra("evaluation"):
        from scipy.stats import binom
    n, count = len(values), round(values.sum())
    return MeanTest(
        lambda share: float(binom.sf(count - 1, n, min(max(share, 0.0), 1.0))),
        lambda share: float(binom.cdf(count, n, min(max(share, 0.0), 1.0))),
        0.0,
        1.0,
    )


def _exact_paired_test(differences: Floats) -> MeanTest:
    n, gained, lost = len(differences), int((differences > 0).sum()), int((differences < 0).sum())
    return MeanTest(
        lambda value: paired_p_value(n, lost, gained, -value),
        lambda value: paired_p_value(n, gained, lost, value),
        -1.0,
        1.0,
    )


def _normal_test(values: Floats) -> MeanTest:
    """Return the test that belongs to the interval of :func:`paired_difference` without bounds."""
    mean, interval, _ = paired_difference(values, np.zeros(len(values)), confidence=_ONE_SIGMA, bounds=None)
    error = max((interval.upper - interval.lower) / 2 if interval else 0.0, 1e-12 * max(abs(mean), 1e-12))
    normal = NormalDist()
    return MeanTest(
        lambda value: normal.cdf((value - mean) / error),
        lambda value: normal.cdf((mean - value) / error),
        mean - 8 * error,
        mean + 8 * error,
    )


def write_junit(verdicts: Sequence[Verdict], path: str | Path) -> None:
    """Write verdicts as JUnit XML: a failure for what failed, an error for what is undecided."""
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
