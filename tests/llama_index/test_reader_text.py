"""Any other LLM as a reader of text alone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from llama_index.core import Settings
from llama_index.core.base.llms.types import (
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
)
from llama_index.core.llms import CustomLLM, MockLLM
from llama_index.core.llms.mock import MockFunctionCallingLLM
from pydantic import PrivateAttr

from llama_index_surerag import reader_from_llm
from surerag.errors import ConfigurationError, ServiceError, TransientServiceError
from surerag.messages import Message, SamplingParams


class Blocking(CustomLLM):
    """Answers when it is let, with the words it was given; notes what it was passed."""

    reply: str = "one two three"
    _gate: threading.Event = PrivateAttr(default_factory=threading.Event)
    _options: list[dict[str, Any]] = PrivateAttr(default_factory=list)
    _prompts: list[str] = PrivateAttr(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        assert self._gate.wait(timeout=60)
        self._options.append(kwargs)
        self._prompts.append(prompt)
        return CompletionResponse(text=self.reply)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        def pieces() -> CompletionResponseGen:
            for character in self.reply:
                yield CompletionResponse(text=self.reply, delta=character)

        return pieces()


def open_llm(**settings: Any) -> Blocking:
    llm = Blocking(**settings)
    llm._gate.set()
    return llm


def test_it_says_that_it_has_no_logprobs() -> None:
    reader = reader_from_llm(MockLLM())
    assert (reader.capabilities.logprobs, reader.capabilities.entropy) == (False, None)
    [[answer]] = reader.generate(["Where is Velm?"], SamplingParams())
    assert (answer.text, answer.trace) == ("Where is Velm?", None)


def test_settings_llm_is_used_when_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_llm", open_llm(reply="from settings"))
    assert reader_from_llm().generate(["?"], SamplingParams())[0][0].text == "from settings"


def test_samples_and_stop_texts_are_kept_by_the_reader() -> None:
    llm = open_llm(reply="In Velm. Question: next")
    [first, second] = reader_from_llm(llm).generate(["a", "b"], SamplingParams(n=2, stop=(" Question",)))
    assert [answer.text for answer in (*first, *second)] == ["In Velm."] * 4
    assert sorted(llm._prompts) == ["a", "a", "b", "b"]
    assert llm._options == [{}] * 4


def test_call_options_reach_the_llm() -> None:
    llm = open_llm()
    reader = reader_from_llm(llm, call_options=lambda sampling: {"heat": sampling.temperature})
    reader.generate(["?"], SamplingParams(temperature=0.7))
    assert llm._options == [{"heat": 0.7}]


@pytest.mark.parametrize("stop", [(), (" three",), ("o t",), ("x",), ("e",)])
async def test_a_stream_shows_what_generate_says(stop: tuple[str, ...]) -> None:
    reader = reader_from_llm(open_llm())
    sampling = SamplingParams(stop=stop)
    [[whole]] = reader.generate(["?"], sampling)
    chunks = list(reader.stream("?", sampling))
    assert "".join(chunk.text for chunk in chunks) == chunks[-1].generation.text == whole.text
    later = [chunk async for chunk in reader.astream("?", sampling)]
    assert "".join(chunk.text for chunk in later) == whole.text


def test_an_llm_that_cannot_stream_answers_whole() -> None:
    class Whole(Blocking):
        def stream_complete(
            self, prompt: str, formatted: bool = False, **kwargs: Any
        ) -> CompletionResponseGen:
            raise NotImplementedError

    llm = Whole()
    llm._gate.set()
    chunks = list(reader_from_llm(llm).stream("?", SamplingParams()))
    assert "".join(chunk.text for chunk in chunks) == "one two three"


class Streaming(MockFunctionCallingLLM):
    """Streams for ever, and notes when it is told to stop."""

    _open: list[str] = PrivateAttr(default_factory=list)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        def pieces() -> CompletionResponseGen:
            self._open.append("sync")
            try:
                while True:
                    yield CompletionResponse(text="", delta="on and ")
            finally:
                self._open.remove("sync")

        return pieces()

    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        async def pieces() -> CompletionResponseAsyncGen:
            self._open.append("async")
            try:
                while True:
                    yield CompletionResponse(text="", delta="on and ")
            finally:
                self._open.remove("async")

        return pieces()


async def test_an_answer_that_nobody_reads_on_is_closed() -> None:
    llm = Streaming()
    reader = reader_from_llm(llm)

    async def closed() -> bool:
        for _ in range(500):
            if not llm._open:
                return True
            await asyncio.sleep(0.01)
        return False

    chunks = list(reader.stream("?", SamplingParams(stop=("and on",))))
    assert chunks[-1].generation.text == "on"
    assert await closed()
    found = [chunk async for chunk in reader.astream("?", SamplingParams(stop=("and on",)))]
    assert found[-1].generation.text == "on"
    assert await closed()
    abandoned = reader.astream("?", SamplingParams())
    await anext(abandoned)
    assert llm._open == ["async"]
    await abandoned.aclose()
    assert await closed()


async def test_an_answer_that_could_not_be_streamed_counts_once() -> None:
    class Mute(Blocking):
        def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
            raise NotImplementedError

    llm = Mute()
    llm._gate.set()
    reader = reader_from_llm(llm)
    [chunk] = reader.stream("?", SamplingParams(stop=("three",)))
    assert (chunk.text, chunk.generation.text) == ("one two", "one two")
    assert reader.usage.requests == 1

    class Waiting(MockFunctionCallingLLM):
        async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
            raise NotImplementedError

        async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
            return CompletionResponse(text="one two three")

    waiting = reader_from_llm(Waiting())
    [chunk] = [chunk async for chunk in waiting.astream("?", SamplingParams(stop=("three",)))]
    assert (chunk.text, waiting.usage.requests) == ("one two", 1)


async def test_a_blocking_llm_does_not_block_the_event_loop() -> None:
    llm = Blocking()
    reader = reader_from_llm(llm)
    assert not reader.capabilities.native_async
    answering = asyncio.create_task(reader.agenerate(["?"], SamplingParams()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not answering.done()
    llm._gate.set()
    assert (await answering)[0][0].text == "one two three"


async def test_a_native_async_llm_is_awaited() -> None:
    loops = []

    class Native(MockFunctionCallingLLM):
        async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
            loops.append(asyncio.get_running_loop())
            return CompletionResponse(text="awaited")

    reader = reader_from_llm(Native())
    assert reader.capabilities.native_async
    assert (await reader.agenerate(["?"], SamplingParams()))[0][0].text == "awaited"
    assert loops == [asyncio.get_running_loop()]


def test_a_conversation_goes_through_messages_to_prompt() -> None:
    llm = open_llm(
        messages_to_prompt=lambda messages: "|".join(f"{m.role.value}:{m.content}" for m in messages)
    )
    reader_from_llm(llm).generate([(Message("system", "s"), Message("user", "u"))], SamplingParams())
    assert llm._prompts == ["system:s|user:u"]


@pytest.mark.parametrize(
    ("error", "kind"), [(TimeoutError("slow"), TransientServiceError), (KeyError("x"), ServiceError)]
)
def test_an_llm_that_raises_is_named(error: Exception, kind: type[ServiceError]) -> None:
    class Failing(Blocking):
        def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
            raise error

    with pytest.raises(kind, match="Failing failed") as raised:
        reader_from_llm(Failing()).generate(["?"], SamplingParams())
    assert raised.value.__cause__ is error
    assert raised.value.retryable == (kind is TransientServiceError)


def test_what_is_no_llm_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected a LlamaIndex LLM, got str"):
        reader_from_llm("gpt-4o")
    with pytest.raises(ConfigurationError, match="max_concurrency"):
        reader_from_llm(MockLLM(), max_concurrency=0)
