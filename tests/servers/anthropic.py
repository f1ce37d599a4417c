"""Anthropic's Messages API in this process, as its documentation has it; not tried on it.

    with FakeAnthropic(Script(["Velm"]), ONE_OF_TWO) as server:
        model = ChatAnthropic(model="claude-sonnet-4-5", base_url=server.url, api_key="x")

It serves ``/v1/messages``, whole and streamed, thinks where ``thinking`` says so, and refuses in the
service's own words (https://github.com/BerriAI/litellm/issues/15097, https://github.com/smartman97/py-gpt/issues/184).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.servers.service import Answer, Asked, FakeService, Json, events
from tests.servers.toy_model import Script, ToyModel, split

KNOWN = frozenset(
    "model messages system max_tokens temperature top_p top_k stop_sequences stream thinking metadata".split()
)

Rule = Callable[[Json], str | None]


def one_of_two(body: Json) -> str | None:
    """From Opus 4.1 and Sonnet 4.5 on."""
    if "temperature" in body and "top_p" in body:
        return "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
    return None


def no_temperature(body: Json) -> str | None:
    """The newest models."""
    return "`temperature` is deprecated for this model." if "temperature" in body else None


def thinking_fits(body: Json) -> str | None:
    """All models that think."""
    thinking = body.get("thinking") or {}
    if thinking.get("type") != "enabled":
        return None
    if body["max_tokens"] <= thinking["budget_tokens"]:
        return "`max_tokens` must be greater than `thinking.budget_tokens`."
    if body.get("temperature", 1) != 1:
        return "`temperature` may only be set to 1 when thinking is enabled."
    return None


def known_fields(body: Json) -> str | None:
    """Fields that there are none of are refused."""
    unknown = sorted(body.keys() - KNOWN)
    return f"{unknown[0]}: Extra inputs are not permitted" if unknown else None


class FakeAnthropic(FakeService):
    """The server.

    Args:
        model: What answers; default a ``ToyModel``.
        rules: What it refuses, besides what all models do.
        thought: What the model thinks where it is told to.

    Attributes:
        cached: Tokens of each prompt that are in its cache.
    """

    def __init__(
        self, model: ToyModel | Script | None = None, *rules: Rule, thought: str = "Velm, perhaps?"
    ) -> None:
        super().__init__()
        self.model = model or ToyModel()
        self.rules = (known_fields, thinking_fits, *rules)
        self.thought = thought
        self.cached = 0

    @property
    def answered(self) -> list[Json]:
        """Bodies of the requests that were not refused."""
        return [body for body in self.bodies if not any(rule(body) for rule in self.rules)]

    def answer(self, asked: Asked) -> Answer:
        """Answer as the service does."""
        body = asked.body
        for rule in self.rules:
            if message := rule(body):
                error = {"type": "invalid_request_error", "message": message}
                return Answer({"type": "error", "error": error, "request_id": "req_1"}, 400)
        blocks, reason, usage = self._said(body)
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": usage,
        }
        if body.get("stream"):
            return Answer(events(_streamed(message), named=True), kind="text/event-stream")
        return Answer(message)

    def _said(self, body: Json) -> tuple[list[Json], str, Json]:
        prompt = "\n".join(_text(turn["content"]) for turn in body["messages"])
        said = self.model.say(prompt, body.get("temperature", 1.0), 0, 40)
        thinks = (body.get("thinking") or {}).get("type") == "enabled"
        thought = split(self.thought) if thinks else []
        left = max(body["max_tokens"] - len(thought), 0)
        tokens = said.tokens[:left]
        blocks: list[Json] = [{"type": "text", "text": "".join(token.text for token in tokens)}]
        if thinks:
            blocks.insert(0, {"type": "thinking", "thinking": self.thought, "signature": "x"})
        usage = {
            "input_tokens": len(split(prompt)) - self.cached,
            "cache_read_input_tokens": self.cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": len(thought) + len(tokens),
        }
        if thinks:
            usage["output_tokens_details"] = {"thinking_tokens": len(thought)}  # type: ignore[assignment]  # as the service nests it
        return blocks, "max_tokens" if len(said.tokens) > left else "end_turn", usage


def _text(content: str | list[Json]) -> str:
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)


def _streamed(message: Json) -> Iterator[Json]:
    usage = message["usage"]
    yield {
        "type": "message_start",
        "message": {
            **message,
            "content": [],
            "stop_reason": None,
            "usage": {**usage, "output_tokens": 1},
        },
    }
    for index, block in enumerate(message["content"]):
        kind = block["type"]
        empty = {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for word in split(block[kind]):
            delta = {"type": f"{kind}_delta", kind: word}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": usage}
    yield {"type": "message_stop"}
