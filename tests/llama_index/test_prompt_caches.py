"""Prompt tokens in a provider's cache, through LlamaIndex' own responses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.callbacks import llm_chat_callback

from llama_index_surerag import reader_from_llm
from surerag.messages import SamplingParams
from tests.llama_index.conftest import like
from tests.servers.fake_openai import FakeOpenAI, Quirks
from tests.servers.toy_model import Script, split

PROMPTS = ["Ada the painter was born in Velm. Where?", "Ada the painter was born in Velm. When?"]


@pytest.mark.parametrize("logprobs", [True, False])
def test_what_a_server_had_in_its_cache_is_counted(logprobs: bool) -> None:
    with FakeOpenAI(Script(lambda _: "in Velm"), Quirks(prefix_cache=True)) as server:
        reader = reader_from_llm(like(server), logprobs=logprobs, max_concurrency=1)
        [[first], [second]] = reader.generate(PROMPTS, SamplingParams(trace="none"))
        assert first.cached_tokens == 0
        assert 0 < second.cached_tokens < second.prompt_tokens == len(split(PROMPTS[1]))
        assert reader.usage.cached_tokens == second.cached_tokens


class Told(CustomLLM):
    """Answers with what its service said about it."""

    raw: Any = None

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_chat_model=True)

    @llm_chat_callback()
    def chat(self, messages: Any, **kwargs: Any) -> ChatResponse:
        return ChatResponse(message=ChatMessage(role="assistant", content="in Velm"), raw=self.raw)

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        # Anthropic counts what was in its cache, or was put there, beside the input.
        (
            {"usage": {"input_tokens": 6, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 4}},
            100,
        ),
        (
            {
                "usage": SimpleNamespace(
                    input_tokens=10, cache_read_input_tokens=90, cache_creation_input_tokens=None
                )
            },
            100,
        ),
    ],
)
def test_what_anthropic_tells_is_counted(raw: Any, read: int) -> None:
    reader = reader_from_llm(Told(raw=raw))
    [[answer]] = reader.generate(PROMPTS[:1], SamplingParams(trace="none"))
    assert (answer.prompt_tokens, answer.cached_tokens) == (read, 90)
    assert reader.usage.cached_tokens == 90
