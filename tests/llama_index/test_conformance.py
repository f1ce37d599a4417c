"""Readers made of LLMs pass what every reader passes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from llama_index.core.base.llms.types import CompletionResponse, LLMMetadata
from llama_index.core.llms import CustomLLM
from llama_index.llms.openai_like import OpenAILike

from llama_index_surerag import reader_from_llm
from surerag.readers.conformance import check_reader
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import ToyModel


class Words(CustomLLM):
    """Says something that depends on the prompt, a word at a time."""

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        return CompletionResponse(text="".join(self._words(prompt)))

    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> Iterator[Any]:
        return (CompletionResponse(text=word, delta=word) for word in self._words(prompt))

    def _words(self, prompt: str) -> list[str]:
        return [token.text for token in ToyModel().say(prompt, 0.0, 0, 16).tokens]


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
def test_openai_like(chat: bool) -> None:
    with FakeOpenAI() as server:
        llm = OpenAILike(
            model="toy", api_base=server.base_url, api_key="x", is_chat_model=chat, max_retries=0
        )
        report = check_reader(reader_from_llm(llm))
    assert report.passed, str(report)


def test_an_llm_of_text_alone() -> None:
    report = check_reader(reader_from_llm(Words()))
    assert report.passed, str(report)
