"""What a model thinks before it answers is no part of its answer, wherever an LLM class puts it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    MessageRole,
    TextBlock,
    ThinkingBlock,
)
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.mock import MockFunctionCallingLLM
from pydantic import PrivateAttr

from llama_index_surerag import reader_from_llm
from surerag.errors import ThinkingBudgetError
from surerag.messages import SamplingParams

TEXT = SamplingParams(trace="none")


class Thinker(MockFunctionCallingLLM):
    """Says whatever it is given, as messages of a chat."""

    _said: ChatResponse = PrivateAttr()
    _deltas: list[str] = PrivateAttr(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_chat_model=True, model_name="thinker")

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return self._said

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return self._said

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        return iter([ChatResponse(message=self._said.message, delta=delta) for delta in self._deltas])

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        async def pieces() -> AsyncIterator[ChatResponse]:
            for delta in self._deltas:
                yield ChatResponse(message=self._said.message, delta=delta)

        return pieces()


def saying(*blocks: Any, raw: Any = None, counts: dict[str, Any] | None = None, **told: Any) -> Thinker:
    llm = Thinker()
    message = ChatMessage(role=MessageRole.ASSISTANT, blocks=list(blocks), additional_kwargs=told)
    llm._said = ChatResponse(message=message, raw=raw, additional_kwargs=counts or {})
    return llm


HARMONY = (
    "<|channel|>analysis<|message|>No.<|end|><|start|>assistant<|channel|>final<|message|>In Velm.<|return|>"
)


@pytest.mark.parametrize(
    "llm",
    [
        saying(TextBlock(text="<think>Rhine? No.</think>\n\nIn Velm.")),
        saying(ThinkingBlock(content="Rhine? No."), TextBlock(text="In Velm.")),
        saying(TextBlock(text="In Velm."), thinking="Rhine? No."),
        saying(TextBlock(text="In Velm."), reasoning_content="Rhine? No."),
        saying(TextBlock(text=HARMONY)),
    ],
    ids=["<think>", "ThinkingBlock", "thinking", "reasoning_content", "harmony"],
)
async def test_the_answer_is_what_comes_after_the_thoughts(llm: Thinker) -> None:
    reader = reader_from_llm(llm)
    assert reader.generate(["Where?"], TEXT)[0][0].text == "In Velm."
    assert (await reader.agenerate(["Where?"], TEXT))[0][0].text == "In Velm."
    assert reader.capabilities.thinking == "apart"


@pytest.mark.parametrize(
    "deltas",
    [
        ["<thi", "nk>Rhine?", " No.</thi", "nk>\n", "\nIn ", "Velm.", " Next"],
        [HARMONY[start : start + 7] for start in range(0, len(HARMONY), 7)],
    ],
    ids=["<think>", "harmony"],
)
async def test_thoughts_are_not_streamed(deltas: list[str]) -> None:
    llm = saying(TextBlock(text=""))
    llm._deltas = deltas
    reader = reader_from_llm(llm)
    sampling = SamplingParams(trace="none", stop=(" Next",))
    chunks = list(reader.stream("Where?", sampling))
    assert "".join(chunk.text for chunk in chunks) == chunks[-1].generation.text == "In Velm."
    later = [chunk async for chunk in reader.astream("Where?", sampling)]
    assert "".join(chunk.text for chunk in later) == "In Velm."


@pytest.mark.parametrize("usage", ["completion_tokens_details", "output_tokens_details"])
def test_tokens_of_thoughts_are_counted_apart(usage: str) -> None:
    raw = {"usage": {usage: {"reasoning_tokens": 40}}}
    llm = saying(TextBlock(text="In Velm."), raw=raw, counts={"prompt_tokens": 5, "completion_tokens": 43})
    reader = reader_from_llm(llm)
    [[answer]] = reader.generate(["Where?"], TEXT)
    assert (answer.completion_tokens, answer.thinking_tokens) == (3, 40)
    assert (reader.usage.completion_tokens, reader.usage.thinking_tokens) == (3, 40)


@pytest.mark.parametrize(
    "llm",
    [
        saying(TextBlock(text="<think>Rhine? No. Per")),
        saying(ThinkingBlock(content="Rhine?"), raw={"stop_reason": "max_tokens"}),
        saying(
            TextBlock(text=""),
            raw={
                "choices": [{"finish_reason": "length"}],
                "usage": {"completion_tokens_details": {"reasoning_tokens": 64}},
            },
        ),
    ],
    ids=["<think>", "ThinkingBlock", "hidden"],
)
async def test_an_answer_that_ends_inside_its_thoughts_is_an_error_that_says_so(llm: Thinker) -> None:
    reader = reader_from_llm(llm)
    with pytest.raises(ThinkingBudgetError, match=r"Thinker.*still thinking.*max_tokens"):
        reader.generate(["Where?"], TEXT)
    with pytest.raises(ThinkingBudgetError, match=r"reasoning_effort"):
        await reader.agenerate(["Where?"], TEXT)


def test_a_stream_that_ends_inside_its_thoughts_is_an_error_that_says_so() -> None:
    llm = saying(TextBlock(text=""))
    llm._deltas = ["<think>", "Rhine? ", "Per"]
    with pytest.raises(ThinkingBudgetError, match="Thinker"):
        list(reader_from_llm(llm).stream("Where?", TEXT))


@pytest.mark.parametrize(
    ("raw", "finish"),
    [
        ({"choices": [{"finish_reason": "length"}]}, "length"),
        ({"choices": [{"finish_reason": "stop"}]}, "stop"),
        ({"stop_reason": "max_tokens"}, "length"),
        ({"stop_reason": "end_turn"}, "stop"),
        ({"done_reason": "length"}, "length"),
        ({"finish_reason": SimpleNamespace(value="MAX_TOKENS")}, "length"),
        ({"stopReason": "max_tokens"}, "length"),
        ({"incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        (None, "stop"),
    ],
)
def test_an_answer_that_was_cut_is_known_as_cut(raw: Any, finish: str) -> None:
    [[answer]] = reader_from_llm(saying(TextBlock(text="In"), raw=raw)).generate(["Where?"], TEXT)
    assert answer.finish == finish


def test_a_completion_is_read_alike() -> None:
    class Completing(CustomLLM):
        @property
        def metadata(self) -> LLMMetadata:
            return LLMMetadata()

        def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
            return CompletionResponse(text="<think>No.</think>In Velm.")

        def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Iterator[Any]:
            return iter([self.complete(prompt)])

    assert reader_from_llm(Completing()).generate(["?"], TEXT)[0][0].text == "In Velm."


def test_white_space_before_an_answer_is_no_thought() -> None:
    reader = reader_from_llm(saying(TextBlock(text="\n\nIn Velm.")))
    assert reader.generate(["?"], TEXT)[0][0].text == "In Velm."
    assert reader.capabilities.thinking == "none"
