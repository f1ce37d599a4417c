"""Servers that fail: each way a clear error, or another attempt."""

import json
import pickle
import traceback
from types import SimpleNamespace
from typing import Any

import pytest
from tests.servers.fake_openai import FakeOpenAI

from surerag.errors import (
    ConfigurationError,
    ContextLengthError,
    LogprobsError,
    MissingExtraError,
    ServiceError,
    SureragError,
    TransientServiceError,
)
from surerag.messages import SamplingParams
from surerag.readers.hosted import OpenAIReader
from surerag.readers.hosted.parse import Api
from surerag.readers.hosted.retry import OverloadedError, RetryPolicy, retry_after

KEY = "sk-very-secret-key"
DRAWN = SamplingParams(temperature=1.0)


def reader_of(server: FakeOpenAI, api: Api = "chat", **settings: Any) -> OpenAIReader:
    settings = {"retries": 2, "max_wait": 0.01, "top_logprobs": 3, "api_key": KEY, **settings}
    return OpenAIReader("toy", base_url=server.base_url, api=api, **settings)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_failures_that_may_pass_are_asked_again(server: FakeOpenAI, status: int) -> None:
    server.fail(status, times=2)
    assert reader_of(server).generate(["q"], SamplingParams())[0][0].trace is not None
    assert len(server.requests) == 3


async def test_and_so_they_are_async(server: FakeOpenAI) -> None:
    server.fail(503, times=2)
    reader = reader_of(server)
    await reader.agenerate(["q"], SamplingParams())
    assert len(server.requests) == 3
    await reader.aclose()


def test_streams_are_opened_again(server: FakeOpenAI) -> None:
    server.fail(429)
    reader = reader_of(server)
    (begun,) = reader.begin(["q"], 1, SamplingParams())
    reader.cancel([begun])
    assert len(server.requests) == 2


def test_after_all_retries_the_error_tells_the_last_failure(server: FakeOpenAI) -> None:
    server.fail(500, times=3)
    with pytest.raises(TransientServiceError, match=r"failed 3 times; at last: .*500.*not now") as caught:
        reader_of(server).generate(["q"], SamplingParams())
    assert caught.value.retryable
    assert len(server.requests) == 3


def test_a_server_that_wants_a_longer_pause_is_not_asked_again(server: FakeOpenAI) -> None:
    server.fail(429, headers={"Retry-After": "3600"})
    with pytest.raises(TransientServiceError, match="asks to wait 3600 s"):
        reader_of(server).generate(["q"], SamplingParams())
    assert len(server.requests) == 1


def test_the_pause_is_the_one_that_the_server_asks_for() -> None:
    policy = RetryPolicy(retries=3, max_wait=60.0)
    failed = SimpleNamespace(exception=lambda: OverloadedError("busy", retry_after=7.5))
    assert policy.wait(SimpleNamespace(outcome=failed, attempt_number=1)) == 7.5  # type: ignore[arg-type]
    unsaid = SimpleNamespace(exception=lambda: OverloadedError("busy"))
    assert 0 <= policy.wait(SimpleNamespace(outcome=unsaid, attempt_number=9)) <= 60  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:30 GMT"}, 30.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, 0.0),
        ({}, None),
    ],
)
def test_retry_after_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, now=60.0) == seconds


@pytest.mark.parametrize(
    ("status", "hint"), [(401, "OPENAI_API_KEY"), (404, "model's name"), (400, "refused")]
)
def test_refusals_are_not_asked_again(server: FakeOpenAI, status: int, hint: str) -> None:
    server.fail(status)
    with pytest.raises(ServiceError, match=hint) as caught:
        reader_of(server).generate(["q"], SamplingParams())
    assert not caught.value.retryable
    assert len(server.requests) == 1


