"""What a model is asked with: what a method needs, what the user set, and what the provider does anyway.

Only what differs from what would happen anyway is sent. What a user built or bound into a model holds, unless
what a method measures would be something else by it; then the method's value goes, and that is said once.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from surerag.messages import SamplingParams

ALIASES: Mapping[str, str] = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "num_predict": "max_tokens",
    "stop_sequences": "stop",
    "candidate_count": "n",
    "random_seed": "seed",
}
"""Settings by the names that some classes have for them, and those by which they go here."""

SETTINGS = frozenset(
    {"temperature", "top_p", "top_k", "max_tokens", "n", "seed", "stop", "logprobs", "top_logprobs"}
)
"""What a model may be asked with, by the names that OpenAI's API has for them."""


class OverruledWarning(UserWarning):
    """A setting of the user's model gives way, because a method would measure something else with it."""


@dataclass(frozen=True)
class Asked:
    """One request: ``n`` samples of one prompt, the first of them number ``first`` of all that are wanted."""

    sampling: SamplingParams
    n: int = 1
    first: int = 0
    echo: bool = False
    streamed: bool = False

    @property
    def sampled(self) -> bool:
        """Whether asking again may, and should, give something else."""
        return self.sampling.temperature > 0

    @property
    def seed(self) -> int:
        """A seed of its own for every sample that is asked for separately."""
        return self.sampling.seed + self.first


class Overruled(NamedTuple):
    """A setting of the user's that gives way, and to what."""

    name: str
    built: Any
    sent: Any


class Settled(NamedTuple):
    """What to ask a model with.

    Attributes:
        values: Settings to send, by the names of :data:`SETTINGS`.
        overruled: What of the user's settings gives way to them.
        unset: What of the user's settings is taken out: the model refuses it, or it makes no sense here.
    """

    values: dict[str, Any]
    overruled: tuple[Overruled, ...] = ()
    unset: frozenset[str] = frozenset()


def held_in(*given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a user set, by the names used here; of several mappings the last one wins.

    Example:
        >>> held_in({"num_predict": 9, "temperature": 0.2, "model": "toy"}, {"temperature": None, "n": 2})
        {'max_tokens': 9, 'temperature': 0.2, 'n': 2}
    """
    found = {}
    for settings in given:
        for own, value in settings.items():
            name = ALIASES.get(own, own)
            if name in SETTINGS and value is not None:
                found[name] = value
    return found


def settle(
    asked: Asked,
    held: Mapping[str, Any],
    anyway: Mapping[str, Any],
    *,
    traced: bool,
    top_logprobs: int = 0,
    thinking: int = 0,
) -> Settled:
    """Decide what to ask a model with.

    A user's temperature and nucleus give way where answers are drawn or measured; of plain text, only how
    long it gets and where it stops is the method's business. The shorter of two lengths holds, both sides'
    stop texts do, and a seed of the user's moves that of every sample.

    Args:
        asked: What the method asks for.
        held: What the user set.
        anyway: What happens where nothing is said: by the class's own defaults, or by the provider's.
        traced: Whether the answer is to carry log-probabilities.
        top_logprobs: Alternatives to list at each token, if entropies are needed.
        thinking: Tokens to allow for on top, because the model thinks before it answers.

    Example:
        >>> plain, drawn = SamplingParams(trace="none"), SamplingParams(n=3, temperature=1.0, trace="none")
        >>> settle(Asked(plain), {"temperature": 0.2, "max_tokens": 9}, {}, traced=False).values
        {'max_tokens': 9}
        >>> settle(Asked(drawn, 3), {"temperature": 0.2}, {"temperature": 1.0}, traced=False).overruled
        (Overruled(name='temperature', built=0.2, sent=1.0),)
    """
    sampling = asked.sampling
    values: dict[str, Any] = {}
    overruled = []
    for name in _decided(asked, held, traced=traced):
        wanted = getattr(sampling, name)
        if held.get(name, wanted) != wanted:
            overruled.append(Overruled(name, held[name], wanted))
        if held.get(name, anyway.get(name)) != wanted:
            values[name] = wanted
    longest = held.get("max_tokens")
    length = sampling.max_tokens + thinking
    values["max_tokens"] = min(length, longest) if isinstance(longest, int) and longest > 0 else length
    if asked.n != held.get("n", 1):
        values["n"] = asked.n
    if asked.sampled:
        own = held.get("seed", 0)
        values["seed"] = asked.seed + (own if isinstance(own, int) else 0)
    if sampling.stop and not thinking:
        # Meant for the answer, they may stand in the thoughts; the answer is cut where it is read.
        values["stop"] = list(dict.fromkeys([*_texts(held.get("stop")), *sampling.stop]))
    unset = frozenset[str]()
    if traced:
        values["logprobs"] = True
        if top_logprobs and sampling.trace == "entropy":
            values["top_logprobs"] = top_logprobs
    elif not held.get("logprobs") and "top_logprobs" in held:
        # A number of alternatives alone, meant for where log-probabilities are asked for, is refused.
        unset = frozenset({"top_logprobs"})
    return Settled(values, tuple(overruled), unset)


def tell_overruled(model: str, overruled: Overruled) -> None:
    """Warn of a user's setting that gives way, naming both values."""
    name, built, sent = overruled
    warnings.warn(
        f"{model} has {name}={built!r}, and is asked with {name}={sent!r} where answers are drawn or "
        "measured: they would be those of another distribution",
        OverruledWarning,
        stacklevel=2,
    )


_SHAPING = {"temperature", "top_p", "top_k"}


def _decided(asked: Asked, held: Mapping[str, Any], *, traced: bool) -> tuple[str, ...]:
    """Return which of the settings that shape a distribution are the method's to decide."""
    if asked.sampled:
        return tuple(sorted(_SHAPING))
    measured = traced or asked.sampling.n > 1 or asked.sampling.compared
    # Where the likeliest token is taken, it does not matter among how many.
    return ("temperature",) if measured or not held.keys() & _SHAPING else ()


def _texts(stop: Any) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop or ())
