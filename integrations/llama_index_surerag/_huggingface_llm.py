"""LlamaIndex's ``HuggingFaceLLM`` as a local reader: its model and tokenizer, its own way with prompts."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from llama_index_surerag._prompting import messages_for, text_for
from surerag import TransformersReader
from surerag.types import Message, Prompt


def reader_from_huggingface_llm(llm: Any) -> TransformersReader:
    """Return a reader over the LLM's model.

    Prompts are wrapped as the LLM wraps them, and begin as its tokenizer begins a text. Control tokens
    of those wrappings are control tokens; inside a document, they stay text. What ``generate_kwargs``
    say gives way to what a method asks for.
    """
    window = min(llm.context_window, _window(llm._model) or llm.context_window)
    reader = TransformersReader(llm._model, _as_template(llm), window=window)
    if llm.stopping_ids:
        reader._model.end_tokens |= frozenset(llm.stopping_ids)
    return reader


def _window(model: Any) -> int | None:
    size = getattr(model.config, "max_position_embeddings", None)
    return size if isinstance(size, int) else None


def _as_template(llm: Any) -> Any:
    """Return a copy of the LLM's tokenizer whose chat template is the LLM's own prompt wrapping."""
    tokenizer = copy.copy(llm._tokenizer)
    opening = _opening(tokenizer)

    def render(turns: Sequence[Mapping[str, str]], **_: Any) -> str:
        text = _rendered(llm, tuple(Message(turn["role"], turn["content"]) for turn in turns))  # type: ignore[arg-type]  # roles of ours
        return text if text.startswith(opening) else opening + text

    tokenizer.apply_chat_template = render
    # Only tells that there is a template, and which markup it writes: the wrapping around no text at all.
    tokenizer.chat_template = str(llm._tokenizer.chat_template or "") + _rendered(llm, "x")
    return tokenizer


def _rendered(llm: Any, prompt: Prompt) -> str:
    if not llm.metadata.is_chat_model:
        return text_for(llm, prompt)
    return str(llm.messages_to_prompt(messages_for(llm, prompt)))


def _opening(tokenizer: Any) -> str:
    """Return what the tokenizer puts before a text, such as ``<s>``."""
    ids, bare = list(tokenizer("a")["input_ids"]), list(tokenizer("a", add_special_tokens=False)["input_ids"])
    return str(tokenizer.decode(ids[: ids.index(bare[0])])) if bare and bare[0] in ids else ""
