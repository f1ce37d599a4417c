"""Requirements that a run has to meet, such as ``accuracy(lazy) >= accuracy(plain) - 0.05``.

A requirement passes if the run shows that it holds, at a one-sided confidence; it fails if the run shows that
it does not; else it is undecided, and more questions would decide it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree as ET

import numpy as np

from surerag.calibration import paired_p_value
from surerag.errors import ConfigurationError, extra
from surerag.evaluation.metrics import ALIASES
from surerag.evaluation.run import EvaluationRun
from surerag.evaluation.statistics import COSTS, is_binary, mean_bounds, pairs

Outcome = Literal["pass", "fail", "undecided"]
EXIT_CODES: dict[Outcome, int] = {"pass": 0, "fail": 3, "undecided": 4}

LEAST = 20
"""Questions below which only right and wrong answers are judged."""

_NUMBER = r"\d+(?:\.\d+)?"
_TERM = r"([\w-]+)\(([^()]+)\)"
_FORM = re.compile(
    rf"\s*{_TERM}\s*(>=|<=)\s*(?:(?:({_NUMBER})\s*\*\s*)?{_TERM}(?:\s*([+-])\s*({_NUMBER})(%?))?|(-?{_NUMBER}))\s*"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run shows about a requirement.

    Attributes:
        requirement: As it was written.
        outcome: ``"pass"``, ``"fail"`` or ``"undecided"``.
        estimate: Left side less right side of the requirement, on the sample.
        lower: One-sided lower bound of it.
        upper: One-sided upper bound of it.
        n: Questions.
    """

    requirement: str
    outcome: Outcome
    estimate: float
    lower: float
    upper: float
    n: int

    def __str__(self) -> str:
        text = f"{self.outcome.upper()}: {self.requirement}"
        if math.isfinite(self.lower) and math.isfinite(self.upper):
            text += f" (left - right: {self.estimate:+.4g}, {self.lower:+.4g} to {self.upper:+.4g})"
        return f"{text}, {self.n} questions"


def parse_requirement(text: str) -> re.Match[str]:
    """Return the parts of a requirement.

    Raises:
        ConfigurationError: If it cannot be read.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"the requirement {text!r} cannot be read",
            hint='write "accuracy(lazy) >= accuracy(plain) - 0.05" or "tokens(lazy) <= 0.8 * tokens(plain)"',
        )
    return match


def check_requirement(run: EvaluationRun, text: str, confidence: float = 0.95) -> Verdict:
    """Test a requirement on the questions that both systems answered.

    Forms: ``f1(lazy) >= f1(plain) - 0.05``, ``tokens(lazy) <= 0.8 * tokens(plain)``,
    ``seconds(lazy) <= seconds(plain) + 10%``, ``accuracy(lazy) >= 0.7``.

    Raises:
        ConfigurationError: If it cannot be read, or names a metric or system that the run does not have.
        InputError: If the systems have no question in common.
    """
    with extra("evaluation"):
        from scipy.stats import binomtest
    match = parse_requirement(text)
    measure, system, sign, factor, other, reference, direction, size, percent, number = match.groups()
    measure = _measure(run, measure, text)
    worse = sign == "<=" if measure in run.scores else measure in COSTS or measure == "errors"
    if (sign == "<=") != worse:
        raise ConfigurationError(
            f"the requirement {text!r} asks for a {'large' if worse else 'small'} {measure}",
            hint=f"write {'<=' if worse else '>='}",
        )
    scale, offset = float(factor or 1), 0.0
    if number is None:
        if _measure(run, other, text) != measure:
            raise ConfigurationError(f"the requirement {text!r} compares {measure} with {other}")
        first, second = pairs(run, system, reference, measure)
        if size is not None:
            step = float(size) * (1 if direction == "+" else -1)
            scale, offset = (scale * (1 + step / 100), 0.0) if percent else (scale, step)
    else:
        first, _ = pairs(run, system, system, measure)
        second, offset = [0.0] * len(first), float(number)
    a, b, turn = np.array(first), np.array(second), -1.0 if worse else 1.0
    # The requirement is now: the mean of ``values`` is at least ``bound``.
    values, bound = turn * (a - scale * b), turn * offset
    lower, upper = mean_bounds(values, confidence, (-1.0, 1.0) if measure in run.metrics else None)
    shows_pass, shows_fail = lower > bound, upper < bound
    if is_binary(a) and is_binary(b) and measure in run.metrics:
        if number is not None:
            lower, upper = binomtest(round(a.sum()), len(a)).proportion_ci(2 * confidence - 1)
            shows_pass, shows_fail = lower > bound, upper < bound
        elif scale == 1 and bound < 0:
            lost, gained = int((values < 0).sum()), int((values > 0).sum())
            shows_pass = paired_p_value(len(a), lost, gained, -bound) <= 1 - confidence + 1e-12
    elif len(a) < LEAST:
        shows_pass = shows_fail = False
    outcome: Outcome = "pass" if shows_pass else "fail" if shows_fail else "undecided"
    ends = sorted((turn * lower - offset, turn * upper - offset))
    return Verdict(text.strip(), outcome, float(values.mean()) * turn - offset, ends[0], ends[1], len(a))


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


def _measure(run: EvaluationRun, name: str, text: str) -> str:
    known = [*run.metrics, *COSTS, "errors", *run.scores]
    name = name if name in known else ALIASES.get(name, name)
    if name not in known:
        raise ConfigurationError(
            f"{text!r}: there is no measure {name!r}", hint=f"there is {', '.join(known)}"
        )
    return name
