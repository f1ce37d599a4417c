"""Parameters that a model rejects: left out, renamed or lowered, after one 400 and for good; no I/O.

Services refuse different parameters, say so in their own words, and change that from one model to the next: a
reasoning model takes no temperature, another one no log-probabilities, a third lists five alternatives where
twenty were requested. What a method does not depend on is left out from then on; what it depends on is an
error with the service's reason.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from surerag.messages import SamplingParams

_RENAMED = {"max_tokens": "max_completion_tokens"}
_COUNTS = frozenset({"n", "logprobs", "top_logprobs", "max_tokens", "max_completion_tokens"})
"""Parameters of which a smaller number will do."""

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


TEMPERATURE_HINT = (
    "sample at temperature=1.0, or use a model that takes one; a thinking model may with thinking=False"
)


class LeftOutWarning(UserWarning):
    """From now on a model is asked without what it rejects, or does not return, and results differ by it."""


@dataclass
class SupportedParameters:
    """What one model is known to reject: parameters to leave out, to limit, and to rename."""

    drop: set[str] = field(default_factory=set)
    cap: dict[str, int] = field(default_factory=dict)
    rename: dict[str, str] = field(default_factory=dict)

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request's body as the model takes it."""
        return {
            self.rename.get(name, name): min(value, self.cap[name]) if name in self.cap else value
            for name, value in body.items()
            if name not in self.drop
        }

    def learn(self, message: str, body: Mapping[str, Any], needed: Collection[str] = ()) -> list[str]:
        """Note what a service's refusal teaches, and return which parameters that changes, if any.

        ``body`` is the request's before :meth:`apply`. Parameters that are ``needed`` cannot be left out;
        of a number, a smaller one will do, unless it is 0.
        """
        changes = self._changes(message, body)
        if _TOGETHER.search(message):
            changes = [one for one in changes if one[1] is not None or one[0] not in needed][-1:]
        changed = []
        for name, value in changes:
            if isinstance(value, str):
                self.rename[name] = value
            elif value:
                self.cap[name] = value
            elif name not in needed:
                self.drop.add(name)
            else:
                continue
            changed.append(name)
        return changed

    def _changes(self, message: str, body: Mapping[str, Any]) -> list[tuple[str, str | int | None]]:
        """Return parameters that a message rejects, with a new name, a limit, or None to drop them."""
        changes = [
            (name, change[0])
            for name, value in self.apply(body).items()
            if (change := _change_of(message, name, value))
        ]
        # Beside a name in quotes, others are ordinary words, such as "stop" or "model".
        quoted = [one for one in changes if re.search(rf"['\"`]{re.escape(one[0])}['\"`]", message)]
        original = {new: old for old, new in self.rename.items()}
        return [(original.get(name, name), value) for name, value in quoted or changes]


def needed_parameters(sampling: SamplingParams) -> frozenset[str]:
    """Return the parameters that an answer cannot do without.

    Randomness matters only where several answers are drawn. Numbers of answers, stop texts and seeds can be
    done without: answers are requested one by one, and cut here.
    """
    needed = {"model", "messages", "prompt"}
    if sampling.trace != "none":
        needed.add("logprobs")
    if sampling.trace == "entropy":
        needed.add("top_logprobs")
    if sampling.n > 1 and sampling.temperature != 1:
        needed.add("temperature")
    return frozenset(needed)


def warn_of_dropped(model: str, names: Collection[str], sampling: SamplingParams) -> None:
    """Warn of parameters left out from now on, if that changes how the model samples."""
    if "temperature" in names and sampling.temperature != 1:
        warnings.warn(
            f"{model} rejects temperature: it is asked without, and samples as its service does",
            LeftOutWarning,
            stacklevel=2,
        )


def warn_of_missing_logprobs(model: str) -> None:
    """Warn that an answer came without log-probabilities, and that a method does without them."""
    warnings.warn(
        f"{model} returned no usable log-probabilities: what they would have told is measured by the text "
        "alone, or not at all",
        LeftOutWarning,
        stacklevel=2,
    )


def _change_of(message: str, name: str, value: object) -> tuple[str | int | None] | None:
    """Return, in a tuple, a new name or limit of a parameter, or None to drop it; None if it is taken."""
    limit = _limit_of(message, name) if name in _COUNTS else None
    if name in _RENAMED and _RENAMED[name] in message:
        return (_RENAMED[name],)
    if limit is not None:
        above = isinstance(value, int) and not isinstance(value, bool) and value > limit
        return (limit or None,) if above else None
    return (None,) if _rejects(message, name) else None


def _limit_of(message: str, name: str) -> int | None:
    """Return the limit that a message names after a parameter, and close to it."""
    at = re.search(rf"\b{re.escape(name)}\b", message)
    limit = _LIMIT.search(message[max(at.start() - 5, 0) : at.end() + 120]) if at else None
    return int(limit[1]) if limit else None


def _rejects(message: str, name: str) -> bool:
    """Whether a message rejects a parameter: its name, and close to it words of refusal."""
    parameter = rf"(?<![\w-]){re.escape(name)}(?![\w-])"
    return bool(
        re.search(
            rf"(?i){_NOT_TAKEN}[^.;]{{0,60}}?{parameter}|{parameter}[^.;]{{0,80}}?{_NOT_TAKEN}", message
        )
    )
