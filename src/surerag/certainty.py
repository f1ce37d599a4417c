"""How sure a model was of an answer: uncertainty measures of its tokens, and a calibrated probability."""

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
"""Names of the uncertainty measures of an answer's tokens; for all measures, larger means less certain."""

DEFAULT_MEASURE: Measure = "greatest_3_mean_entropy"
"""The default measure for ``Certainty.uncertainty``."""
WITHOUT_ALTERNATIVES: Measure = "negative_log_likelihood"
"""The default measure for answers without entropies: their server returns no top log-probabilities."""

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
        uncertainties: Interval in which the value of a measure lies, by the measure's name; a larger value
            means less certain. If a server returns only the top log-probabilities, the intervals of entropies
            have different ends; all other intervals have two equal ends. Perplexity is at least 1 and has no
            unit; the other measures are in nats.
        measure: Name of the measure of :attr:`uncertainty`; empty if no measure is available.
        tokens: Number of tokens of the answer.
        is_cut: Whether text may be missing, because the answer reached its maximum length or a content
            filter withheld a part.
        probability: Probability that the answer is right, in [0, 1]. None without an abstention policy, or
            if the policy gives no probability; then ``reason`` says why.
        reason: Why the measure, or the probability from a policy, is missing; otherwise empty.
        scope: Name of the ``reader`` that answered, and a hash of the reader's ``settings``, if they are
            known. A calibration is valid only for answers with the same scope.
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
        """Smallest and largest possible value of :attr:`uncertainty`; None if no measure is available."""
        return self.uncertainties.get(self.measure)

    @property
    def uncertainty(self) -> float | None:
        """The answer's uncertainty by :attr:`measure`; larger means less certain.

        None if no measure is available. If only an :attr:`interval` of the value is known, the middle of the
        interval is returned.
        """
        return None if self.interval is None else math.fsum(self.interval) / 2

    def by(self, measure: str) -> Self:
        """Return a copy with another measure, and without a probability.

        If the answer lacks the measure, ``reason`` says so.
        """
        missing = "" if measure in self.uncertainties else f"the answer was not measured by {measure}"
        return replace(self, measure=measure, probability=None, reason=missing)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for metadata, events and JSON; an infinite number becomes None."""
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
        """Rebuild a certainty from the values that :meth:`to_dict` returned.

        The interval of :attr:`measure` is restored. For each other measure, only the value is known, and both
        ends of the interval are this value.

        Raises:
            InputError: If the values do not come from :meth:`to_dict`.
        """
        try:
            intervals = {name: _point(value) for name, value in values["uncertainties"].items()}
            if values["measure"] in intervals and None not in (values["interval"] or [None]):
                intervals[values["measure"]] = Interval(*values["interval"])
            others = ("measure", "tokens", "is_cut", "probability", "reason", "scope")
            return cls(intervals, **{name: values[name] for name in others})
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"expected the values of a certainty, got {values!r:.120}",
                hint="pass the result of Certainty.to_dict(), for example from the metadata of an answer",
            ) from error


def certainty_of(
    trace: TokenTrace | None,
    *,
    measure: Measure | None = None,
    is_cut: bool = False,
    scope: Mapping[str, str] | None = None,
) -> Certainty:
    """Return how sure a model was of an answer, by all measures that the answer's trace allows.

    No model is called.

    Args:
        trace: Log-probabilities and entropies of the answer's tokens. Without entropies, the measures of
            entropy are missing. None if the answer came without log-probabilities.
        measure: The measure for ``uncertainty``. The default None chooses ``DEFAULT_MEASURE``, or
            ``WITHOUT_ALTERNATIVES`` if the trace has no entropies.
        is_cut: Whether text may be missing, because the answer reached its maximum length or a content
            filter withheld a part.
        scope: Name of the reader and hash of its settings, if they are known.

    Returns:
        The certainty. If the trace is missing or empty, or lacks the requested measure, ``uncertainty`` is
        None, and ``reason`` says why.

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
    known_scope = dict(scope or {})
    if trace is None or not len(trace):
        return Certainty(is_cut=is_cut, reason=NO_LOGPROBS if trace is None else NO_WORDS, scope=known_scope)
    intervals: dict[str, Interval] = {}
    if trace.entropy is not None:
        ends = trace.entropy.lower, trace.entropy.upper
        for name, of_entropies in _OF_ENTROPIES.items():
            lower, upper = map(of_entropies, ends)
            intervals[name] = Interval(lower, upper)
    for name, of_logprobs in _OF_LOGPROBS.items():
        value = of_logprobs(trace.logprobs)
        intervals[name] = Interval(value, value)
    chosen = measure or (DEFAULT_MEASURE if DEFAULT_MEASURE in intervals else WITHOUT_ALTERNATIVES)
    return Certainty(intervals, "", len(trace), is_cut, scope=known_scope).by(chosen)


def without_address(reader: str) -> str:
    """Return the name of a reader with a hash in place of the server's address, which is secret.

    Example:
        >>> without_address("ChatOpenAI(qwen@10.0.0.7:8000/v1)"), without_address("org/model")
        ('ChatOpenAI(qwen@174c8003)', 'org/model')
    """
    return _ADDRESS.sub(lambda match: "@" + hashlib.sha256(match[1].encode()).hexdigest()[:8], reader)


def check_measure(measure: object) -> None:
    """Raise ConfigurationError unless ``measure`` is a name in :data:`MEASURES`, or None."""
    if measure is not None and measure not in MEASURES:
        raise ConfigurationError(f"measure must be one of {', '.join(MEASURES)}, got {measure!r}")


def _point(value: float | None) -> Interval:
    number = math.inf if value is None else float(value)
    return Interval(number, number)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
