"""Faults of a server, by every way of asking: the right answer, a marked one or a clear error, and soon."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from surerag.errors import (
    ContextLengthError,
    LogprobsError,
    RefusedError,
    ServiceError,
    TransientServiceError,
)
from surerag.messages import Generation, SamplingParams
from surerag.readers.hosted import OpenAIReader, client
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.faults import FAULTS

ANSWER = "one two three four"
SAMPLING = SamplingParams(max_tokens=6)
SOON = 10.0
"""Seconds within which every way of asking has ended, on a busy machine; a hang lasts longer."""

MARKED = {"usage is text": "stop", "cut": "length", "withheld": "content_filter", "empty answer": "empty"}
"""Faults that are no error, and how their answers end."""

ONLY_STREAMS = {"no end", "every chunk twice"}
"""Faults that leave a whole answer as it is."""

KINDS: dict[type[ServiceError], set[str]] = {
    TransientServiceError: {
        "hangs up", "hangs up midway", "no HTTP", "drips", "comments for ever", "500", "429",
        "429 with a wait", *ONLY_STREAMS,
    },
    RefusedError: {"401", "404", "HTML", "error is a number"},
    ContextLengthError: {"too long"},
    LogprobsError: {name for name in FAULTS if name.startswith(("logprob", "top_", "tokens", "lone"))},
}  # fmt: skip


async def begun(reader: OpenAIReader) -> Generation:
    return await (await reader.abegin(["q"], 2, SAMPLING))[0].arest()


async def streamed(reader: OpenAIReader) -> Generation | None:
    return [chunk async for chunk in reader.astream("q", SAMPLING)][-1].generation


WAYS: dict[str, Callable[[OpenAIReader], Generation | None]] = {
    "whole": lambda reader: reader.generate(["q"], SAMPLING)[0][0],
    "stream": lambda reader: list(reader.stream("q", SAMPLING))[-1].generation,
    "begin": lambda reader: reader.begin(["q"], 2, SAMPLING)[0].rest(),
    "whole, async": lambda reader: asyncio.run(reader.agenerate(["q"], SAMPLING))[0][0],
    "stream, async": lambda reader: asyncio.run(streamed(reader)),
    "begin, async": lambda reader: asyncio.run(begun(reader)),
}


SLOW = {"drips", "comments for ever", "flood"}
"""Faults that end with the deadline; asked in two ways only."""


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(lambda _: ANSWER) as running:
        yield running


@pytest.mark.parametrize(
    ("api", "fault"),
    [
        (api, fault)
        for api in ("chat", "completions")
        for fault in FAULTS
        if api == "chat" or fault not in SLOW
    ],
)
def test_an_answer_is_right_marked_or_an_error_and_comes_soon(
    server: FakeOpenAI, api: Any, fault: str
) -> None:
    settings: Any = {
        "api": api,
        "top_logprobs": 2,
        "max_retries": 0,
        "timeout": 0.1 if fault in SLOW else 9.0,
    }
    reader = OpenAIReader("toy", base_url=server.base_url, api_key="k", **settings)
    server.fault = fault
    kinds = tuple(kind for kind, faults in KINDS.items() if fault in faults) or (ServiceError,)
    for way, ask in WAYS.items():
        if fault in SLOW and way not in ("whole", "begin, async"):
            continue
        started = time.monotonic()
        if fault in MARKED or (fault in ONLY_STREAMS and "whole" in way):
            answer = ask(reader)
            assert answer is not None and answer.trace is not None
            assert answer.finish == MARKED.get(fault, "stop"), way
            text = "" if fault == "empty answer" else ANSWER
            assert (answer.text, "".join(answer.trace.tokens)) == (text, text)
        else:
            with pytest.raises(kinds) as caught:
                ask(reader)
            assert caught.value.__cause__ is None, way
        assert time.monotonic() - started < SOON, way


def test_many_requests_against_a_misbehaving_server_end_and_none_is_wrong_in_silence() -> None:
    bad = ["500", "hangs up", "cut", "empty answer", "withheld", "not JSON", "logprob is null", "HTML"]
    with FakeOpenAI(lambda prompt: f"Velm number {prompt}") as server:
        reader = OpenAIReader("toy", base_url=server.base_url, max_retries=0, max_concurrency=50, timeout=5.0)
        server._failures = [bad[place % len(bad)] if place % 10 < 3 else "" for place in range(400)]

        async def ask(number: int) -> Generation | ServiceError:
            try:
                return (await reader.agenerate([str(number)], SAMPLING))[0][0]
            except ServiceError as error:
                return error

        async def ask_all() -> list[Generation | ServiceError]:
            return await asyncio.gather(*(ask(number) for number in range(400)))

        results = asyncio.run(ask_all())
    answers = [(number, one) for number, one in enumerate(results) if isinstance(one, Generation)]
    assert all(one.text == f"Velm number {number}" for number, one in answers if one.finish == "stop")
    assert sum(one.finish == "stop" for _, one in answers) == 280
    assert {one.finish for _, one in answers} == {"stop", "length", "empty", "content_filter"}


def test_a_redirect_to_another_server_is_refused_and_one_on_the_same_is_followed(
    server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeOpenAI(lambda _: "of another") as other:
        reader = OpenAIReader("toy", base_url=server.base_url, api_key="k", extra_body={"auth_token": "t"})
        monkeypatch.setitem(
            FAULTS,
            "elsewhere",
            lambda handler, body: handler.send(307, b"", Location=f"{other.base_url}/chat/completions"),
        )
        server.fault, before = "elsewhere", len(server.requests)
        for way, ask in WAYS.items():
            with pytest.raises(RefusedError, match=f"another server, {other.base_url[:-3]}"):
                ask(reader)
            assert not other.requests, way
        assert len(server.requests) == before + len(WAYS)  # nor is it asked again
    server.fault = None
    monkeypatch.setitem(FAULTS, "here", lambda handler, body: handler.send(307, b"", Location=handler.path))
    server.fail("here")
    answer = reader.generate(["q"], SAMPLING)[0][0]
    assert answer.text == ANSWER


@pytest.mark.parametrize(
    ("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("br", bytes)]
)
def test_what_is_compressed_as_requested_is_read(
    server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch, encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    def compress(handler: Any, body: Any) -> None:
        handler.send(200, pack(json.dumps(handler.whole(body)).encode()), Content_Encoding=encoding)

    monkeypatch.setitem(FAULTS, "compressed", compress)
    server.fault = "compressed"
    reader = OpenAIReader("toy", base_url=server.base_url, api_key="k")
    if encoding == "br":
        with pytest.raises(ServiceError, match="'br', which was not requested"):
            reader.generate(["q"], SAMPLING)
    else:
        assert reader.generate(["q"], SAMPLING)[0][0].text == ANSWER


@pytest.mark.parametrize(("status", "kind"), [(200, ServiceError), (500, TransientServiceError)])
@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_bytes_are_counted_as_they_are_after_decompression(
    server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch, status: int, kind: Any, encoding: str
) -> None:
    limit = 2**18
    monkeypatch.setattr(client, "MAX_BYTES", limit)
    whole = b'{"choices": "' + b" " * 2**26 + b'"}'
    data = gzip.compress(whole) if encoding == "gzip" else whole[: 2**20]
    monkeypatch.setitem(
        FAULTS, "large", lambda handler, body: handler.send(status, data, Content_Encoding=encoding)
    )
    server.fault = "large"
    reader = OpenAIReader("toy", base_url=server.base_url, api_key="k", max_retries=0)
    tracemalloc.start()
    try:
        with pytest.raises(kind, match="larger than 0.25 MiB" if status == 200 else "answered 500"):
            reader.generate(["q"], SAMPLING)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**23
