"""An OpenAI-compatible server that refuses parameters, in the words of the service it stands for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.servers.fake_openai import FakeOpenAI, Json, Wire
from tests.servers.toy_model import Script, ToyModel

Rule = Callable[[Json], str | None]
"""Given a request's body, what the service says against it."""


class Refusing(FakeOpenAI):
    """A server with rules; ``accepted`` are the bodies that it had nothing against."""

    def __init__(self, *rules: Rule, model: ToyModel | Script | None = None, status: int = 400) -> None:
        super().__init__(model)
        self._rules = rules
        self._status = status
        self.accepted: list[Json] = []

    def fault_for(self, body: Json) -> Callable[[Wire], None] | None:
        """Refuse what breaks a rule."""
        said = next((message for rule in self._rules if (message := rule(body))), None)
        if said is None:
            self.accepted.append(body)
            return None
        error = {"message": said, "type": "invalid_request_error", "param": None, "code": None}
        return lambda wire: wire.body(json.dumps({"error": error}).encode(), self._status)


def unsupported(name: str, message: str) -> Rule:
    """Refuse a parameter, whatever its value."""
    return lambda body: message if name in body else None


def allows(name: str, values: Callable[[Any], bool], message: str) -> Rule:
    """Refuse values of a parameter."""
    return lambda body: message if name in body and not values(body[name]) else None


OPENAI_THINKING = (
    unsupported(
        "max_tokens",
        "Unsupported parameter: 'max_tokens' is not supported with this model. "
        "Use 'max_completion_tokens' instead.",
    ),
    allows(
        "temperature",
        lambda value: value == 1,
        "Unsupported value: 'temperature' does not support 0.0 with this model. "
        "Only the default (1) value is supported.",
    ),
    unsupported("top_p", "Unsupported parameter: 'top_p' is not supported with this model."),
    unsupported("stop", "Unsupported parameter: 'stop' is not supported with this model."),
    unsupported("logprobs", "You are not allowed to request logprobs from this model."),
)
"""The o-series, and gpt-5 with any effort but none."""

AZURE = (
    lambda body: (
        "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        if {"max_tokens", "max_completion_tokens"} <= body.keys()
        else None
    ),
    *OPENAI_THINKING[:1],
)
GROQ = (
    unsupported("logprobs", "'logprobs' is not supported with this model"),
    allows("n", lambda value: value <= 1, "'n' : number must be at most 1"),
)
FIREWORKS = (
    allows(
        "top_logprobs",
        lambda value: value <= 5,
        "Invalid value for 'top_logprobs': must be less than or equal to 5.",
    ),
)
STRICT = (
    unsupported("seed", "Unrecognized request argument supplied: seed"),
    unsupported("stream_options", "stream_options: Extra inputs are not permitted"),
)
