"""LLMs of one's own: scripted, with log-probabilities, without streaming, as an agent needs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
    LogProb,
)
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.question_gen.types import BaseQuestionGenerator, SubQuestion
from llama_index.core.schema import QueryBundle
from pydantic import PrivateAttr

from tests.llama_index.corpus import KNOWN, UNKNOWN, answer
from tests.servers.fake_openai import split


class Own(CustomLLM):
    """An LLM of one's own: a function of the prompt; with ``sure``, log-probabilities in ``logprobs``."""

    reply_to: Callable[[str], str] = answer
    sure: float | None = None
    temperature: float = 0.0
    _calls: list[dict[str, Any]] = PrivateAttr(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(model_name="own", num_output=64)

    def _listed(self, word: str) -> list[LogProb]:
        p = self.sure or 0.5
        return [LogProb(token=word, logprob=math.log(p)), LogProb(token=" or", logprob=math.log(1 - p))]

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self._calls.append({"prompt": prompt, **kwargs})
        words = split(self.reply_to(prompt))[: kwargs.get("max_tokens")]
        listed = None if self.sure is None else [self._listed(word) for word in words]
        return CompletionResponse(text="".join(words), logprobs=listed)

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        self._calls.append({"prompt": prompt, "streamed": True, **kwargs})
        words = split(self.reply_to(prompt))[: kwargs.get("max_tokens")]
        for place, word in enumerate(words):
            listed = None if self.sure is None else [self._listed(word)]
            yield CompletionResponse(text="".join(words[: place + 1]), delta=word, logprobs=listed)


class Unstreamed(Own):
    """Has no streaming."""

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError("no streaming")


class Scripted(Own):
    """Says one text after the other."""

    texts: list[str]

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        self._calls.append({"prompt": prompt, **kwargs})
        return CompletionResponse(text=self.texts[len(self._calls) - 1])

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        whole = self.complete(prompt)
        return iter([CompletionResponse(text=whole.text, delta=whole.text)])


class Calling(FunctionCallingLLM):
    """Calls the tool once with the user's question, and then repeats what the tool returned."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_function_calling_model=True, is_chat_model=True)

    def _reply(self, messages: Sequence[ChatMessage]) -> ChatResponse:
        last = messages[-1]
        if last.role == "tool":
            return ChatResponse(message=ChatMessage(role="assistant", content=f"Tool: {last.content}"))
        calls = [{"id": "1", "name": "atlas", "input": last.content}]
        return ChatResponse(message=ChatMessage(role="assistant", additional_kwargs={"tool_calls": calls}))

    def _prepare_chat_with_tools(self, tools: Any, chat_history: Any = None, **kwargs: Any) -> dict[str, Any]:
        return {"messages": chat_history}

    def get_tool_calls_from_response(self, response: ChatResponse, **kwargs: Any) -> list[ToolSelection]:
        calls = response.message.additional_kwargs.get("tool_calls", [])
        return [
            ToolSelection(tool_id=call["id"], tool_name=call["name"], tool_kwargs={"input": call["input"]})
            for call in calls
        ]

    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return self._reply(messages)

    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        return self._reply(messages)

    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        return iter([self._reply(messages)])

    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> Any:
        async def pieces() -> Any:
            yield self._reply(messages)

        return pieces()

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError

    acomplete = stream_complete = astream_complete = complete


class Splitting(BaseQuestionGenerator):
    """Asks both questions."""

    def generate(self, tools: Any, query: QueryBundle) -> list[SubQuestion]:
        return [SubQuestion(sub_question=text, tool_name="atlas") for text in (KNOWN, UNKNOWN)]

    async def agenerate(self, tools: Any, query: QueryBundle) -> list[SubQuestion]:
        return self.generate(tools, query)

    def _get_prompts(self) -> dict[str, Any]:
        return {}

    def _update_prompts(self, prompts: Any) -> None:
        pass
