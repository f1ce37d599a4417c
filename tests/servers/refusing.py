"""A server that refuses parameters as services do, in their own words.

    with Refusing(REASONING, Script(["Velm"])) as server:
        model = ChatOpenAI(model="o4-mini", base_url=server.base_url, ...)

The words are those of the services' answers as people quote them in their issue trackers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.servers.fake_openai import FakeOpenAI, Wire
from tests.servers.toy_model import Script, ToyModel

Json = dict[str, Any]


class Rule(NamedTuple):
    """What a service refuses, and what it says then."""

    broken: Callable[[Json], bool]
    message: str
    param: str | None = None
    code: str | None = None
    status: int = 400


def unsupported(name: str) -> Rule:
    """A parameter that a model does not take, in OpenAI's words."""
    message = f"Unsupported parameter: '{name}' is not supported with this model."
    return Rule(lambda body: body.get(name) is not None, message, name, "unsupported_parameter")


def at_most(name: str, limit: int) -> Rule:
    """A number that may be no larger, in OpenAI's words."""
    message = (
        f"Invalid value for '{name}': must be less than or equal to {limit}."
        if name == "top_logprobs"
        else f"Invalid '{name}': integer above maximum value. Expected a value <= {limit}, but got one above."
    )
    return Rule(lambda body: (body.get(name) or 0) > limit, message, name, "integer_above_max_value")


FIXED_TEMPERATURE = Rule(
    lambda body: body.get("temperature", 1) != 1,
    "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is "
    "supported.",
    "temperature",
    "unsupported_value",
)
RENAMED_LIMIT = Rule(
    lambda body: "max_tokens" in body,
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
    "instead.",
    "max_tokens",
    "unsupported_parameter",
)
TWO_LIMITS = Rule(
    lambda body: {"max_tokens", "max_completion_tokens"} <= body.keys(),
    "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
    "max_tokens",
    "invalid_parameter_combination",
)
NO_LOGPROBS = Rule(
    lambda body: bool(body.get("logprobs")),
    "You are not allowed to request logprobs from this model",
    None,
    None,
    403,
)

REASONING = (FIXED_TEMPERATURE, RENAMED_LIMIT, *map(unsupported, ("top_p", "logprobs", "stop", "seed", "n")))
"""OpenAI's reasoning models."""


class Refusing(FakeOpenAI):
    """The server.

    Args:
        rules: What it refuses; the first that is broken is said.
        model: What answers.
    """

    def __init__(self, rules: Sequence[Rule], model: ToyModel | Script | None = None) -> None:
        super().__init__(model)
        self.rules = tuple(rules)

    @property
    def answered(self) -> list[Json]:
        """Bodies of the requests that were not refused."""
        bodies = [request.body for request in self.requests]
        return [body for body in bodies if not any(rule.broken(body) for rule in self.rules)]

    @property
    def refused(self) -> int:
        """How many requests were refused."""
        return len(self.requests) - len(self.answered)

    def fault_for(self, body: Json) -> Callable[[Wire], None] | None:
        """Refuse what breaks a rule."""
        for rule in self.rules:
            if rule.broken(body):
                error = {
                    "message": rule.message,
                    "type": "invalid_request_error",
                    "param": rule.param,
                    "code": rule.code,
                }
                return lambda wire, rule=rule, error=error: wire.body(  # type: ignore[misc]  # defaults bind
                    json.dumps({"error": error}).encode(), rule.status
                )
        return super().fault_for(body)