def test_an_exhausted_quota_does_not_pass(server: FakeOpenAI) -> None:
    body = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    server.fail(429, body=json.dumps(body).encode())
    with pytest.raises(ServiceError, match="quota"):
        reader_of(server).generate(["q"], SamplingParams())
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{not json",
        b"null",
        b"[]",
        b"{}",
        b'{"choices": []}',
        b'{"choices": [null]}',
        b'{"choices": [{"index": 0, "message": {"content": 7}}]}',
        b"<html>Bad gateway</html>",
    ],
)
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_answers_that_are_none(server: FakeOpenAI, api: Api, body: bytes) -> None:
    server.fail(200, body=body)
    with pytest.raises(ServiceError, match="a JSON object with choices was expected"):
        reader_of(server, api).generate(["q"], SamplingParams())


@pytest.mark.parametrize("body", [b"", b"data: {not json\n\n", b"data: null\n\n", b"data: [DONE]\n\n"])
def test_streams_that_are_none(server: FakeOpenAI, body: bytes) -> None:
    server.fail(200, body=body, headers={"Content-Type": "text/event-stream"}, times=3)
    with pytest.raises(ServiceError):
        reader_of(server).begin(["q"], 2, SamplingParams())


QUIRKS = ["no_logprobs", "null_logprobs", "null_token_logprob", "positive_logprobs"]


@pytest.mark.parametrize("quirk", QUIRKS)
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_logprobs_that_are_missing_null_or_none(server: FakeOpenAI, api: Api, quirk: str) -> None:
    server.become(**{quirk: True})
    reader = reader_of(server, api)
    with pytest.raises(LogprobsError, match="probe"):
        reader.generate(["q"], SamplingParams())
    with pytest.raises(LogprobsError, match="probe"):
        reader.begin(["q"], 2, SamplingParams())
    with pytest.raises(LogprobsError, match="probe"):
        list(reader.stream("q", SamplingParams()))


@pytest.mark.parametrize(
    "logprobs",
    [
        {"content": None},
        {"content": []},
        {"content": ["Paris"]},
        {"content": [{"token": "Paris", "logprob": "-0.1", "top_logprobs": []}]},
        {"content": [{"token": "Paris", "logprob": -0.1, "top_logprobs": []}]},
        {"content": [{"token": "Paris", "logprob": -0.1, "top_logprobs": [{"token": "x", "logprob": None}]}]},
        {"content": [{"token": "Pa", "logprob": -0.1, "top_logprobs": [{"token": "Pa", "logprob": -0.1}]}]},
        {"tokens": ["Paris"], "token_logprobs": []},
        {
            "content": [
                {"token": "Paris", "logprob": -0.1, "top_logprobs": [{"logprob": 0.0}, {"logprob": -0.1}]}
            ]
        },
        "high",
    ],
)
def test_malformed_logprobs(server: FakeOpenAI, logprobs: object) -> None:
    choice = {"message": {"content": "Paris"}, "finish_reason": "stop", "logprobs": logprobs}
    server.fail(200, body=json.dumps({"choices": [choice]}).encode())
    with pytest.raises(LogprobsError):
        reader_of(server).generate(["q"], SamplingParams())


def test_a_server_that_refuses_logprobs_says_so(server: FakeOpenAI) -> None:
    server.become(refuses=("logprobs",))
    with pytest.raises(LogprobsError, match="Unsupported parameter: logprobs"):
        reader_of(server).generate(["q"], SamplingParams())
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "error",
    [
        {"code": "context_length_exceeded", "message": "too long"},
        {"message": "This model's maximum context length is 2048 tokens, however you requested 2100"},
    ],
)
def test_prompts_that_are_too_long(server: FakeOpenAI, error: dict[str, str]) -> None:
    server.fail(400, body=json.dumps({"error": error}).encode())
    with pytest.raises(ContextLengthError, match=r"does not fit.*Give it fewer"):
        reader_of(server).generate(["q"], SamplingParams())


def test_withheld_answers_are_errors(server: FakeOpenAI) -> None:
    server.become(finish_reason="content_filter")
    with pytest.raises(ServiceError, match="content filter"):
        reader_of(server).generate(["q"], SamplingParams())


