"""What a model's service says it does not take, and how to ask again without it; no I/O.

Every service has parameters that it refuses, says so in words of its own, and changes them from one model to
the next: a reasoning model takes no temperature, another one no log-probabilities, a third lists five
alternatives where twenty were asked for. What a method does not depend on is left out from then on; what it
depends on is an error with the service's reason.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from surerag.messages import SamplingParams

_RENAMED = {"max_tokens": ("max_completion_tokens", "max_output_tokens")}
"""What a field is called elsewhere; the meaning is the same."""

_COUNTS = frozenset({"n", "logprobs", "top_logprobs", "max_tokens", "max_completion_tokens", "top_k"})
"""What a smaller number will do for."""

_NOT_TAKEN = (
    r"(unsupported|unknown|unrecogni[sz]ed|unexpected|invalid|extra (inputs|fields?)|forbidden|deprecated"
    r"|not (\w+ )?(supported?|permitted|allowed|available|accepted|recogni[sz]ed|compatible|enabled)"
    r"|no such|no longer|cannot (both )?be|can't|can only|only the default|may only"
    r"|input should be|(does|do|is|are)(n't| not))"
)
_LIMIT = re.compile(
    r"(?i)(?:<=|≤|only \w+ ?=|at most|up to|less than or equal to|maximum(?: value)?(?: of| is|:)?"
    r"|max(?:imum)? allowed:?|between \d+ and|in the range \[?\d+,|supported range \[\d+,)\s*(\d+)"
)

_TOGETHER = re.compile(r"(?i)\bboth\b|at the same time|mutually exclusive")
"""Says of two parameters that either is taken, but not with the other."""


class LeftOutWarning(UserWarning):
    """A model refuses a parameter that was asked for, and is asked without it from then on."""


class Refusal(NamedTuple):
    """A parameter that a service refuses.

    Attributes:
        name: As it was sent.
        most: The largest value that the service takes, if it named a limit.
        instead: What the service calls it, if it named that.
    """

    name: str
    most: int | None = None
    instead: str | None = None


def refusals_in(message: str, sent: Mapping[str, Any]) -> list[Refusal]:
    """Return which of the parameters that were sent a service's message refuses.

    A message that merely quotes a name, as from a prompt, refuses nothing.

    Example:
        >>> said = "Unsupported value: 'temperature' does not support 0 with this model."
        >>> refusals_in(said, {"temperature": 0, "seed": 1})
        [Refusal(name='temperature', most=None, instead=None)]
        >>> said = "Invalid value for 'top_logprobs': must be less than or equal to 5."
        >>> refusals_in(said, {"top_logprobs": 20})
        [Refusal(name='top_logprobs', most=5, instead=None)]
        >>> said = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
        >>> refusals_in(said, {"max_tokens": 9})
        [Refusal(name='max_tokens', most=None, instead='max_completion_tokens')]
    """
    found = []
    for name, value in sent.items():
        renamed = next((other for other in _RENAMED.get(name, ()) if _names(message, other)), None)
        if renamed is not None:
            found.append(Refusal(name, instead=renamed))
        elif name in _COUNTS and (most := _limit(message, name)) is not None:
            if isinstance(value, int) and not isinstance(value, bool) and value > most:
                found.append(Refusal(name, most=most))
        elif _refuses(message, name):
            found.append(Refusal(name))
    # Beside a name in quotes, others are ordinary words: "stop", "include", "reasoning".
    quoted = [refusal for refusal in found if re.search(rf"['\"`]{re.escape(refusal.name)}['\"`]", message)]
    return quoted or found


@dataclass(frozen=True)
class Understood:
    """What one model was found to refuse, so that it is asked for once only.

    Attributes:
        dropped: Parameters left out from now on.
        most: Largest values of others.
        renamed: What others are called.
    """

    dropped: frozenset[str] = frozenset()
    most: Mapping[str, int] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)

    def render(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as the service takes them.

        Example:
            >>> Understood(frozenset({"seed"}), {"n": 1}, {"max_tokens": "max_completion_tokens"}).render(
            ...     {"seed": 1, "n": 3, "max_tokens": 9, "stop": ["x"]})
            {'n': 1, 'max_completion_tokens': 9, 'stop': ['x']}
        """
        return {
            self.renamed.get(name, name): min(value, self.most[name]) if name in self.most else value
            for name, value in arguments.items()
            if name not in self.dropped and self.renamed.get(name) not in arguments
        }

    def learnt(
        self, message: str, sent: Mapping[str, Any], needed: Collection[str] = ()
    ) -> Understood | None:
        """Return what a refused request teaches; None if asking again would be no use.

        Args:
            message: What the service said.
            sent: The arguments that it refused, before :meth:`render`.
            needed: Those of them that cannot be left out; of a number a smaller one will do, unless it is 0.
        """
        tried = {name: value for name, value in sent.items() if name not in self.dropped}
        refused = refusals_in(message, tried)
        if _TOGETHER.search(message):
            # One of them has to go; the last one that can.
            refused = [one for one in refused if one.instead or one.name not in needed][-1:]
        learnt = self
        for refusal in refused:
            if refusal.instead is not None and self.renamed.get(refusal.name) != refusal.instead:
                learnt = replace(learnt, renamed={**learnt.renamed, refusal.name: refusal.instead})
            elif refusal.most and self.most.get(refusal.name, refusal.most + 1) > refusal.most:
                learnt = replace(learnt, most={**learnt.most, refusal.name: refusal.most})
            elif refusal.instead is None and refusal.name not in needed:
                learnt = replace(learnt, dropped=learnt.dropped | {refusal.name})
        return None if learnt == self else learnt

    def joined(self, other: Understood) -> Understood:
        """Return what both know, as where two requests learnt at the same time.

        Example:
            >>> Understood(most={"n": 4}).joined(Understood(frozenset({"stop"}), {"n": 2})).most
            {'n': 2}
        """
        limits = [*self.most.items(), *other.most.items()]
        most = {name: min(value for key, value in limits if key == name) for name, _ in limits}
        return Understood(self.dropped | other.dropped, most, {**self.renamed, **other.renamed})


