"""What a refusal teaches: from the place that it points at, and never from words of a user."""

from __future__ import annotations

import html
import json
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from urllib.parse import quote

import pytest
from langchain_openai import ChatOpenAI
from llama_index.llms.openai_like import OpenAILike

from langchain_surerag import reader_from_model
from llama_index_surerag import reader_from_llm
from surerag import OpenAIReader, SamplingParams
from surerag.errors import LogprobsRefusedError, RefusedError, SureragError
from surerag.readers import parameters
from surerag.readers.parameters import Change, Learned, LeftOutWarning, Refusal
from surerag.readers.protocol import BaseReader
from tests.servers.fake_openai import FakeOpenAI

Json = dict[str, Any]
TEXT = SamplingParams(max_tokens=6, trace="none")
TRACED = SamplingParams(max_tokens=6)
DRAWN = SamplingParams(n=2, temperature=1.0, max_tokens=6, trace="none", stop=("\n",))


def _langchain(server: FakeOpenAI) -> BaseReader:
    return reader_from_model(ChatOpenAI(model="toy", base_url=server.base_url, api_key="k", max_retries=0))


def _llama_index(server: FakeOpenAI) -> BaseReader:
    settings: Any = {"is_chat_model": True, "max_retries": 0, "context_window": 8000}
    return reader_from_llm(OpenAILike(model="toy", api_base=server.base_url, api_key="k", **settings))


CLIENTS: dict[str, Callable[[FakeOpenAI], BaseReader]] = {
    "hosted": lambda server: OpenAIReader("toy", base_url=server.base_url, api_key="k", max_retries=0),
    "langchain": _langchain,
    "llama_index": _llama_index,
}
EACH_CLIENT = pytest.mark.parametrize("client", CLIENTS)


def error(message: object, **fields: Any) -> Json:
    return {"error": {"message": message, "type": "invalid_request_error", **fields}}


# What real services refuse.


def reasoning_model(body: Json) -> Json | None:
    """OpenAI's o-series and gpt-5."""
    if "logprobs" in body:
        return error("You are not allowed to request logprobs from this model.", param="logprobs")
    if "max_tokens" in body:
        words = "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
        return error(
            f"{words}'max_completion_tokens' instead.", param="max_tokens", code="unsupported_parameter"
        )
    if body.get("temperature", 1) != 1:
        words = (
            "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value "
        )
        return error(f"{words}is supported.", param="temperature", code="unsupported_value")
    return None


def azure(body: Json) -> Json | None:
    """Azure OpenAI, which takes only one of the two."""
    if "max_tokens" in body:
        words = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        return error(words, param=None, code="invalid_parameter_combination")
    return None


def claude(body: Json) -> Json | None:
    """Sonnet 4.5 and later."""
    if {"temperature", "top_p"} <= body.keys():
        words = "`temperature` and `top_p` cannot both be specified for this model. Please use only one."
        return {"type": "error", **error(words)}
    return None


def claude_opus(body: Json) -> Json | None:
    """Opus 4.1 and later."""
    if "temperature" in body:
        return {"type": "error", **error("`temperature` is deprecated for this model.")}
    return None


def groq(body: Json) -> Json | None:
    """Groq, which says no where others leave out."""
    if "logprobs" in body:
        return error("'logprobs' : property 'logprobs' is unsupported")
    return error("'n' : number must be at most 1") if body.get("n", 1) > 1 else None


def tgi(body: Json) -> Json | None:
    """Text Generation Inference, by its own name of the parameter."""
    if (body.get("top_logprobs") or 0) > 5:
        words = f"Input validation error: `top_n_tokens` must be >= 0 and <= 5. Given: {body['top_logprobs']}"
        return {"error": words, "error_type": "validation"}
    return None


def vllm(body: Json) -> Json | None:
    """vLLM with --max-logprobs 5."""
    if (top := body.get("top_logprobs") or 0) > 5:
        words = f"Requested sample logprobs of {top}, which is greater than max allowed: 5"
        return error(words, type="BadRequestError", param="logprobs", code=400)
    return None