def test_a_new_name_for_max_tokens_is_learnt(server: FakeOpenAI) -> None:
    server.become(refuses=("max_tokens",), refusal="Use 'max_completion_tokens' instead")
    reader = reader_of(server)
    reader.generate(["q"], SamplingParams(max_tokens=3))
    reader.generate(["q"], SamplingParams(max_tokens=3))
    assert ["max_completion_tokens" in request.body for request in server.requests] == [False, True, True]


def test_nobody_listening_is_a_failure_that_may_pass() -> None:
    with FakeOpenAI() as server:
        url = server.base_url
    reader = OpenAIReader("toy", base_url=url, retries=1, max_wait=0.01)
    with pytest.raises(TransientServiceError, match=r"nobody answers at 127.*Start the server there"):
        reader.generate(["q"], SamplingParams())


def test_a_slow_server_times_out(server: FakeOpenAI) -> None:
    server.pause()
    with pytest.raises(TransientServiceError, match="did not answer in time"):
        reader_of(server, timeout=0.05, retries=0).generate(["q"], SamplingParams())
    server.release()


def test_one_failing_prompt_fails_the_call_and_leaves_the_reader_usable(server: FakeOpenAI) -> None:
    server.fail(400)
    reader = reader_of(server)
    with pytest.raises(ServiceError):
        reader.generate(["a", "b", "c"], SamplingParams())
    assert len(reader.generate(["a", "b", "c"], SamplingParams())) == 3


def test_the_key_is_sent_and_shows_nowhere_else(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-the-environment")
    reader = reader_of(server)
    reader.generate(["q"], SamplingParams())
    assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"
    server.fail(401, body=json.dumps({"error": {"message": f"Incorrect API key: {KEY}"}}).encode())
    with pytest.raises(ServiceError) as caught:
        reader.generate(["q"], SamplingParams())
    shown = "".join(traceback.format_exception(caught.value))
    assert "[key]" in shown
    for place in (shown, repr(reader), str(vars(reader)), str(reader.probe()), reader.name):
        assert KEY not in place
    data = pickle.dumps(reader)
    assert KEY.encode() not in data
    # Whoever reports errors with their causes would report the request, and its headers with it.
    error: BaseException | None = caught.value
    while error is not None:
        assert isinstance(error, SureragError)
        error = error.__cause__ or error.__context__
    pickle.loads(data).generate(["q"], SamplingParams())
    assert server.requests[-1].headers["Authorization"] == "Bearer sk-from-the-environment"


def test_a_pickled_reader_keeps_its_settings(server: FakeOpenAI) -> None:
    reader = reader_of(server, "completions", scoring="echo")
    copy = pickle.loads(pickle.dumps(reader))
    assert (copy.name, copy.capabilities, repr(copy)) == (reader.name, reader.capabilities, repr(reader))
    assert copy.generate(["q"], SamplingParams()) == reader.generate(["q"], SamplingParams())


def test_urls_with_credentials_show_none() -> None:
    reader = OpenAIReader("toy", base_url="http://user:password@host:81/v1?token=t")
    assert reader.name == "toy@host:81/v1"
    assert "password" not in repr(reader)
    reader = OpenAIReader("toy", base_url="http://host/for/sk-secret/v1/", api_key="sk-secret")
    assert reader.name == "toy@host/for/[key]/v1"


def test_two_paths_of_one_host_are_two_readers() -> None:
    names = {
        OpenAIReader("toy", base_url=f"http://host:81/{path}").name
        for path in ("base/v1", "otherpath/v1", "v1", "v1/")
    }
    assert names == {"toy@host:81/base/v1", "toy@host:81/otherpath/v1", "toy@host:81/v1"}


def test_openai_itself_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(ConfigurationError, match="Set OPENAI_API_KEY"):
        OpenAIReader("gpt")


def test_a_missing_sdk_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'pip install "surerag\[openai\]"'):
        OpenAIReader("toy", base_url="http://localhost:1/v1")


