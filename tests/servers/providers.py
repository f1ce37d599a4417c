"""Services that people use, each behaving as its documentation says, in this process.

    with provider("gpt-5") as server:
        reader = OpenAIReader(server.personality.model, base_url=server.url)
        ...
        assert "logprobs" not in server.requests[-1].body

Each of ``PERSONALITIES`` says what it refuses (in the service's own words), whether it thinks, where the
thoughts come, and what of it has log-probabilities; its ``source`` says where that is written. None of them
was tried on the service itself. What answers is a ``ToyModel`` or a ``Script``, as for ``FakeOpenAI``; the
answer is the same whatever was thought before it. ``server.requests`` holds every body that was sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.servers.fake_openai import FakeOpenAI, Json, Quirks, Wire, prompt_of, top_of
from tests.servers.toy_model import Script, Token, ToyModel, split

THOUGHT = "Perhaps Tarn? No: the river is the Orun, so Velm."

Where = Literal["hidden", "reasoning", "reasoning_content", "tags", "closing tag", "harmony"]
"""Where thoughts come: nowhere, in a field, in the text (both marks, or the closing one), in channels."""

Covered = Literal["all", "answer", "apart", "none"]
"""What log-probabilities are of: thoughts and answer in one list, the answer, both apart, or nothing."""

OPENAI_FIELDS = frozenset(
    "model messages max_tokens max_completion_tokens temperature top_p n seed stop logprobs top_logprobs "
    "stream stream_options reasoning_effort prompt echo".split()
)


class Refused(NamedTuple):
    """A refusal: status and words."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None


Refuse = Callable[[Json], Refused | None]


@dataclass(frozen=True)
class Personality:
    """How a service and its model behave.

    Attributes:
        name: What tests call it.
        model: What the service calls the model.
        source: Where its behaviour is documented.
        refuse: What it refuses, in its words.
        thinks: Whether it thinks about a request.
        where: Where its thoughts come.
        covered: What its log-probabilities are of.
        counts_thoughts: Whether its usage tells thoughts from answers.
        ignores_n: Whether it gives one answer whatever ``n`` is.
        errors_inside: Whether its errors come within an answer of status 200.
        root: Path of the API's root.
    """

    name: str
    model: str
    source: str
    refuse: Refuse = lambda body: None
    thinks: Callable[[Json], bool] = lambda body: False
    where: Where = "hidden"
    covered: Covered = "answer"
    counts_thoughts: bool = False
    ignores_n: bool = False
    errors_inside: bool = False
    root: str = "/v1"


class ProviderServer(FakeOpenAI):
    """A server with a personality.

    Args:
        personality: How it behaves.
        model: What answers.
        thought: What it thinks, where it thinks.
    """

    def __init__(self, personality: Personality, model: ToyModel | Script | None, thought: str) -> None:
        super().__init__(model, Quirks())
        self.personality = personality
        self.thought = thought

    @property
    def url(self) -> str:
        """The API's root."""
        return self.base_url.removesuffix("/v1") + self.personality.root

    def fault_for(self, body: Json) -> Callable[[Wire], None] | None:
        """Answer every request in this service's way."""
        return self.fault or self._answer

    def _answer(self, wire: Wire) -> None:
        refused = self.personality.refuse(wire.asked)
        if refused is not None:
            self._refuse(wire, refused)
        elif "input" in wire.asked:
            _respond(self, wire)
        elif wire.asked.get("stream"):
            _stream(wire, _chat_pieces(self, wire.asked, chat=wire.chat))
        else:
            wire.body(json.dumps(_chat_answer(self, wire.asked, chat=wire.chat)).encode())

    def _refuse(self, wire: Wire, refused: Refused) -> None:
        error = {"message": refused.message, "type": "invalid_request_error"}
        if self.personality.errors_inside:
            raw = json.dumps({"error": {**error, "param": refused.param, "code": refused.code}})
            told = {"message": "Provider returned error", "code": refused.status, "metadata": {"raw": raw}}
            if wire.asked.get("stream"):
                _stream(wire, iter([{"error": told}]))
            else:
                wire.body(json.dumps({"error": told, "user_id": "x"}).encode())
            return
        body = {"error": {**error, "param": refused.param, "code": refused.code}}
        wire.body(json.dumps(body).encode(), refused.status)


def provider(name: str, model: ToyModel | Script | None = None, *, thought: str = THOUGHT) -> ProviderServer:
    """Return a server with one of ``PERSONALITIES``, to be entered.

    Args:
        name: Which one.
        model: What answers; default a ``ToyModel``.
        thought: What it thinks, where it thinks.
    """
    return ProviderServer(PERSONALITIES[name], model, thought)


