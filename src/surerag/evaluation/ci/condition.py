"""What breaks a build, in a line: ``accuracy of lazy < plain - 5``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from surerag.errors import ConfigurationError

BASELINE = "baseline"
"""Before the name of a system of the baseline file; alone it is the same system there."""

SHARES = (
    "accuracy",
    "exact_match",
    "f1",
    "containment",
    "judge",
    "faithfulness",
    "understanding",
    "self_consistency",
    "agreement",
)
"""Measures in [0, 1], larger for better; a condition gives them in points."""

COSTS = ("tokens", "prompt_tokens", "completion_tokens", "calls", "seconds", "money")
"""What a question costs, larger for worse."""

SCORES = ("delta_seper",)
"""Measures on a scale of their own, larger for better."""

MEASURES = (*SHARES, *SCORES, *COSTS)

_FORM = 'METRIC of SYSTEM < SYSTEM - POINTS, such as "accuracy of lazy < plain - 5"'
_HEAD = re.compile(r"^\s*(\w+)\s+of\s+(.+?)\s*(<|>)\s*(.+?)\s*$")
_NUMBER = r"(\d+(?:\.\d+)?)"
_FACTOR = re.compile(rf"^{_NUMBER}\s*[*x×]\s*(.+)$")
_OFFSET = re.compile(rf"^(.+?)\s+([+-])\s*{_NUMBER}\s*(%|points?)?$")
_CONSTANT = re.compile(rf"^{_NUMBER}\s*(%|points?)?$")


@dataclass(frozen=True, slots=True)
class Condition:
    """When a build breaks.

    Attributes:
        text: As it was written.
        metric: What is compared.
        system: Whose.
        sign: ``"<"`` for what has to be large, ``">"`` for what has to be small.
        reference: Compared with which system; empty for a number.
        factor: What the reference is multiplied by.
        offset: What is added to it, in the metric's own unit (shares for points).
    """

    text: str
    metric: str
    system: str
    sign: Literal["<", ">"]
    reference: str
    factor: float
    offset: float

    @property
    def better(self) -> int:
        """1 where larger is better, -1 for a cost."""
        return 1 if self.sign == "<" else -1

    @property
    def margin(self) -> float:
        """What may be lost against the reference; below 0 what has to be gained."""
        return -self.better * self.offset

    @property
    def is_share(self) -> bool:
        """Whether differences are told in points."""
        return self.metric in SHARES


def parse_condition(text: str, systems: Collection[str], baseline: Collection[str] = ()) -> Condition:
    """Read a condition.

    It names a metric of a system, ``<`` for a metric that must not fall or ``>`` for a cost that must not
    rise, and a bound: a number; or a system, times a factor if need be (``1.2 * plain``), plus or minus a
    margin, in points for metrics in [0, 1], in per cent of the reference where it ends in ``%``. The system
    ``baseline`` is the same one in the baseline file, ``baseline:NAME`` another one there.

    Args:
        text: The condition.
        systems: Names there are.
        baseline: Names in the baseline file, if one was given.

    Raises:
        ConfigurationError: If it says anything else.

    Example:
        >>> found = parse_condition("accuracy of lazy < plain - 5", ["plain", "lazy"])
        >>> found.metric, found.system, found.reference, found.margin
        ('accuracy', 'lazy', 'plain', 0.05)
        >>> found = parse_condition("tokens of lazy > plain + 10%", ["plain", "lazy"])
        >>> round(found.factor, 2), found.margin
        (1.1, 0.0)
    """
    head = _HEAD.match(text)
    if head is None:
        raise ConfigurationError(f"the condition {text!r} cannot be read", hint=f"write {_FORM}")
    metric, system, sign, bound = head.groups()
    if metric not in MEASURES:
        raise _unknown("metric", metric, MEASURES, text)
    _check_name(system, systems, text)
    if (sign == "<") == (metric in COSTS):
        raise ConfigurationError(
            f"the condition {text!r} breaks the build where {metric} is "
            f"{'small' if sign == '<' else 'large'}, which is what one wants of it",
            hint=f'write "{metric} of {system} {">" if sign == "<" else "<"} {bound}"',
        )
    known = [*systems, *(f"{BASELINE}:{name}" for name in baseline), *([BASELINE] if baseline else [])]
    reference, factor, offset = _bound(bound, metric, known, text)
    if reference == BASELINE:
        if system not in baseline:
            raise _unknown("system of the baseline", system, list(baseline), text)
        reference = f"{BASELINE}:{system}"
    return Condition(text, metric, system, "<" if sign == "<" else ">", reference, factor, offset)


def _bound(bound: str, metric: str, known: Collection[str], text: str) -> tuple[str, float, float]:
    """Return reference, factor and offset."""
    share = metric in SHARES
    constant = _CONSTANT.match(bound)
    if constant is not None and bound not in known:
        return "", 0.0, float(constant[1]) / (100 if share else 1)
    factor, times = 1.0, _FACTOR.match(bound)
    if times is not None:
        factor, bound = float(times[1]), times[2]
    if bound in known:
        return bound, factor, 0.0
    margin = _OFFSET.match(bound)
    if margin is None:
        raise _unknown("system", bound, known, text)
    name, way, size, unit = margin.groups()
    _check_name(name, known, text)
    signed = float(size) if way == "+" else -float(size)
    if unit == "%" and not share:
        return name, factor * (1 + signed / 100), 0.0
    return name, factor, signed / (100 if share else 1)


def _check_name(name: str, known: Collection[str], text: str) -> None:
    if name not in known:
        raise _unknown("system", name, known, text)


def _unknown(what: str, name: str, known: Collection[str], text: str) -> ConfigurationError:
    near = difflib.get_close_matches(name, list(known), n=3)
    told = f"near: {', '.join(near)}" if near else f"known: {', '.join(known) or 'none'}"
    if name.startswith(BASELINE):
        told = f"give --baseline FILE; {told}"
    return ConfigurationError(f"{text!r}: there is no {what} {name!r}", hint=told)
