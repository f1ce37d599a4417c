"""Requests to OpenAI-compatible servers: their bodies, and what a server refuses; no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from surerag.errors import InputError
from surerag.readers.openai.parse import Api, Wanted
from surerag.types import Prompt, Sampling, as_messages

_SEED_STEP = 0x9E3779B1
_SEED_RANGE = 2**31


class Ask(NamedTuple):
    """One request.

    Attributes:
        api: Where it goes.
        body: What it says.
        patient: Whether it is sent again when it fails in a way that may pass.
    """

    api: Api
    body: dict[str, Any]
    patient: bool = True


def body_of(api: Api, model: str, prompt: Prompt, sampling: Sampling, wanted: Wanted) -> dict[str, Any]:
    """Return the body that asks for ``sampling.n`` answers to one prompt.

    Raises:
        InputError: If a conversation is to go to the completions API.
    """
    body: dict[str, Any] = {
        "model": model,
        **prompt_body(api, prompt),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        # Also where it changes nothing: some servers cut the tail unless told not to.
        "top_p": sampling.top_p,
        "seed": sampling.seed % _SEED_RANGE,
    }
    if sampling.n > 1:
        body["n"] = sampling.n
    if sampling.top_k is not None:
        # Not OpenAI's own, but understood by most servers of open models.
        body["top_k"] = sampling.top_k
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    return body | logprobs_body(api, wanted)


def prompt_body(api: Api, prompt: Prompt) -> dict[str, Any]:
    """Return the part of a body that holds the prompt.

    Raises:
        InputError: If a conversation is to go to the completions API.
    """
    messages = as_messages(prompt)
    if api == "chat":
        return {"messages": [{"role": message.role, "content": message.content} for message in messages]}
    if len(messages) > 1:
        raise InputError(
            f"a conversation of {len(messages)} turns cannot go to the completions API",
            hint='use api="chat", or put it into one text with the model\'s own template',
        )
    return {"prompt": messages[0].content}


def logprobs_body(api: Api, wanted: Wanted) -> dict[str, Any]:
    """Return the part of a body that asks for log-probabilities."""
    if not wanted.logprobs:
        return {}
    if api == "completions":
        return {"logprobs": wanted.top}
    return {"logprobs": True, "top_logprobs": wanted.top} if wanted.top else {"logprobs": True}


def seed_of(seed: int, sample: int) -> int:
    """Return the seed of one sample, where a server has to be asked for it alone.

    Example:
        >>> seed_of(7, 0), seed_of(7, 1) != seed_of(8, 0)
        (7, True)
    """
    return (seed + sample * _SEED_STEP) % _SEED_RANGE


@dataclass(frozen=True)
class Dialect:
    """What one server was found to refuse, so that it is asked for once only.

    Attributes:
        dropped: Fields left out from now on.
        max_tokens: What the limit on new tokens is called.
    """

    dropped: frozenset[str] = frozenset()
    max_tokens: str = "max_tokens"

    def render(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a body in the server's own words."""
        kept = {key: value for key, value in body.items() if key not in self.dropped}
        if self.max_tokens != "max_tokens" and "max_tokens" in kept:
            kept[self.max_tokens] = kept.pop("max_tokens")
        return kept

    def learnt(self, refusal: str, sent: Mapping[str, Any]) -> Dialect | None:
        """Return what a refused request teaches; None if asking again makes no sense.

        Only what changes no answer is given up: usage in streams, the seed, and a name. A refusal that
        merely quotes a name, as from a prompt, teaches nothing.
        """
        if "max_completion_tokens" in refusal and "max_tokens" in sent:
            return replace(self, max_tokens="max_completion_tokens")
        for name in ("stream_options", "seed"):
            if name in sent and _refuses(refusal, name):
                return replace(self, dropped=self.dropped | {name})
        return None


_NOT_TAKEN = (
    r"(unsupported|unknown|unrecogni[sz]ed|unexpected|invalid|extra (inputs|fields?)|forbidden"
    r"|not (\w+ )?(supported|permitted|allowed|available|accepted|recogni[sz]ed)|no such)"
)


def _refuses(refusal: str, name: str) -> bool:
    """Whether a server says that it does not take a field: the name, and close to it that it is refused."""
    field = rf"\b{re.escape(name)}\b"
    return bool(
        re.search(rf"(?i){_NOT_TAKEN}[^.;]{{0,40}}?{field}|{field}[^.;]{{0,60}}?{_NOT_TAKEN}", refusal)
    )