def fastapi(body: Json) -> Json | None:
    """A gateway that checks with pydantic."""
    detail = {"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}
    return {"detail": [{**detail, "input": body["seed"]}]} if "seed" in body else None


def old_vllm(body: Json) -> Json | None:
    """The same, within a text."""
    detail = {"type": "extra_forbidden", "loc": ("body", "seed"), "msg": "Extra inputs are not permitted"}
    return {"object": "error", "message": str([detail]), "param": None} if "seed" in body else None


def gemini(body: Json) -> Json | None:
    """Google's API behind OpenAI's."""
    violation = {"field": "seed", "description": "Cannot find field."}
    return (
        error("Invalid JSON payload.", details=[{"fieldViolations": [violation]}]) if "seed" in body else None
    )


REAL: dict[str, tuple[Callable[[Json], Json | None], SamplingParams, set[Change]]] = {
    "reasoning model": (
        reasoning_model, TEXT, {Change("max_tokens", "max_completion_tokens"), Change("temperature", None)}
    ),
    "azure": (azure, TEXT, {Change("max_tokens", "max_completion_tokens")}),
    "claude": (claude, DRAWN, {Change("top_p", None)}),
    "claude opus": (claude_opus, TEXT, {Change("temperature", None)}),
    "groq": (groq, DRAWN, {Change("n", 1)}),
    "tgi": (tgi, TRACED, {Change("top_logprobs", 5)}),
    "vllm": (vllm, TRACED, {Change("top_logprobs", 5)}),
    "fastapi": (fastapi, DRAWN, {Change("seed", None)}),
    "old vllm": (old_vllm, DRAWN, {Change("seed", None)}),
    "gemini": (gemini, DRAWN, {Change("seed", None)}),
}  # fmt: skip


@pytest.mark.parametrize("service", REAL)
def test_what_a_service_refuses_is_learned_and_named_once(service: str) -> None:
    check, sampling, expected = REAL[service]
    with FakeOpenAI(["Velm lies"], check=check) as server:
        reader = OpenAIReader("toy", base_url=server.base_url, api_key="k", max_retries=0)
        with pytest.warns(LeftOutWarning) as warned:
            assert reader.generate(["The temperature and its seed?"], sampling)[0][0].text == "Velm lies"
        learned, requests = set(reader.learned.changes), len(server.requests)
        reader.generate(["Where?"], sampling)
    assert learned == expected
    assert len(server.requests) == requests + (2 if service == "groq" else 1)
    assert len(warned) == len(expected)
    assert all(any(name in str(one.message) for one in warned) for name, _ in expected)


@pytest.mark.parametrize(
    ("client", "service"),
    # LlamaIndex's OpenAI sends a temperature of its own, whatever is asked for.
    [
        (client, service)
        for client in CLIENTS
        for service in ("reasoning model", "claude opus", "fastapi", "tgi")
        if client != "llama_index" or service in ("fastapi", "tgi")
    ],
)
def test_every_client_learns_alike(client: str, service: str) -> None:
    check, sampling, expected = REAL[service]
    with FakeOpenAI(["Velm lies"], check=check) as server:
        reader: Any = CLIENTS[client](server)
        with pytest.warns(LeftOutWarning):
            reader.generate(["The temperature?"], sampling)
        reader.begin(["The temperature?"], 1, sampling)
        assert expected >= set(reader.learned.changes) != set()
        assert check(server.requests[-1]) is None


@EACH_CLIENT
@pytest.mark.parametrize("check", [groq, reasoning_model])
def test_log_probabilities_that_are_needed_are_an_error_and_no_lesson(
    client: str, check: Callable[[Json], Json | None]
) -> None:
    with FakeOpenAI(["Velm lies"], check=check) as server:
        reader: Any = CLIENTS[client](server)
        with pytest.raises(LogprobsRefusedError):
            reader.generate(["Where?"], TRACED)
    assert not reader.learned.changes


# What users write.

SAID = [
    "My lease: max_tokens is at most 3. OK?",
    "Are logprobs not supported, and is the seed unsupported? 'seed'",
    "The parameter 'temperature' is unknown and deprecated",
    "Use 'max_completion_tokens' instead",
    "{'loc': ('body', 'temperature'), 'msg': 'Extra inputs are not permitted'}",
    '"temperature" and "max_tokens" cannot both be used, \n "stop" is\tinvalid',
]
ECHOES: dict[str, Callable[[str], str]] = {
    "whole": str,
    "repr": repr,
    "json": json.dumps,
    "json twice": lambda text: json.dumps(json.dumps(text)),
    "html": html.escape,
    "address": quote,
    "cut": lambda text: f"{text[: len(text) * 4 // 5]}…",
    "upper case": str.upper,
    "lines": lambda text: "\n> ".join(text.split()),
    "wrapped": lambda text: f"[{{'role': 'user', 'content': {text!r}, 'type': 'text'}}]",
}


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("said", SAID)
def test_a_quotation_teaches_nothing(said: str, echo: str) -> None:
    body = {
        "max_tokens": 9,
        "temperature": 0.5,
        "seed": 1,
        "stop": ["x"],
        "logprobs": True,
        "top_logprobs": 20,
    }
    message = f"[{{'msg': 'content is refused', 'input': {ECHOES[echo](said)}}}]"
    assert Refusal.of(message, (), [f"Answer the question.\nQuestion: {said}\nAnswer:"]).changes(body) == []
    assert Refusal.of(f"refused: {ECHOES[echo](said)}", (), ["Be brief.", said]).changes(body) == []


@EACH_CLIENT
@pytest.mark.parametrize("recovers", [False, True])
@pytest.mark.parametrize("said", SAID)
def test_what_a_user_writes_changes_no_other_answer(client: str, said: str, recovers: bool) -> None:
    """A gateway refuses a text, and quotes it; perhaps it takes the same text the next time."""
    seen: list[str] = []

    def gateway(body: Json) -> Json | None:
        content = body["messages"][-1]["content"]
        seen.append(content)
        if content != said or (recovers and seen.count(content) > 1):
            return None
        return error(f"[{{'msg': 'content is invalid', 'input': {content!r}}}]")

    with FakeOpenAI(lambda _: "one two three four five six", check=gateway) as server:
        reader: Any = CLIENTS[client](server)
        before = {k: v for k, v in _asked(server, reader, "Who?").items() if k != "messages"}
        for sampling in (TRACED, DRAWN):
            with pytest.raises(SureragError) if sampling is TRACED or not recovers else nullcontext():
                reader.generate([said], sampling)
        after = {k: v for k, v in _asked(server, reader, "Who?").items() if k != "messages"}
    assert before == after
    assert not reader.learned.changes


def _asked(server: FakeOpenAI, reader: BaseReader, question: str) -> Json:
    reader.generate([question], TRACED)
    return {name: value for name, value in server.requests[-1].items() if name != "headers"}


@EACH_CLIENT
def test_a_change_that_does_not_help_is_not_kept(client: str) -> None:
    with FakeOpenAI(["Velm"], check=lambda body: error("'temperature' is not supported")) as server:
        reader: Any = CLIENTS[client](server)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RefusedError):
                reader.generate(["Where?"], TEXT)
        assert not reader.learned.changes
        server.options["check"] = lambda body: None
        reader.generate(["Where?"], TEXT)
    assert server.requests[-1]["temperature"] == 0