class _Part(NamedTuple):
    """A token, and what it is part of."""

    token: Token
    kind: Literal["thought", "mark", "answer"]


class _Spoken(NamedTuple):
    """All that a model generated for one sample, marks included, and why it ended."""

    parts: list[_Part]
    finish: str

    def text(self, *kinds: str) -> str:
        return "".join(part.token.text for part in self.parts if part.kind in kinds)

    def count(self, *kinds: str) -> int:
        return sum(part.kind in kinds for part in self.parts)


_MARKS: Mapping[Where, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "tags": (("<think>",), ("</think>", "\n\n")),
    "closing tag": ((), ("</think>", "\n\n")),
    "reasoning": (("<think>",), ("</think>", "\n\n")),
    "reasoning_content": (("<think>",), ("</think>", "\n\n")),
    "harmony": (
        ("<|channel|>", "analysis", "<|message|>"),
        ("<|end|>", "<|start|>", "assistant", "<|channel|>", "final", "<|message|>"),
    ),
    "hidden": ((), ()),
}


def _sure(text: str) -> Token:
    return Token(text, -0.001, {text: -0.001, **{f" other{i}": -8.0 - i for i in range(25)}})


def _turns(given: str | list[Json]) -> list[Json]:
    """Return the Responses API's input as messages; a text is one user turn."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def _spoken(server: ProviderServer, body: Json, index: int) -> _Spoken:
    person = server.personality
    turns = {"messages": _turns(body["input"])} if "input" in body else body
    limit = next(
        (body[name] for name in ("max_tokens", "max_completion_tokens", "max_output_tokens") if name in body),
        1000,
    )
    said = server.model.say(
        prompt_of(turns), body.get("temperature", 1.0), (body.get("seed") or 0) * 1000 + index, 1000
        if isinstance(server.model, Script) else 12
    )  # fmt: skip
    parts = [_Part(token, "answer") for token in said.tokens]
    if person.thinks(body):
        before, after = _MARKS[person.where]
        thought = [_Part(_sure(word), "thought") for word in split(server.thought)]
        parts = [
            *(_Part(_sure(mark), "mark") for mark in before),
            *thought,
            *(_Part(_sure(mark), "mark") for mark in after),
            *parts,
        ]
    finish = "length" if len(parts) > limit else "stop"
    parts = parts[:limit]
    # A stop text ends generation wherever it comes, also in thoughts.
    for stop in body.get("stop") or ():
        text = ""
        for place, part in enumerate(parts):
            text += part.token.text
            if stop in text:
                parts, finish = parts[:place], "stop"
                break
    return _Spoken(parts, finish)


def _listed(body: Json, parts: list[_Part]) -> Json | None:
    if not body.get("logprobs") and "message.output_text.logprobs" not in (body.get("include") or ()):
        return None
    content = [
        {
            "token": part.token.text,
            "logprob": part.token.logprob,
            "bytes": list(part.token.text.encode()),
            "top_logprobs": [
                {"token": word, "logprob": value}
                for word, value in top_of(part.token, body.get("top_logprobs", 0), Quirks()).items()
            ],
        }
        for part in parts
    ]
    return {"content": content}


def _message(person: Personality, spoken: _Spoken) -> Json:
    thought, answer = spoken.text("thought"), spoken.text("answer")
    if person.where in ("tags", "closing tag", "harmony"):
        return {"role": "assistant", "content": spoken.text("thought", "mark", "answer")}
    if person.where == "hidden" or not thought:
        return {"role": "assistant", "content": answer}
    return {"role": "assistant", person.where: thought, "content": answer or None}


def _covered_parts(person: Personality, spoken: _Spoken) -> list[_Part]:
    if person.covered == "all":
        return spoken.parts
    return [part for part in spoken.parts if part.kind == "answer"]


def _usage(person: Personality, body: Json, spoken: list[_Spoken]) -> Json:
    total = sum(len(one.parts) for one in spoken)
    turns = {"messages": _turns(body["input"])} if "input" in body else body
    read = len(split(prompt_of(turns)))
    thought = sum(one.count("thought", "mark") for one in spoken)
    names = ("input_tokens", "output_tokens") if "input" in body else ("prompt_tokens", "completion_tokens")
    usage: Json = {names[0]: read, names[1]: total, "total_tokens": read + total}
    if person.counts_thoughts:
        usage[f"{names[1]}_details"] = {"reasoning_tokens": thought}
    return usage


def _chat_answer(server: ProviderServer, body: Json, *, chat: bool) -> Json:
    person = server.personality
    count = 1 if person.ignores_n else body.get("n", 1)
    spoken = [_spoken(server, body, index) for index in range(count)]
    choices = []
    for index, one in enumerate(spoken):
        message = _message(person, one)
        choice: Json = {"index": index, "finish_reason": one.finish}
        choice |= {"message": message} if chat else {"text": message["content"]}
        choice["logprobs"] = None if person.covered == "none" else _listed(body, _covered_parts(person, one))
        if person.covered == "apart" and body.get("logprobs"):
            thoughts = [part for part in one.parts if part.kind == "thought"]
            choice["reasoning_logprobs"] = _listed(body, thoughts)
        choices.append(choice)
    return {"object": "chat.completion", "choices": choices, "usage": _usage(person, body, spoken)}


def _chat_pieces(server: ProviderServer, body: Json, *, chat: bool) -> Iterator[Json]:
    person = server.personality
    spoken = _spoken(server, body, 0)

    def piece(delta: Json, parts: list[_Part], finish: str | None = None) -> Json:
        listed = None if person.covered == "none" or not parts else _listed(body, parts)
        choice: Json = {"index": 0, "finish_reason": finish, "logprobs": listed}
        choice |= {"delta": delta} if chat else {"text": delta.get("content", "")}
        return {"object": "chat.completion.chunk", "choices": [choice]}

    yield piece({"role": "assistant", "content": ""}, [])
    in_text = person.where in ("tags", "closing tag", "harmony")
    for part in spoken.parts:
        word = part.token.text
        if part.kind == "answer" or in_text:
            yield piece({"content": word}, [part])
        elif part.kind == "thought" and person.where != "hidden":
            # The chunk of a mark is left out, and its log-probability with it.
            yield piece({person.where: word}, [part] if person.covered == "all" else [])
    yield piece({}, [], spoken.finish)
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {"object": "chat.completion.chunk", "choices": [], "usage": _usage(person, body, [spoken])}


def _stream(wire: Wire, pieces: Iterator[Json], *, done: bool = True) -> None:
    wire.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    for piece in pieces:
        named = f"event: {piece['type']}\n".encode() if "type" in piece else b""
        wire.raw(named + b"data: " + json.dumps(piece).encode() + b"\n\n")
    if done:
        wire.raw(b"data: [DONE]\n\n")


def _respond(server: ProviderServer, wire: Wire) -> None:
    """Answer as the Responses API does."""
    person, body = server.personality, wire.asked
    spoken = _spoken(server, body, 0)
    listed = _listed(body, _covered_parts(person, spoken))
    content = {
        "type": "output_text",
        "text": spoken.text("answer"),
        "annotations": [],
        "logprobs": listed["content"] if listed else [],
    }
    cut = spoken.finish == "length"
    output: list[Json] = []
    if spoken.count("thought"):
        output.append({"type": "reasoning", "id": "rs_1", "summary": []})
    if spoken.count("answer"):
        output.append({"type": "message", "id": "msg_1", "role": "assistant", "content": [content]})
    whole: Json = {
        "object": "response",
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "output": output,
        "usage": _usage(person, body, [spoken]),
    }
    if not body.get("stream"):
        wire.body(json.dumps(whole).encode())
        return

    def events() -> Iterator[Json]:
        yield {"type": "response.created", "response": {"status": "in_progress", "output": []}}
        for part in spoken.parts:
            if part.kind == "answer":
                one = _listed(body, [part])
                yield {
                    "type": "response.output_text.delta",
                    "item_id": "msg_1",
                    "delta": part.token.text,
                    "logprobs": one["content"] if one else [],
                }
        yield {"type": "response.output_text.done", "item_id": "msg_1", "text": spoken.text("answer")}
        yield {"type": "response.incomplete" if cut else "response.completed", "response": whole}

    _stream(wire, events(), done=False)


def _unknown(body: Json, known: frozenset[str] = OPENAI_FIELDS) -> Refused | None:
    """OpenAI's words on a field that it does not know."""
    for name in body:
        if name not in known:
            return Refused(400, f"Unrecognized request argument supplied: {name}")
    return None


