"""Errors of any client become one of ours, by what they carry."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import httpx
import pytest

from surerag.errors import ContextLengthError, RefusedError, ServiceError, TransientServiceError
from surerag.readers.failures import kind_of, service_error


class Web(Exception):
    """A client's error with a status where the client puts it."""

    def __init__(self, message: str = "", **carried: Any) -> None:
        super().__init__(message)
        self.__dict__.update(carried)


class ThrottlingException(Web):
    """As Bedrock names it, with a status of 400."""


def wrapped(cause: Exception) -> Exception:
    error = Web("the framework's own words")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Web(status_code=401), RefusedError),
        (Web(code=403), RefusedError),
        (Web(response=httpx.Response(404)), RefusedError),
        (Web(response={"ResponseMetadata": {"HTTPStatusCode": 403}}), RefusedError),
        (wrapped(Web(status_code=404)), RefusedError),
        (Web("insufficient_quota", status_code=429), RefusedError),
        (TypeError("create() got an unexpected keyword argument 'colour'"), RefusedError),
        (ModuleNotFoundError("no module named 'anthropic'"), RefusedError),
        (wrapped(socket.gaierror(socket.EAI_NONAME, "Name or service not known")), RefusedError),
        (wrapped(ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]")), RefusedError),
        (httpx.UnsupportedProtocol("file"), RefusedError),
        (httpx.LocalProtocolError("Illegal header value"), RefusedError),
        (httpx.ReadError("gone"), TransientServiceError),
        (httpx.RemoteProtocolError("cut"), TransientServiceError),
        (Web(status_code=429), TransientServiceError),
        (Web(status_code=529), TransientServiceError),
        (ThrottlingException(response={"ResponseMetadata": {"HTTPStatusCode": 400}}), TransientServiceError),
        (ConnectionResetError("gone"), TransientServiceError),
        (Web("maximum context length is 8 tokens", status_code=400), ContextLengthError),
        (Web(status_code=413), ContextLengthError),
        (Web("your input was flagged", status_code=403), ServiceError),
        (TypeError("'NoneType' object is not subscriptable"), ServiceError),
        (ValueError("no JSON"), ServiceError),
        (IndexError("list index out of range"), ServiceError),
        (Web(status_code=200), ServiceError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or repr(value),
)
def test_kinds_of_failure(error: Exception, kind: type[ServiceError]) -> None:
    assert kind_of(error) is kind


TOO_LONG: dict[str, tuple[int, Any]] = {
    "llama.cpp": (400, {"error": {"type": "exceed_context_size_error", "message": "the request exceeds it"}}),
    "llama.cpp, by words": (500, "request (9000 tokens) exceeds the available context size (4096 tokens)"),
    "TGI": (422, "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 9000 `inputs` tokens and 256"),
    "Together": (422, "Input validation error: `inputs` must have less than 4096 tokens. Given: 9000"),
    "Groq": (413, "Please reduce the length of the messages or completion."),
    "OpenAI, by code": (400, {"error": {"code": "context_length_exceeded", "message": "no"}}),
    "OpenAI, a text": (
        400,
        {"error": {"code": "string_above_max_length", "param": "input", "message": "no"}},
    ),
    "SGLang": (400, "The input (9000 tokens) is longer than the model's context length (4096 tokens)."),
    "Mistral": (400, "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"),
    "Anthropic": (400, "prompt is too long: 210000 tokens > 200000 maximum"),
    "Gemini": (
        400,
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    ),
    "vLLM": (400, "'max_tokens' is too large: 256. This model's maximum context length is 4096 tokens"),
    "vLLM, decoder": (
        400,
        "The decoder prompt (length 9000) is longer than the maximum model length of 4096",
    ),
    "DeepInfra": (
        400,
        {"detail": {"error": "Requested input length 9000 exceeds maximum input length 4095"}},
    ),
    "Fireworks": (400, "The prompt is too long: 9000, model maximum context length: 4095"),
    "Cohere": (400, "too many tokens: total number of tokens in the prompt cannot exceed 4081"),
    "Bedrock": (400, "Input is too long for requested model."),
    "Azure": (413, "tokens_limit_reached: Request body too large for gpt-4o model. Max size: 8000 tokens."),
    "xAI": (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),
    "Moonshot": (400, "Invalid request: Your request exceeded model token limit: 8192"),
    "watsonx": (400, "the number of input tokens 9000 cannot exceed the total tokens limit 4096"),
    "TensorRT-LLM": (400, "Prompt length (9000) exceeds maximum input length (4096)"),
    "TabbyAPI": (400, "Prompt length 9000 is greater than max_seq_len 4096"),
    "DashScope": (400, "Range of input length should be [1, 30720]"),
    "LiteLLM's proxy": (400, "litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException"),
    "LMDeploy": (400, "The input_ids length exceeds the session length limit"),
    "Titan": (400, "Malformed input request: expected maxLength: 2048, actual: 5000, please reformat"),
    "Zhipu": (400, "Prompt 超长"),
    "LM Studio": (
        400,
        "Trying to keep the first 9000 tokens when context the overflows: context length 4096",
    ),
}


@pytest.mark.parametrize("service", TOO_LONG)
def test_a_prompt_that_is_too_long_is_known_by_type_code_or_words(service: str) -> None:
    status, said = TOO_LONG[service]
    body = said if isinstance(said, dict) else {"error": {"message": said, "type": "invalid_request_error"}}
    assert type(service_error(Web("no", status_code=status, body=body), "gpt")) is ContextLengthError


class ContextWindowExceededError(Web):
    """As LiteLLM names it."""


def test_a_clients_class_says_that_a_prompt_is_too_long() -> None:
    assert kind_of(ContextWindowExceededError("no", status_code=400)) is ContextLengthError


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, "max_tokens is too large: 100000. This model supports at most 16384 completion tokens"),
        (400, "Invalid input: max_tokens must be less than or equal to 4096"),
        (400, "Invalid 'stop': array too long. Expected an array with maximum length 4"),
        (400, "top_n_tokens must be >= 0 and <= 5. Given: 20"),
        (401, "Incorrect API key; the request exceeds its token limit"),
        (404, "The model for long context windows does not exist"),
    ],
)
def test_another_refusal_is_not_taken_for_a_prompt_that_is_too_long(status: int, said: str) -> None:
    body = {"error": {"message": said}}
    for shown in ("no", f"Error code: {status} - {body}"):  # as OpenAI's client shows a reply
        error = service_error(Web(shown, status_code=status, body=body), "gpt")
        assert type(error) is RefusedError