def test_a_pickle_holds_no_credentials(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.base_url.replace("http://", "http://user:swordfish@") + "?token=opensesame"
    reader = reader_of(server, extra_body={"repeat_penalty": 1.0})
    data = pickle.dumps(OpenAIReader("toy", base_url=url, extra_body={"repeat_penalty": 1.0}))
    assert not any(secret in data for secret in (b"swordfish", b"opensesame", b"user"))
    assert pickle.loads(data)._clients.base_url == server.base_url
    # Where the environment has the same address with its credentials, these are taken from there.
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    assert pickle.loads(data)._clients.base_url == url
    pickle.loads(pickle.dumps(reader)).generate(["q"], SamplingParams())
    assert server.requests[-1].body["repeat_penalty"] == 1.0


def test_secrets_of_an_extra_body_are_not_pickled_and_missed_at_once(server: FakeOpenAI) -> None:
    reader = reader_of(server, extra_body={"top_a": 1, "gateway": {"api_key": "swordfish"}})
    data = pickle.dumps(reader)
    assert b"swordfish" not in data
    with pytest.raises(ConfigurationError, match="held secrets under gateway"):
        pickle.loads(data).generate(["q"], SamplingParams())
    with pytest.raises(ConfigurationError, match="held secrets under gateway"):
        pickle.loads(pickle.dumps(pickle.loads(data))).generate(["q"], SamplingParams())


@pytest.mark.parametrize(
    ("settings", "secret"),
    [
        ({"api_key": "abc"}, "abc"),
        ({"api_key": "a-b4"}, "a-b4"),
        ({"extra_body": {"auth": {"password": "swordfish"}}}, "swordfish"),
    ],
)
def test_short_keys_and_other_secrets_are_masked(
    server: FakeOpenAI, settings: dict[str, Any], secret: str
) -> None:
    server.fail(401, body=json.dumps({"error": {"message": f"bad key: {secret}, try again"}}).encode())
    with pytest.raises(ServiceError, match=r"bad key: \[key\], try again"):
        reader_of(server, **settings).generate(["q"], SamplingParams())


@pytest.mark.parametrize(
    "message",
    [
        "The prompt 'which seed grows best' is too rude",
        "seed",
        "Bad request near 'seed of doubt'; the request is invalid",
    ],
)
def test_a_refusal_that_merely_quotes_a_name_teaches_nothing(server: FakeOpenAI, message: str) -> None:
    server.fail(400, body=json.dumps({"error": {"message": message}}).encode())
    reader = reader_of(server)
    with pytest.raises(ServiceError, match="refused the request"):
        reader.generate(["q"], DRAWN)
    reader.generate(["q"], DRAWN)
    assert all("seed" in request.body for request in server.requests)


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "Unsupported parameter: seed"}},
        {"error": {"message": "seed is not supported by this model"}},
        {"error": {"message": "No.", "code": "unsupported_parameter", "param": "seed"}},
        {
            "detail": [
                {"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}
            ]
        },
    ],
)
def test_a_seed_that_is_refused_is_left_out_once_the_server_takes_it(
    server: FakeOpenAI, error: dict[str, Any]
) -> None:
    reader = reader_of(server)
    # Refused without a seed as well, it was not the seed.
    server.fail(400, body=json.dumps(error).encode())
    server.fail(400)
    with pytest.raises(ServiceError):
        reader.generate(["q"], DRAWN)
    server.fail(400, body=json.dumps(error).encode())
    reader.generate(["q"], DRAWN)
    reader.generate(["q"], DRAWN)
    assert ["seed" in request.body for request in server.requests] == [True, False, True, False, False]


@pytest.mark.parametrize(
    "headers",
    [
        {"retry-after": "nan"},
        {"retry-after-ms": "nan"},
        {"retry-after": "Thu, 01 Jan 99999 00:00:00 GMT"},
        {"retry-after": "1" * 5000 + " GMT"},
    ],
)
def test_absurd_pauses_are_none(headers: dict[str, str]) -> None:
    assert retry_after(headers) is None


def test_a_negative_pause_is_no_pause() -> None:
    assert retry_after({"retry-after-ms": "-5"}) == 0.0
