"""What a request to a user's LLM says: what the method needs, and what its user built in; no I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from surerag.errors import CapabilityError
from surerag.messages import SamplingParams


class LLMSettingWarning(UserWarning):
    """A method and the LLM that it asks are set differently; it says which of the two values holds."""


class Overridden(NamedTuple):
    """A setting of the LLM that gives way to a method's."""

    name: str
    built: Any
    used: Any


class Asked(NamedTuple):
    """What is asked of an LLM besides the prompt.

    Attributes:
        parameters: Values by the names of OpenAI's API. What is not among them is not sent.
        overridden: What the user had set otherwise.
    """

    parameters: dict[str, Any]
    overridden: tuple[Overridden, ...] = ()


def asked(
    sampling: SamplingParams,
    built: Mapping[str, Any],
    *,
    takes: Collection[str],
    top_logprobs: int,
    n: int = 1,
    thinks: bool = False,
) -> Asked:
    """Return what to ask for, so that both the method and the user get their due.

    What the user built in holds where the method's result does not depend on it: the temperature of a
    single answer of which only the text is needed, a limit that is lower than the method's, stop texts
    (besides the method's). Where several answers are drawn, where the method itself asks for randomness, and
    where a greedy answer or its trace is compared with something, the method's values hold.

    Args:
        sampling: What the method asks for.
        built: What the user built in, by the names of OpenAI's API.
        takes: What the LLM takes, by the same names.
        top_logprobs: Likeliest tokens to list where entropies are needed.
        n: Answers that this one request shall bring.
        thinks: Whether the model is known to think first: then a limit on the answer alone cannot be sent.

    Raises:
        CapabilityError: If ``top_k`` is asked for and the LLM takes none.

    Example:
        >>> every = {"temperature", "max_tokens", "logprobs", "top_logprobs"}
        >>> asked(SamplingParams(trace="none"), {"temperature": 0.7}, takes=every, top_logprobs=20).parameters
        {'temperature': 0.7, 'max_tokens': 64}
        >>> asked(SamplingParams(), {"max_tokens": 9}, takes=every, top_logprobs=20).parameters
        {'temperature': 0.0, 'max_tokens': 9, 'logprobs': True, 'top_logprobs': 20}
    """
    if sampling.top_k is not None and "top_k" not in takes:
        raise CapabilityError(
            "this LLM takes no top_k",
            hint="leave top_k out, or set it in the LLM's additional_kwargs",
        )
    ours = _of_method(sampling, top_logprobs, n)
    measured = sampling.n > 1 or sampling.trace != "none" or sampling.compared
    free = sampling.temperature == 0 and not measured
    if free and "temperature" in built:
        del ours["temperature"]
    overridden = tuple(
        Overridden(name, built[name], value)
        for name, value in ours.items()
        if name in _CHOSEN and name in takes and name in built and built[name] != value
    )
    limit = built.get("max_tokens")
    if limit is not None:
        ours["max_tokens"] = limit if thinks else min(limit, sampling.max_tokens)
    elif thinks:
        del ours["max_tokens"]
    stop = _texts(built.get("stop"))
    if stop or sampling.stop:
        ours["stop"] = list(dict.fromkeys((*stop, *sampling.stop)))
    kept = {name: value for name, value in built.items() if name not in ours and name in _HELD}
    return Asked({name: value for name, value in {**kept, **ours}.items() if name in takes}, overridden)


_CHOSEN = frozenset({"temperature", "top_p", "top_k", "seed"})
"""What a user chooses; there is nothing to choose in how many answers are asked for at a time."""

_HELD = frozenset({*_CHOSEN, "stop"})
"""What stays in force of what a user built in, where the method says nothing of it."""


def _of_method(sampling: SamplingParams, top_logprobs: int, n: int) -> dict[str, Any]:
    ours: dict[str, Any] = {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens}
    if sampling.temperature > 0:
        # Greedy decoding needs none of them. The mass is said also where it is 1: many a server cuts the
        # tail unless told not to.
        ours |= {"top_p": sampling.top_p, "seed": sampling.seed}
        if sampling.top_k is not None:
            ours["top_k"] = sampling.top_k
    if n > 1:
        ours["n"] = n
    if sampling.trace != "none":
        ours["logprobs"] = True
    if sampling.trace == "entropy" and top_logprobs:
        ours["top_logprobs"] = top_logprobs
    return ours


def _texts(stop: Any) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)