def needed(sampling: SamplingParams) -> frozenset[str]:
    """Return the parameters, as OpenAI's API calls them, that an answer cannot do without.

    Randomness matters only where several answers are drawn; one that was to be the likeliest is drawn at the
    service's own temperature if it has no other, with a warning. The number of answers, stop texts and seeds
    can be done without: answers are asked for one by one, and cut here.

    Example:
        >>> sorted(needed(SamplingParams(n=10, temperature=0.7, trace="logprobs")))
        ['logprobs', 'temperature']
        >>> sorted(needed(SamplingParams(trace="none")))
        []
    """
    found = {"logprobs"} if sampling.trace != "none" else set()
    if sampling.trace == "entropy":
        found.add("top_logprobs")
    if sampling.n > 1:
        plain = {"temperature": 1, "top_p": 1, "top_k": None}
        found |= {name for name, value in plain.items() if getattr(sampling, name) != value}
    return frozenset(found)


def tell_left_out(model: str, names: Iterable[str], sampling: SamplingParams) -> list[str]:
    """Warn of parameters that a model was found to refuse, where leaving them out may be felt.

    Returns:
        Those that were warned of.
    """
    felt = {"temperature": sampling.temperature != 1, "top_p": sampling.top_p != 1, "top_k": True}
    said = sorted(name for name in names if felt.get(name))
    if said:
        warnings.warn(
            f"{model} refuses {' and '.join(said)}: it is asked without, and samples as its service does",
            LeftOutWarning,
            stacklevel=2,
        )
    return said


def _names(message: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", message) is not None


def _limit(message: str, name: str) -> int | None:
    """Return the limit that is named after a parameter, and close to it."""
    at = re.search(rf"\b{re.escape(name)}\b", message)
    if at is None:
        return None
    found = _LIMIT.search(message[max(at.start() - 5, 0) : at.end() + 120])
    return int(found[1]) if found else None


def _refuses(message: str, name: str) -> bool:
    """Whether a service says that it does not take a parameter: the name, and close to it a refusal."""
    parameter = rf"(?<![\w-]){re.escape(name)}(?![\w-])"
    return bool(
        re.search(
            rf"(?i){_NOT_TAKEN}[^.;]{{0,60}}?{parameter}|{parameter}[^.;]{{0,80}}?{_NOT_TAKEN}", message
        )
    )