def _limits(body: Json) -> Refused | None:
    if body.get("top_logprobs", 0) > 20:
        return Refused(
            400, "Invalid value for 'top_logprobs': must be less than or equal to 20.", "top_logprobs"
        )
    if body.get("n", 1) > 128:
        words = "Invalid 'n': integer above maximum value. Expected a value <= 128, but got"
        return Refused(400, f"{words} {body['n']} instead.", "n", "integer_above_max_value")
    return None


def _new_limit(body: Json) -> Refused | None:
    if "max_tokens" in body and "max_completion_tokens" in body:
        words = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        return Refused(400, words)
    if "max_tokens" in body:
        words = "'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        return Refused(400, f"Unsupported parameter: {words}", "max_tokens", "unsupported_parameter")
    return None


def _unsupported(body: Json, *names: str) -> Refused | None:
    for name in names:
        if name in body:
            words = f"Unsupported parameter: '{name}' is not supported with this model."
            return Refused(400, words, name, "unsupported_parameter")
    return None


def _effort(body: Json, *taken: str) -> Refused | None:
    effort = body.get("reasoning_effort", taken[0])
    if effort not in taken:
        values = ", ".join(f"'{value}'" for value in taken[:-1]) + f", and '{taken[-1]}'"
        words = (
            f"'reasoning_effort' does not support '{effort}' with this model. Supported values are: {values}."
        )
        return Refused(400, f"Unsupported value: {words}", "reasoning_effort", "unsupported_value")
    return None


