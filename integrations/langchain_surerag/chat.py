"""Use a reader of surerag, such as a local model, as a LangChain chat model with certainties."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field

from langchain_surerag.inputs import role_of
from langchain_surerag.watching import METADATA_KEY
from surerag import SamplingParams, Services, certainty_of
from surerag.drivers import arun, astream, run, stream
from surerag.effects import Generate, Program, perform
from surerag.messages import Generation, Message
from surerag.options import CheckedFields, check_known
from surerag.readers import as_reader


class ChatReader(CheckedFields, BaseChatModel):
    """A LangChain chat model that answers with a reader of surerag, such as a local Hugging Face model.

    Concurrent requests are generated in one batch. The message of each answer has the certainty of the
    answer in ``response_metadata["certainty"]``. The certainty is computed from exact entropies if the reader
    returns them. Tool calls are not supported.

    Args:
        reader: A ``TransformersReader``, or any other reader of surerag.
        temperature: Temperature of the answers, at least 0; 0 is greedy decoding.
        max_tokens: Maximum length of an answer, in tokens; None is the reader's own limit.
        seed: Seed of the random numbers; with the same seed, samples are the same.

    Other arguments are those of LangChain's ``BaseChatModel``. A call takes ``temperature``, ``max_tokens``,
    ``seed`` and ``stop``, for this call only.

    Raises:
        ConfigurationError: If ``reader`` is not a reader, a name is unknown, or a value is out of bounds.

    Example:
        >>> from surerag import FakeReader
        >>> message = ChatReader(FakeReader(["Velm"], entropy=0.25)).invoke("Where was Ada born?")
        >>> message.content, message.response_metadata["certainty"]["uncertainty"]
        ('Velm', 0.25)
    """

    reader: Any = Field(exclude=True, repr=False)
    """A ``TransformersReader``, or any other reader of surerag."""

    temperature: float = Field(0.0, ge=0)
    """Temperature of the answers; 0 is greedy decoding."""

    max_tokens: int | None = Field(None, ge=1)
    """Maximum length of an answer, in tokens; None is the reader's own limit."""

    seed: int = 0
    """Seed of the random numbers; with the same seed, samples are the same."""

    def __init__(self, reader: Any, **settings: Any) -> None:
        super().__init__(reader=as_reader(reader), **settings)

    @property
    def _llm_type(self) -> str:
        return "surerag"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        settings = {"temperature": self.temperature, "max_tokens": self.max_tokens, "seed": self.seed}
        return {"model": self.reader.name, **settings}

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **settings: Any,
    ) -> ChatResult:
        return _result(run(self._program(messages, stop, settings), Services(reader=self.reader)))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **settings: Any,
    ) -> ChatResult:
        return _result(await arun(self._program(messages, stop, settings), Services(reader=self.reader)))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **settings: Any,
    ) -> Iterator[ChatGenerationChunk]:
        with stream(self._program(messages, stop, settings), Services(reader=self.reader)) as answer:
            for piece in answer:
                yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
            yield _last_chunk(answer.result)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **settings: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        program = self._program(messages, stop, settings)
        async with await astream(program, Services(reader=self.reader)) as answer:
            async for piece in answer:
                yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
            yield _last_chunk(answer.result)

    def _program(
        self, messages: Sequence[BaseMessage], stop: Sequence[str] | None, settings: Mapping[str, Any]
    ) -> Program[Generation]:
        chosen: dict[str, Any] = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
        }
        settings = {name: value for name, value in settings.items() if name != "stream"}  # is LangChain's
        check_known("a call of ChatReader", settings, {*chosen, "stop"})
        chosen |= settings
        chosen["max_tokens"] = chosen["max_tokens"] or self.reader.max_tokens
        sampling = SamplingParams(stop=tuple(stop or ()), trace="optional_entropy", **chosen)
        turns = tuple(Message(role_of(one.type), str(one.text)) for one in messages)
        [[answer]] = yield from perform(Generate([turns], sampling, answer=True))
        return answer


def _metadata(answer: Generation) -> dict[str, Any]:
    certainty = certainty_of(answer.trace, is_cut=answer.is_cut)
    return {"finish_reason": answer.finish, METADATA_KEY: certainty.to_dict()}


def _usage(answer: Generation) -> UsageMetadata:
    prompt, completion = answer.prompt_tokens, answer.completion_tokens + answer.thinking_tokens
    usage = UsageMetadata(input_tokens=prompt, output_tokens=completion, total_tokens=prompt + completion)
    return usage | {"output_token_details": {"reasoning": answer.thinking_tokens}}


def _result(answer: Generation) -> ChatResult:
    message = AIMessage(answer.text, response_metadata=_metadata(answer), usage_metadata=_usage(answer))
    return ChatResult(generations=[ChatGeneration(message=message)])


def _last_chunk(answer: Generation) -> ChatGenerationChunk:
    message = AIMessageChunk(
        content="",
        response_metadata=_metadata(answer),
        usage_metadata=_usage(answer),
        chunk_position="last",
    )
    return ChatGenerationChunk(message=message)
