"""Wraps a reader (surerag's interface to a model) as a LlamaIndex LLM that returns log-probabilities."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
    MessageRole,
)
from llama_index.core.llms import LLM
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from pydantic import Field

from llama_index_surerag.prompts import from_chat_messages
from surerag.messages import Chunk, Generation, Prompt, SamplingParams
from surerag.options import CheckedFields, check_known
from surerag.readers import Reader, as_reader

R = TypeVar("R", ChatResponse, CompletionResponse)


class ReaderLLM(CheckedFields, LLM):
    """An LLM of LlamaIndex that calls a reader of surerag.

    ``response.raw`` is a :class:`surerag.messages.Generation` with the log-probabilities and entropies of the
    answer's tokens. In a stream, ``raw`` is None for all responses but the last.

    Attributes:
        reader: The reader, such as a :class:`surerag.TransformersReader`.
        temperature: Temperature of the answers; 0 is greedy decoding.
        max_tokens: Maximum length of an answer, in tokens; None for the reader's own maximum.

    A call takes ``temperature``, ``max_tokens`` and ``stop``, for this call only.

    Raises:
        ConfigurationError: If ``reader`` is not a reader, a name is unknown, or a value is out of bounds.
    """

    reader: Reader = Field(exclude=True)
    temperature: float = Field(0.0, ge=0)
    max_tokens: int | None = Field(None, ge=1)

    def __init__(self, reader: Reader, **settings: Any) -> None:
        super().__init__(reader=as_reader(reader), **settings)

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class in traces."""
        return "surerag_reader_llm"

    @property
    def metadata(self) -> LLMMetadata:
        """Name, context window and maximum answer length of the model."""
        return LLMMetadata(
            model_name=self.reader.name,
            context_window=getattr(self.reader, "window", None) or LLMMetadata().context_window,
            num_output=self._sampling({}).max_tokens,
            is_chat_model=True,
        )

    def _sampling(self, keywords: dict[str, Any]) -> SamplingParams:
        check_known("a call of ReaderLLM", keywords, {"temperature", "max_tokens", "stop"})
        longest = keywords.get("max_tokens", self.max_tokens)
        return SamplingParams(
            temperature=keywords.get("temperature", self.temperature),
            max_tokens=self.reader.max_tokens if longest is None else longest,
            stop=tuple(keywords.get("stop") or ()),
            trace="optional_entropy",
        )

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Return the model's answer to chat messages."""
        [[answer]] = self.reader.generate([_turns(messages)], self._sampling(kwargs))
        return _chat(answer.text, None, answer)

    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        """Yield the model's answer to chat messages in pieces."""
        return _stream(self.reader.stream(_turns(messages), self._sampling(kwargs)), _chat)

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Answer as ``chat`` does, without blocking the event loop."""
        [[answer]] = await self.reader.agenerate([_turns(messages)], self._sampling(kwargs))
        return _chat(answer.text, None, answer)

    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        """Answer as ``stream_chat`` does, without blocking the event loop."""
        return _astream(self.reader.astream(_turns(messages), self._sampling(kwargs)), _chat)

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Return the model's answer to a prompt."""
        [[answer]] = self.reader.generate([prompt], self._sampling(kwargs))
        return _completion(answer.text, None, answer)

    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        """Yield the model's answer to a prompt in pieces."""
        return _stream(self.reader.stream(prompt, self._sampling(kwargs)), _completion)

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """Answer as ``complete`` does, without blocking the event loop."""
        [[answer]] = await self.reader.agenerate([prompt], self._sampling(kwargs))
        return _completion(answer.text, None, answer)

    @llm_completion_callback()
    async def astream_complete(
        self, prompt: str, formatted: bool = False, **kwargs: Any
    ) -> CompletionResponseAsyncGen:
        """Answer as ``stream_complete`` does, without blocking the event loop."""
        return _astream(self.reader.astream(prompt, self._sampling(kwargs)), _completion)


def _turns(messages: Sequence[ChatMessage]) -> Prompt:
    return from_chat_messages(list(messages))


def _chat(text: str, delta: str | None, answer: Generation | None) -> ChatResponse:
    return ChatResponse(
        message=ChatMessage(role=MessageRole.ASSISTANT, content=text), delta=delta, raw=answer
    )


def _completion(text: str, delta: str | None, answer: Generation | None) -> CompletionResponse:
    return CompletionResponse(text=text, delta=delta, raw=answer)


def _stream(
    chunks: Iterator[Chunk], response: Callable[[str, str | None, Generation | None], R]
) -> Generator[R]:
    text = ""
    try:
        for chunk in chunks:
            text += chunk.text
            yield response(text, chunk.text, chunk.generation)
    finally:
        if isinstance(chunks, Generator):
            chunks.close()


async def _astream(
    chunks: Any, response: Callable[[str, str | None, Generation | None], R]
) -> AsyncGenerator[R]:
    text = ""
    async with aclosing(chunks) as read:
        async for chunk in read:
            text += chunk.text
            yield response(text, chunk.text, chunk.generation)
