"""An answer that flows: the decision is known first, the text is the same, closing frees."""

from __future__ import annotations

import pytest

from surerag.drivers import astream, run, stream
from surerag.effects import (
    CancelGeneration,
    ContinueGeneration,
    Generate,
    Program,
    StartGeneration,
    emit,
    perform,
)
from surerag.messages import SamplingParams
from surerag.readers.fake import FakeReader
from surerag.services import Services
from tests.drivers.local_reader import LocalReader


def gated(accept: bool) -> Program[str]:
    [begun] = yield from perform(StartGeneration(["q"], 2, SamplingParams()))
    yield from emit("decided", detail=accept, accept=accept)
    if accept:
        answer = yield from perform(ContinueGeneration(begun, answer=True))
    else:
        yield from perform(CancelGeneration(begun))
        [[answer]] = yield from perform(Generate(["q again"], SamplingParams(), answer=True))
    return answer.text.upper()


def reader() -> FakeReader:
    return FakeReader(lambda prompt: f"{prompt} it is so and no other way")


@pytest.mark.parametrize("accept", [True, False])
def test_pieces_add_up_to_the_answer_and_the_decision_comes_first(accept: bool) -> None:
    services = Services(reader())
    with stream(gated(accept), services) as answer:
        assert answer.announced is accept
        with pytest.raises(RuntimeError, match="read to its end"):
            _ = answer.result
        pieces = list(answer)
    assert len(pieces) > 2
    assert "".join(pieces).upper() == answer.result == run(gated(accept), Services(reader()))


@pytest.mark.parametrize("accept", [True, False])
async def test_async_streams_give_the_same(accept: bool) -> None:
    answer = await astream(gated(accept), Services(reader()))
    assert answer.announced is accept
    pieces = [piece async for piece in answer]
    assert pieces == list(stream(gated(accept), Services(reader())))
    assert answer.result == "".join(pieces).upper()


def test_a_stream_closed_early_takes_no_more_and_frees_what_is_open() -> None:
    source = reader()
    answer = stream(gated(True), Services(source))
    next(iter(answer))
    emitted = source.usage.completion_tokens
    answer.close()
    answer.close()
    assert source.usage.completion_tokens == emitted < 9
    assert source.open_handles == 0


def test_a_stream_never_read_frees_what_is_open() -> None:
    source = reader()
    stream(gated(True), Services(source)).close()
    assert source.open_handles == 0


async def test_an_async_stream_closed_early_frees_what_is_open() -> None:
    source = reader()
    async with await astream(gated(True), Services(source)) as answer:
        async for _ in answer:
            break
    assert source.open_handles == 0


def test_a_local_reader_without_streaming_gives_one_piece() -> None:
    source = LocalReader(answer=lambda prompt: "one two three")
    answer = stream(gated(True), Services(source))
    assert list(answer) == ["one two three"]
    assert source.open == set()


def test_a_failure_before_the_answer_is_raised_at_once() -> None:
    def failing() -> Program[str]:
        yield from perform(Generate(["poison"], SamplingParams()))
        return "not reached"

    with pytest.raises(Exception, match="poisoned"):
        stream(failing(), Services(LocalReader()))
