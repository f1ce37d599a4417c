"""How long an answer may take in all, how large it may be, and that nothing is read behind its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from benchmarks.soak.vitals import sockets
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.faults import FAULTS

from surerag.errors import ConfigurationError, ServiceError, TransientServiceError
from surerag.messages import SamplingParams
from surerag.readers.hosted import OpenAIReader

SOON = 10.0


@pytest.fixture(scope="module", autouse=True)
def sdk() -> None:
    """Import what is imported when first used, so that it counts to no test's time."""
    with FakeOpenAI() as server:
        OpenAIReader("toy", base_url=server.base_url).generate(["q"], SamplingParams())


def reader_of(server: FakeOpenAI, **settings: Any) -> OpenAIReader:
    settings = {"deadline": 0.2, "retries": 3, "top_logprobs": 2, **settings}
    return OpenAIReader("toy", base_url=server.base_url, **settings)


@contextmanager
def soon() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < SOON


@pytest.mark.parametrize("fault", ["drips", "comments for ever"])
def test_a_server_that_never_ends_is_left_and_not_asked_again(server: FakeOpenAI, fault: str) -> None:
    server.fault = FAULTS[fault]
    reader = reader_of(server)
    with (
        soon(),
        pytest.raises(TransientServiceError, match=r"not finished its answer after 0.2 s.*Raise"),
    ):
        reader.generate(["q"], SamplingParams())
    with soon(), pytest.raises(TransientServiceError, match="not finished"):
        list(reader.stream("q", SamplingParams()))
    with soon(), pytest.raises(TransientServiceError, match="not finished"):
        asyncio.run(reader.abegin(["q"], 2, SamplingParams()))


def test_headers_that_drip_end_at_the_deadline(server: FakeOpenAI) -> None:
    server.fault = FAULTS["drips its headers"]
    reader = reader_of(server)
    with soon(), pytest.raises(TransientServiceError, match=r"not finished its answer after 0.2 s"):
        reader.generate(["q"], SamplingParams())
    with soon(), pytest.raises(TransientServiceError, match="not finished"):
        reader.begin(["q"], 2, SamplingParams())
    with soon(), pytest.raises(TransientServiceError, match="not finished"):
        next(iter(reader.stream("q", SamplingParams())))
    server.fault = None
    assert reader.generate(["q"], SamplingParams())


def test_headers_that_drip_end_through_a_proxy(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.base_url.removesuffix("/v1"))
    server.fault = FAULTS["drips its headers"]
    reader = OpenAIReader("toy", base_url="http://elsewhere.invalid/v1", deadline=0.2, retries=0)
    with soon(), pytest.raises(TransientServiceError, match="not finished"):
        reader.generate(["q"], SamplingParams())


async def test_headers_that_drip_end_at_the_deadline_in_an_event_loop(server: FakeOpenAI) -> None:
    server.fault = FAULTS["drips its headers"]
    reader = reader_of(server, retries=0)
    with soon(), pytest.raises(TransientServiceError, match="not finished"):
        await reader.agenerate(["q"], SamplingParams())
    with soon(), pytest.raises(TransientServiceError, match="not finished"):
        await reader.abegin(["q"], 2, SamplingParams())


def test_an_answer_that_begins_too_late_leaves_no_connection_open(server: FakeOpenAI) -> None:
    def late(wire: Any) -> None:
        time.sleep(0.3)
        wire.body(b"{}")

    server.fault = late
    reader = reader_of(server, retries=0)
    before = sockets()
    for _ in range(5):
        for call in (reader.generate, lambda *asked: reader.begin(asked[0], 2, asked[1])):
            with pytest.raises(TransientServiceError, match="not finished"):
                call(["q"], SamplingParams())
    deadline = time.monotonic() + SOON
    while sockets() > before + 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sockets() <= before + 2


def test_a_probe_ends_as_well(server: FakeOpenAI) -> None:
    server.fault = FAULTS["drips"]
    with soon(), pytest.raises(TransientServiceError, match="not finished"):
        reader_of(server).probe()
    with soon(), pytest.raises(TransientServiceError, match="not finished"):
        asyncio.run(reader_of(server).aprobe())


def test_the_pauses_of_whoever_reads_are_not_counted(server: FakeOpenAI) -> None:
    reader = reader_of(server, deadline=1.0)
    begun = reader.begin(["q"], 1, SamplingParams())
    time.sleep(1.2)
    assert reader.finish(begun) == reader.generate(["q"], SamplingParams())[0]


def test_an_answer_that_is_too_large_is_left(server: FakeOpenAI) -> None:
    server.fault = FAULTS["300 MB"]
    reader = reader_of(server, deadline=60.0, max_bytes=2**21)
    with soon(), pytest.raises(ServiceError, match=r"larger than 2,097,152 bytes.*Raise max_bytes"):
        reader.generate(["q"], SamplingParams())
    with soon(), pytest.raises(ServiceError, match="larger than"):
        reader.begin(["q"], 2, SamplingParams())
    with soon(), pytest.raises(ServiceError, match="larger than"):
        asyncio.run(reader.agenerate(["q"], SamplingParams()))


def test_of_an_error_no_more_is_read_than_is_shown(server: FakeOpenAI) -> None:
    server.fault = FAULTS["300 MB of error"]
    with soon(), pytest.raises(TransientServiceError, match=r"answered 500: x+"):
        reader_of(server, deadline=60.0, retries=0).generate(["q"], SamplingParams())


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize("logprobs", [True, False])
def test_nothing_is_read_behind_max_tokens(server: FakeOpenAI, api: Any, logprobs: bool) -> None:
    server.fault = FAULTS["ignores max_tokens"]
    reader = reader_of(server, deadline=60.0, api=api, logprobs=logprobs)
    with soon():
        chunks = list(reader.stream("q", SamplingParams(max_tokens=5)))
    generation = chunks[-1].generation
    assert generation is not None
    assert "".join(chunk.text for chunk in chunks) == generation.text == "on on on on on"
    assert (generation.finish, generation.completion_tokens) == ("length", 5)
    with soon():
        (begun,) = reader.begin(["q"], 8, SamplingParams(max_tokens=5))
    assert begun.done
    assert begun.partial == generation


@pytest.mark.parametrize("settings", [{"deadline": 0}, {"deadline": float("nan")}, {"max_bytes": 0}])
def test_limits_that_cannot_work_are_refused(server: FakeOpenAI, settings: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="must be above 0"):
        reader_of(server, **settings)
