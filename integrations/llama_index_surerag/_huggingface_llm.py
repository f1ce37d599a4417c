"""LlamaIndex's ``HuggingFaceLLM`` as a local reader: its model and tokenizer, its own way with prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index_surerag._prompting import messages_for, text_for
from surerag import TransformersReader
from surerag.types import Message


def reader_from_huggingface_llm(llm: Any) -> TransformersReader:
    """Return a reader over the LLM's model.

    Prompts are wrapped as the LLM wraps them, and begin as its tokenizer begins a text. Control tokens
    of those wrappings are control tokens; inside a document, they stay text. What ``generate_kwargs``
    say gives way to what a method asks for.
    """

    def render(messages: Sequence[Message]) -> str:
        prompt = tuple(messages)
        if not llm.metadata.is_chat_model:
            return text_for(llm, prompt)
        return str(llm.messages_to_prompt(messages_for(llm, prompt)))

    return TransformersReader(
        llm._model,
        llm._tokenizer,
        window=min(llm.context_window, _window(llm._model) or llm.context_window),
        end_tokens=llm.stopping_ids or (),
        render=render,
    )


def _window(model: Any) -> int | None:
    size = getattr(model.config, "max_position_embeddings", None)
    return size if isinstance(size, int) else None
