"""How sure a model was of an answer: measures of its tokens; once calibrated, how probably it is right."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from surerag.errors import ConfigurationError, InputError
from surerag.measures import (
    Interval,
    greatest_entropy,
    lowest_probability,
    mean_entropy,
    negative_log_likelihood,
    perplexity,
)
from surerag.messages import TokenTrace

Measure = Literal[
    "mean_entropy",
    "first_8_mean_entropy",
    "greatest_entropy",
    "greatest_3_mean_entropy",
    "perplexity",
    "least_likely_token",
    "negative_log_likelihood",
]
"""Names of the measures of an answer's tokens. Each is an uncertainty: larger means less certain."""

DEFAULT_MEASURE: Measure = "greatest_3_mean_entropy"
"""The measure that an answer's ``uncertainty`` goes by, where nobody chooses another."""
WITHOUT_ALTERNATIVES: Measure = "negative_log_likelihood"
"""The measure in its place where a server lists no alternatives to its tokens, and no entropy is known."""

_OF_ENTROPIES: dict[Measure, Callable[[tuple[float, ...]], float]] = {
    "mean_entropy": mean_entropy,
    "first_8_mean_entropy": lambda entropies: mean_entropy(entropies, first=8),
    "greatest_entropy": greatest_entropy,
    "greatest_3_mean_entropy": lambda entropies: greatest_entropy(entropies, count=3),
}
_OF_LOGPROBS: dict[Measure, Callable[[tuple[float, ...]], float]] = {
    "perplexity": perplexity,
    "least_likely_token": lowest_probability,
    "negative_log_likelihood": negative_log_likelihood,
}
MEASURES: tuple[Measure, ...] = (*_OF_ENTROPIES, *_OF_LOGPROBS)

_ADDRESS = re.compile(r"@([^\s()]*[.:/][^\s()]*)")
NO_LOGPROBS = "the answer came without log-probabilities"
NO_WORDS = "the answer has no words"


@dataclass(frozen=True, slots=True)
class Certainty:
    """How sure a model was of one answer.

    Attributes:
        uncertainties: Every measure that could be taken, by its name; larger means less certain. Where a
            server lists only some alternatives to a token, a measure of entropies lies in an interval; both
            ends of any other are equal. Perplexity is a number from 1 on, the others are in nats.
        measure: The one of them that :attr:`uncertainty` is; empty where none could be taken.
        tokens: Number of tokens of the answer.
        is_cut: Whether the answer was cut off at its longest length or withheld in part.
        probability: How probably the answer is right, in [0, 1]; None before a policy tells it, and where the
            policy knows that uncertainty tells nothing.
        reason: Why there is no measure, or no probability; empty otherwise.
        scope: What answered, as far as it is known: the name of the ``reader``, and a fingerprint of its
            ``settings``. A calibration with answers of one scope holds for that scope alone.
    """

    uncertainties: Mapping[str, Interval] = field(default_factory=dict)
    measure: str = ""
    tokens: int = 0
    is_cut: bool = False
    probability: float | None = None
    reason: str = ""
    scope: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def interval(self) -> Interval | None:
        """Smallest and largest value that the uncertainty can have; None where there is none."""
        return self.uncertainties.get(self.measure)

    @property
    def uncertainty(self) -> float | None:
        """The uncertainty of the answer by :attr:`measure`, larger for a less certain one; None without it.

        Of an interval it is the middle.
        """
        return None if self.interval is None else math.fsum(self.interval) / 2

    def by(self, measure: str) -> Self:
        """Return this certainty by another of its measures; without that measure, with the reason."""
        missing = "" if measure in self.uncertainties else f"the answer was not measured by {measure}"
        return replace(self, measure=measure, probability=None, reason=missing)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for metadata, events and JSON; a number that JSON cannot hold becomes None."""
        ends = None if self.interval is None else [_finite(end) for end in self.interval]
        return {
            "probability": self.probability,
            "uncertainty": _finite(self.uncertainty),
            "interval": ends,
            "measure": self.measure,
            "tokens": self.tokens,
            "is_cut": self.is_cut,
            "reason": self.reason,
            "uncertainties": {
                name: _finite(math.fsum(ends) / 2) for name, ends in self.uncertainties.items()
            },
            "scope": dict(self.scope),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`to_dict`, as metadata hold it; of intervals, that of the measure is kept.

        Raises:
            InputError: If these are no values of a certainty.
        """
        try:
            found = {name: _point(value) for name, value in values["uncertainties"].items()}
            if values["measure"] in found and None not in (values["interval"] or [None]):
                found[values["measure"]] = Interval(*values["interval"])
            others = ("measure", "tokens", "is_cut", "probability", "reason", "scope")
            return cls(found, **{name: values[name] for name in others})
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"these are no values of a certainty: {values!r:.120}",
                hint="pass what Certainty.to_dict() returned, as metadata hold it",
            ) from error