def test_a_complaint_about_the_content_is_none_about_a_setting() -> None:
    words = "messages: the 'temperature' is not supported"
    for parameters_ in (("messages[0].content",), ("body", "prompt"), ("input",)):
        assert Refusal.of(words, parameters_, []).changes({"temperature": 0.5}) == []


def test_what_was_learned_is_forgotten_and_stays_with_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeOpenAI(["Velm"], refuses=("seed",)) as server:
        model = ChatOpenAI(model="toy", base_url=server.base_url, api_key="k")  # type: ignore[arg-type]
        reader, other = reader_from_model(model), reader_from_model(model)
        with pytest.warns(LeftOutWarning, match="seed"):
            reader.generate(["?"], DRAWN)
        assert reader.learned.drop == {"seed"} and not other.learned.changes
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + parameters.REMEMBERED + 1)
        assert not reader.learned.changes
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            reader.generate(["?"], DRAWN)
    assert ["seed" in body for body in server.requests] == [True, False, True, False]


@pytest.mark.parametrize(
    ("message", "body", "needed", "expected"),
    [
        ("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", {"max_tokens": 9}, (),
         {"max_completion_tokens": 9}),
        ("Invalid value for 'top_logprobs': must be less than or equal to 5.", {"top_logprobs": 20},
         ("top_logprobs",), {"top_logprobs": 5}),
        ("max_tokens is too large: 9000. This model supports at most 4096 completion tokens",
         {"max_tokens": 9000}, (), {"max_tokens": 4096}),
        ("Only n = 1 is supported", {"n": 4, "seed": 1}, (), {"n": 1, "seed": 1}),
        ("temperature and top_p cannot both be specified", {"temperature": 0.5, "top_p": 1.0},
         ("temperature",), {"temperature": 0.5}),
        ("got an unexpected keyword argument 'max_output_tokens'", {"max_tokens": 9}, (), {}),
        ("your prompt speaks of temperature", {"temperature": 0}, (), {"temperature": 0}),
        ("'seed' is not supported", {"seed": 1}, ("seed",), {"seed": 1}),
    ],
)  # fmt: skip
def test_messages_teach_what_is_taken(
    message: str, body: Json, needed: tuple[str, ...], expected: Json
) -> None:
    learned = Learned()
    trial = learned.suggested(Refusal.of(message, (), []), body, (), needed)
    assert learned.apply(body, trial) == expected
    assert learned.apply(body) == body