def _only_one(body: Json) -> Refused | None:
    if body.get("temperature", 1) != 1:
        words = (
            f"Unsupported value: 'temperature' does not support {body['temperature']} with this model. "
            "Only the default (1) value is supported."
        )
        return Refused(400, words, "temperature", "unsupported_value")
    return None


def _gpt_4o(body: Json) -> Refused | None:
    return _unknown(body, OPENAI_FIELDS - {"reasoning_effort"}) or _limits(body)


def _gpt_5(body: Json) -> Refused | None:
    if body.get("logprobs"):
        return Refused(403, "You are not allowed to request logprobs from this model.")
    return (
        _unknown(body)
        or _new_limit(body)
        or _only_one(body)
        or _unsupported(body, "top_p", "stop")
        or _effort(body, "minimal", "low", "medium", "high")
    )


def _gpt_5_1(body: Json) -> Refused | None:
    found = (
        _unknown(body) or _new_limit(body) or _effort(body, "none", "low", "medium", "high") or _limits(body)
    )
    if found is None and body.get("reasoning_effort", "none") != "none":
        found = _only_one(body) or _unsupported(body, "top_p", "logprobs", "top_logprobs")
    return found


def _o_series(body: Json) -> Refused | None:
    if body.get("logprobs"):
        return Refused(403, "You are not allowed to request logprobs from this model.")
    return (
        _unknown(body)
        or _new_limit(body)
        or _unsupported(body, "temperature", "top_p", "stop")
        or _effort(body, "low", "medium", "high")
    )


def _azure(body: Json) -> Refused | None:
    return _unknown(body, OPENAI_FIELDS - {"reasoning_effort"}) or _new_limit(body) or _limits(body)


def _groq(body: Json) -> Refused | None:
    for name in ("logprobs", "top_logprobs", "logit_bias"):
        if body.get(name):
            return Refused(400, f"`{name}` is not supported with this model")
    if body.get("n", 1) > 1:
        return Refused(400, "'n' : number must be at most 1")
    for name in body:
        if name not in OPENAI_FIELDS:
            return Refused(400, f"property '{name}' is unsupported")
    return None


def _deepseek(body: Json) -> Refused | None:
    if body.get("logprobs"):
        return Refused(400, "deepseek-reasoner does not support logprobs or top_logprobs")
    return None


def _routed(body: Json) -> Refused | None:
    return _only_one(body) or _unsupported(body, "logprobs", "top_logprobs")


def _cerebras(body: Json) -> Refused | None:
    known = OPENAI_FIELDS | {"reasoning_format"}
    for name in body:
        if name not in known:
            return Refused(
                400, f"body.{name}: property 'body.{name}' is unsupported", name, "wrong_api_format"
            )
    if body.get("n", 1) > 1:
        return Refused(400, "body.n: Input should be less than or equal to 1", "n", "wrong_api_format")
    return None


def _responses(body: Json) -> Refused | None:
    known = frozenset(
        "model input max_output_tokens temperature top_p top_logprobs include reasoning store stream".split()
    )
    for name in body:
        if name not in known:
            return Refused(400, f"Unknown parameter: '{name}'.", name, "unknown_parameter")
    if body.get("max_output_tokens", 16) < 16:
        words = "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got"
        return Refused(400, f"{words} {body['max_output_tokens']} instead.", "max_output_tokens")
    return None


def _responses_4o(body: Json) -> Refused | None:
    return _responses(body) or _unsupported(
        {key: body[key] for key in body if key == "reasoning"}, "reasoning"
    )


def _responses_5(body: Json) -> Refused | None:
    if "message.output_text.logprobs" in body.get("include", ()):
        return Refused(400, "logprobs are not supported with reasoning models.", "include")
    return _responses(body) or _unsupported(body, "temperature", "top_p", "top_logprobs")