def certainty_of(
    trace: TokenTrace | None,
    *,
    measure: Measure | None = None,
    is_cut: bool = False,
    scope: Mapping[str, str] | None = None,
) -> Certainty:
    """Return how sure a model was of an answer, by every measure that its trace allows.

    It costs no call and no token where the log-probabilities came with the answer.

    Args:
        trace: Of the answer's tokens; with log-probabilities alone, measures of entropies are missing.
        measure: The measure to go by; None for the default, ``DEFAULT_MEASURE``, or where entropies are
            missing ``WITHOUT_ALTERNATIVES``.
        is_cut: Whether the answer was cut off or withheld in part.
        scope: What is known of reader and settings.

    Returns:
        The certainty; without measures, and with the reason, where there is no trace or it has no token, or
        where it does not allow the measure that is asked for.

    Example:
        >>> from surerag.messages import EntropyTrace
        >>> entropy = EntropyTrace((0.1, 0.2, 0.9, 0.4), (0.1, 0.2, 0.9, 0.4), exact=True)
        >>> trace = TokenTrace(("V", "e", "l", "m"), (-0.1, -0.1, -0.7, -0.2), entropy)
        >>> certainty = certainty_of(trace)
        >>> certainty.measure, round(certainty.uncertainty, 2), round(certainty.interval.upper, 2)
        ('greatest_3_mean_entropy', 0.5, 0.5)
        >>> certainty_of(TokenTrace(("Velm",), (-0.1,))).measure, certainty_of(None).reason
        ('negative_log_likelihood', 'the answer came without log-probabilities')
    """
    known = dict(scope or {})
    if trace is None or not len(trace):
        return Certainty(is_cut=is_cut, reason=NO_LOGPROBS if trace is None else NO_WORDS, scope=known)
    found: dict[str, Interval] = {}
    if trace.entropy is not None:
        ends = trace.entropy.lower, trace.entropy.upper
        for name, of_entropies in _OF_ENTROPIES.items():
            lower, upper = map(of_entropies, ends)
            found[name] = Interval(lower, upper)
    for name, of_logprobs in _OF_LOGPROBS.items():
        value = of_logprobs(trace.logprobs)
        found[name] = Interval(value, value)
    chosen = measure or (DEFAULT_MEASURE if DEFAULT_MEASURE in found else WITHOUT_ALTERNATIVES)
    return Certainty(found, "", len(trace), is_cut, scope=known).by(chosen)


def without_address(reader: str) -> str:
    """Return the name of a reader with a fingerprint in place of its address, which no user is to see.

    Example:
        >>> without_address("ChatOpenAI(qwen@10.0.0.7:8000/v1)"), without_address("org/model")
        ('ChatOpenAI(qwen@174c8003)', 'org/model')
    """
    return _ADDRESS.sub(lambda found: "@" + hashlib.sha256(found[1].encode()).hexdigest()[:8], reader)


def check_measure(measure: object) -> None:
    """Check that this is the name of a measure, or None for the default; or raise ConfigurationError."""
    if measure is not None and measure not in MEASURES:
        raise ConfigurationError(f"measure must be one of {', '.join(MEASURES)}, got {measure!r}")


def _point(value: float | None) -> Interval:
    number = math.inf if value is None else float(value)
    return Interval(number, number)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