@pytest.mark.parametrize("place", ["tools", "tools[0].function.name", "stop", "user", "metadata.trace"])
def test_a_setting_that_is_too_long_is_no_prompt_that_is_too_long(place: str) -> None:
    said = f"Invalid '{place}': too long. Expected a maximum length of 64 in your request"
    error = {"message": said, "param": place, "code": "string_above_max_length"}
    failure = service_error(Web("no", status_code=400, body={"error": error}), "gpt")
    assert type(failure) is RefusedError


@pytest.mark.parametrize("key", ["input", "request", "body", "messages", "prompt"])
def test_what_a_reply_repeats_of_the_request_points_at_no_parameter(key: str) -> None:
    body = {"error": {"message": "no", "param": None, key: {"param": "seed", "loc": ["stop"]}}}
    failure = service_error(Web("no", status_code=400, body=body), "gpt")
    assert isinstance(failure, RefusedError)
    assert failure.parameters == ()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (503, "Too many tokens, please wait before you send this request again"),
        (504, "The request exceeded the maximum time for 4000 tokens"),
        (500, "CUDA out of memory: too many tokens in the input"),
    ],
)
def test_an_overload_that_speaks_of_tokens_passes(status: int, said: str) -> None:
    error = service_error(Web("no", status_code=status, body={"error": {"message": said}}), "gpt")
    assert type(error) is TransientServiceError


def test_too_many_requests_pass() -> None:
    said = "Rate limit reached for your request: tokens per minute limit 6000 exceeded"
    error = service_error(Web("no", status_code=429, body={"error": {"message": said}}), "gpt")
    assert type(error) is TransientServiceError


@pytest.mark.parametrize(
    ("error", "parameters"),
    [
        (Web(status_code=400, body={"message": "no", "param": "max_tokens"}), ("max_tokens",)),
        (Web(status_code=422, body={"detail": [{"loc": ["body", "seed"], "input": {"param": "n"}}]}),
         ("body.seed",)),
        (Web(response=httpx.Response(400, json={"error": {"param": "temperature"}})), ("temperature",)),
        (TypeError("create() got an unexpected keyword argument 'seed'"), ("seed",)),
        (Web(status_code=400, body={"param": "9f8e7d6c5b4a"}), ()),
        (Web(status_code=400, body={"param": "which (is it)?"}), ()),
    ],
)  # fmt: skip
def test_a_refusal_says_what_it_points_at(error: Exception, parameters: tuple[str, ...]) -> None:
    refused = service_error(error, "gpt", secrets=["9f8e7d6c5b4a"])
    assert isinstance(refused, RefusedError)
    assert refused.parameters == parameters


def test_an_error_names_the_model_and_what_was_sent() -> None:
    error = service_error(IndexError("list index out of range"), "gpt")
    assert type(error) is ServiceError
    assert "gpt failed with IndexError: list index out of range" in str(error)
    ours = TransientServiceError("busy")
    assert service_error(ours, "gpt") is ours


def test_an_error_can_be_written_and_says_nothing_untrue_of_what_is_withheld() -> None:
    broken = service_error(Web("half a sign \ud83d", status_code=400), "gpt")
    assert "half a sign \ufffd" in str(broken)
    str(broken).encode()
    withheld = service_error(Web("the response was filtered: content_filter", status_code=400), "gpt")
    assert type(withheld) is ServiceError
    assert "cannot be read" not in str(withheld)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (httpx.ReadTimeout("slow"), "gpt did not answer in time: slow"),
        (TimeoutError("slow"), "gpt did not answer in time: slow"),
        (httpx.ConnectError("refused"), "gpt could not be reached: refused"),
        (httpx.RemoteProtocolError("cut"), "gpt failed with RemoteProtocolError: cut"),
    ],
)
def test_an_error_says_in_words_what_became_of_a_request(error: Exception, says: str) -> None:
    assert service_error(error, "gpt").message == says
