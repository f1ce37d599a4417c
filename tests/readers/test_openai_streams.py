"""Begin, finish, cancel and streaming over an open stream, against a server that counts."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.servers.fake_openai import FakeOpenAI, Quirks
from tests.servers.toy_model import Script

from surerag.errors import ConfigurationError, ServiceError, TransientServiceError
from surerag.messages import SamplingParams
from surerag.readers.hosted import OpenAIReader
from surerag.readers.hosted.parse import Api

APIS: list[Api] = ["chat", "completions"]
TEXT = "one two three four five six"


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> Api:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(Script(lambda _: TEXT)) as running:
        yield running


def reader_of(server: FakeOpenAI, api: Api = "chat") -> OpenAIReader:
    return OpenAIReader("toy", base_url=server.base_url, api=api, top_logprobs=3)


def test_begin_needs_n_tokens_and_cancel_closes_the_stream(server: FakeOpenAI, api: Api) -> None:
    server.hold_after = 2
    reader = reader_of(server, api)
    (begun,) = reader.begin(["q"], 2, SamplingParams())
    assert begun.partial.trace is not None
    assert begun.partial.trace.entropy is not None
    assert (begun.partial.text, begun.partial.finish, begun.done) == ("one two", "partial", False)
    assert len(begun.partial.trace) == len(begun.partial.trace.entropy.lower) == 2
    reader.cancel([begun])
    record = server.streams[0].wait()
    assert record.closed_early
    assert record.sent == 2
    assert len(server.requests) == 1
    assert reader.usage.completion_tokens == 2


async def test_abegin_needs_n_tokens_and_acancel_closes_the_stream(server: FakeOpenAI, api: Api) -> None:
    server.hold_after = 2
    reader = reader_of(server, api)
    (begun,) = await reader.abegin(["q"], 2, SamplingParams())
    assert begun.partial.text == "one two"
    await reader.acancel([begun])
    record = await asyncio.to_thread(server.streams[0].wait)
    assert record.closed_early
    assert record.sent == 2
    await reader.aclose()


def test_finish_goes_on_and_asks_nothing_again(server: FakeOpenAI, api: Api) -> None:
    reader = reader_of(server, api)
    begun = reader.begin(["q", "r"], 2, SamplingParams())
    finished = reader.finish(begun)
    assert finished == [row[0] for row in reader.generate(["q", "r"], SamplingParams())]
    assert finished[0].text == TEXT
    assert finished[0].prompt_tokens == 1
    assert len([request for request in server.requests if request.body.get("stream")]) == 2
    assert not any(record.closed_early for record in server.streams)


async def test_afinish_equals_agenerate(server: FakeOpenAI, api: Api) -> None:
    reader = reader_of(server, api)
    begun = await reader.abegin(["q"], 3, SamplingParams())
    assert await reader.afinish(begun) == (await reader.agenerate(["q"], SamplingParams()))[0]
    await reader.aclose()


def test_an_answer_shorter_than_n_is_done(server: FakeOpenAI, api: Api) -> None:
    reader = reader_of(server, api)
    (begun,) = reader.begin(["q"], 20, SamplingParams())
    assert begun.done
    assert (begun.partial.text, begun.partial.finish) == (TEXT, "stop")
    assert reader.finish([begun]) == [begun.partial]
    reader.cancel([begun])
    assert reader.usage.requests == 1


def test_pieces_of_several_tokens_are_cut_at_n(api: Api) -> None:
    with FakeOpenAI(Script(lambda _: TEXT), Quirks(tokens_per_piece=4)) as server:
        reader = reader_of(server, api)
        (begun,) = reader.begin(["q"], 2, SamplingParams())
        assert begun.partial.text == "one two"
        assert begun.partial.completion_tokens == 2
        assert reader.finish([begun])[0].text == TEXT


def test_streams_join_to_the_text_and_end_with_the_generation(server: FakeOpenAI, api: Api) -> None:
    reader = reader_of(server, api)
    chunks = list(reader.stream("q", SamplingParams()))
    assert "".join(chunk.text for chunk in chunks) == TEXT
    assert sum(bool(chunk.text) for chunk in chunks) == 6
    assert chunks[-1].generation == reader.generate(["q"], SamplingParams())[0][0]
    assert all(chunk.generation is None for chunk in chunks[:-1])


def test_closing_a_stream_closes_the_connection(server: FakeOpenAI) -> None:
    server.hold_after = 3
    stream = reader_of(server).stream("q", SamplingParams())
    said = ""
    while said != "one two three":
        said += next(stream).text
    stream.close()  # type: ignore[attr-defined]
    assert server.streams[0].wait().closed_early


async def test_closing_an_async_stream_closes_the_connection(server: FakeOpenAI) -> None:
    server.hold_after = 2
    reader = reader_of(server)
    stream = reader.astream("q", SamplingParams())
    said = ""
    while said != "one two":
        said += (await anext(stream)).text
    await stream.aclose()  # type: ignore[attr-defined]
    assert (await asyncio.to_thread(server.streams[0].wait)).closed_early
    await reader.aclose()


def test_finish_stream_shows_what_was_held_back_first(server: FakeOpenAI, api: Api) -> None:
    reader = reader_of(server, api)
    (begun,) = reader.begin(["q"], 3, SamplingParams())
    chunks = list(reader.finish_stream(begun))
    assert chunks[0].text == "one two three"
    assert "".join(chunk.text for chunk in chunks) == TEXT
    assert chunks[-1].generation == reader.generate(["q"], SamplingParams())[0][0]
    assert len(server.streams) == 1


async def test_afinish_stream_equals_finish_stream(server: FakeOpenAI) -> None:
    reader = reader_of(server)
    (begun,) = await reader.abegin(["q"], 3, SamplingParams())
    chunks = [chunk async for chunk in reader.afinish_stream(begun)]
    assert "".join(chunk.text for chunk in chunks) == TEXT
    await reader.aclose()


def test_handles_are_used_once_and_cancelled_as_often_as_you_like(server: FakeOpenAI) -> None:
    reader = reader_of(server)
    (begun,) = reader.begin(["q"], 2, SamplingParams())
    reader.cancel([begun])
    reader.cancel([begun])
    with pytest.raises(ServiceError, match="cancelled already"):
        reader.finish([begun])
    (begun,) = reader.begin(["q"], 2, SamplingParams())
    reader.finish([begun])
    reader.cancel([begun])
    with pytest.raises(ServiceError, match="finished already"):
        reader.finish([begun])


async def test_what_was_begun_sync_can_be_finished_async_and_not_the_other_way(server: FakeOpenAI) -> None:
    reader = reader_of(server)
    begun = await asyncio.to_thread(reader.begin, ["q"], 2, SamplingParams())
    assert (await reader.afinish(begun))[0].text == TEXT
    begun = await reader.abegin(["q"], 2, SamplingParams())
    with pytest.raises(ConfigurationError, match="afinish what abegin began"):
        reader.finish(begun)
    await reader.acancel(begun)
    await reader.aclose()


async def test_sync_cancel_closes_an_async_stream_soon(server: FakeOpenAI) -> None:
    # A program that is closed by the garbage collector can only cancel without awaiting.
    server.hold_after = 2
    reader = reader_of(server)
    begun = await reader.abegin(["q"], 2, SamplingParams())
    reader.cancel(begun)
    assert (await asyncio.to_thread(server.streams[0].wait)).closed_early
    await reader.aclose()


def test_a_stream_that_breaks_off_is_an_error(api: Api) -> None:
    with FakeOpenAI(Script(lambda _: TEXT), Quirks(breaks_stream_after=4)) as server:
        reader = reader_of(server, api)
        (begun,) = reader.begin(["q"], 2, SamplingParams())
        with pytest.raises(TransientServiceError):
            reader.finish([begun])
        with pytest.raises(TransientServiceError):
            list(reader.stream("q", SamplingParams()))


def test_begin_is_asked_again_when_its_stream_breaks_off() -> None:
    with FakeOpenAI(Script(lambda _: TEXT), Quirks(breaks_stream_after=1)) as server:
        reader = OpenAIReader("toy", base_url=server.base_url, retries=2, max_wait=0.01)
        with pytest.raises(TransientServiceError, match="failed 3 times"):
            reader.begin(["q"], 2, SamplingParams())
        assert len(server.streams) == 3


def test_a_failing_prompt_closes_the_streams_of_the_others() -> None:
    def answer(prompt: str) -> str:
        return "" if prompt == "bad" else TEXT

    with FakeOpenAI(Script(answer), hold_after=2) as server:
        server.fail(400)
        reader = OpenAIReader("toy", base_url=server.base_url, max_concurrency=1)
        with pytest.raises(ServiceError, match="400"):
            reader.begin(["bad", "good"], 2, SamplingParams())
        assert all(record.wait().closed_early for record in server.streams)


async def test_cancelling_the_task_closes_its_streams(server: FakeOpenAI) -> None:
    server.hold_after = 1
    reader = reader_of(server)
    task = asyncio.create_task(reader.abegin(["q"], 3, SamplingParams()))
    await asyncio.to_thread(server.wait_for_tokens, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await asyncio.to_thread(server.streams[0].wait)).closed_early
    await reader.aclose()


def test_more_prompts_than_the_limit_can_be_begun_and_finished(server: FakeOpenAI) -> None:
    reader = OpenAIReader("toy", base_url=server.base_url, max_concurrency=2, top_logprobs=3)
    begun = reader.begin([f"q{i}" for i in range(6)], 1, SamplingParams())
    assert [generation.text for generation in reader.finish(begun)] == [TEXT] * 6


def test_streaming_without_usage_counts_tokens() -> None:
    with FakeOpenAI(Script(lambda _: TEXT), Quirks(refuses=("stream_options",))) as server:
        reader = reader_of(server)
        (begun,) = reader.begin(["q"], 2, SamplingParams())
        assert reader.finish([begun])[0].completion_tokens == 6
        assert reader.usage.completion_tokens == 6
        # Refused once, it is not sent again.
        reader.begin(["q"], 9, SamplingParams())
        assert ["stream_options" in request.body for request in server.requests] == [True, False, False]
