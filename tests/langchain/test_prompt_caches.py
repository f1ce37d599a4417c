"""Prompt tokens in a provider's cache, through LangChain's own messages."""

from __future__ import annotations

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from langchain_surerag import reader_from_model
from surerag.messages import SamplingParams
from tests.langchain.conftest import chat
from tests.servers.fake_openai import FakeOpenAI, Quirks
from tests.servers.toy_model import Script, split

PROMPTS = ["Ada the painter was born in Velm. Where?", "Ada the painter was born in Velm. When?"]


def test_what_a_server_had_in_its_cache_is_counted() -> None:
    with FakeOpenAI(Script(lambda _: "in Velm"), Quirks(prefix_cache=True)) as server:
        reader = reader_from_model(chat(server), max_concurrency=1)
        [[first], [second]] = reader.generate(PROMPTS, SamplingParams(trace="none"))
        assert first.cached_tokens == 0
        assert 0 < second.cached_tokens < second.prompt_tokens
        *_, last = reader.stream(PROMPTS[0], SamplingParams(trace="none"))
        assert last.generation is not None
        assert last.generation.cached_tokens == len(split(PROMPTS[0]))
        assert reader.usage.cached_tokens == second.cached_tokens + last.generation.cached_tokens


def test_what_langchain_counts_of_any_provider_is_counted() -> None:
    # As langchain-anthropic tells it: what was read from the cache is among the input.
    message = AIMessage(
        "in Velm",
        usage_metadata={
            "input_tokens": 100,
            "output_tokens": 2,
            "total_tokens": 102,
            "input_token_details": {"cache_read": 90, "cache_creation": 4},
        },
    )
    reader = reader_from_model(GenericFakeChatModel(messages=iter([message])))
    [[answer]] = reader.generate(PROMPTS[:1], SamplingParams(trace="none"))
    assert (answer.prompt_tokens, answer.cached_tokens) == (100, 90)
    assert reader.usage.cached_tokens == 90
