"""Faults of a server, by every way of asking: the right answer, a marked one or a clear error, and soon."""

from __future__ import annotations

import asyncio
import time
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
from surerag.readers.hosted import OpenAIReader
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
    return (await reader.afinish(await reader.abegin(["q"], 2, SAMPLING)))[0]


async def streamed(reader: OpenAIReader) -> Generation | None:
    return [chunk async for chunk in reader.astream("q", SAMPLING)][-1].generation


WAYS: dict[str, Callable[[OpenAIReader], Generation | None]] = {
    "whole": lambda reader: reader.generate(["q"], SAMPLING)[0][0],
    "stream": lambda reader: list(reader.stream("q", SAMPLING))[-1].generation,
    "begin": lambda reader: reader.finish(reader.begin(["q"], 2, SAMPLING))[0],
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