def _template_on(body: Json) -> bool:
    return bool((body.get("chat_template_kwargs") or {}).get("enable_thinking", True))


def _always(body: Json) -> bool:
    return True


def _by_effort(body: Json) -> bool:
    return bool(body.get("reasoning_effort", "none") != "none")


def _unless_none(body: Json) -> bool:
    return bool(body.get("reasoning_effort") != "none")


_OPENAI_DOCS = "https://platform.openai.com/docs/api-reference/chat"
_VLLM_DOCS = "https://docs.vllm.ai/en/stable/features/reasoning_outputs/"

PERSONALITIES: Mapping[str, Personality] = {
    person.name: person
    for person in (
        Personality("gpt-4o", "gpt-4o", _OPENAI_DOCS, _gpt_4o),
        Personality(
            "gpt-5", "gpt-5", "https://github.com/getcmd-dev/cmd/issues/36, https://github.com/jentic/standard-agent"
            "/issues/31, https://community.openai.com/t/gpt-5-nano-accepted-parameters/1355086",
            _gpt_5, _always, covered="none", counts_thoughts=True,
        ),
        Personality(
            "gpt-5.1", "gpt-5.1", "https://github.com/vercel/ai/issues/10932, https://learn.microsoft.com/javascript/api/@azure/ai-projects"
            "/reasoningeffort (its default is none), https://github.com/livekit/agents/pull"
            "/3966", _gpt_5_1, _by_effort, counts_thoughts=True,
        ),
        Personality(
            "o-series", "o3-mini", "https://platform.openai.com/docs/guides/reasoning#limitations",
            _o_series, _always, covered="none", counts_thoughts=True,
        ),
        Personality(
            "azure-v1", "my-deployment", "https://learn.microsoft.com/azure/ai-foundry/openai/api-version-lifecycle"
            ", https://github.com/langchain-ai/langgraph/issues/5943", _azure, root="/openai/v1",
        ),
        Personality(
            "vllm-qwen3", "Qwen/Qwen3-8B", _VLLM_DOCS + ", https://github.com/sgl-project/sglang/issues/25055",
            thinks=_template_on, where="reasoning", covered="all",
        ),
        Personality(
            "vllm-qwen3-raw", "Qwen/Qwen3-8B", _VLLM_DOCS, thinks=_template_on, where="tags", covered="all",
        ),
        Personality(
            "vllm-r1-raw", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "https://huggingface.co/deepseek-ai/DeepSeek-R1"
            " (its template opens <think>)", thinks=_always, where="closing tag", covered="all",
        ),
        Personality(
            "gpt-oss-raw", "openai/gpt-oss-20b", "https://cookbook.openai.com/articles/openai-harmony",
            thinks=_always, where="harmony", covered="all",
        ),
        Personality(
            "groq", "llama-3.3-70b-versatile", "https://console.groq.com/docs/openai, https://github.com/groq/"
            "groq-python/issues/25", _groq, covered="none",
        ),
        Personality(
            "deepseek-reasoner", "deepseek-reasoner", "https://api-docs.deepseek.com/guides/reasoning_model",
            _deepseek, _always, "reasoning_content", "none", counts_thoughts=True, ignores_n=True,
        ),
        Personality(
            "openrouter", "openai/gpt-5-chat", "https://openrouter.ai/docs/api-reference/errors, https://github.com/"
            "vectorize-io/hindsight/issues/58", _routed, covered="none", errors_inside=True,
        ),
        Personality(
            "cerebras", "gpt-oss-120b", "https://inference-docs.cerebras.ai/capabilities/reasoning",
            _cerebras, _always, "reasoning", "apart", counts_thoughts=True,
        ),
        Personality(
            "ollama", "qwen3:8b", "https://github.com/ollama/ollama/pull/14821, https://docs.ollama.com/api/"
            "openai-compatibility", thinks=_unless_none, where="reasoning", covered="answer", ignores_n=True,
        ),
        Personality(
            "responses", "gpt-4o", "https://platform.openai.com/docs/api-reference/responses, https://community."
            "openai.com/t/are-logprobs-not-yet-supported-in-the-reponses-api/1359018", _responses_4o,
        ),
        Personality(
            "responses-gpt-5", "gpt-5", "https://github.com/UKGovernmentBEIS/inspect_ai/pull/2739, https://github."
            "com/earendil-works/pi/issues/6265", _responses_5, _always, covered="none", counts_thoughts=True,
        ),
    )
}  # fmt: skip
"""By name; none was tried on the service itself."""
