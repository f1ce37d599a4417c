"""A HuggingFaceLLM as a reader: its model and tokenizer, its user's way of writing prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from llama_index.core.base.llms.generic_utils import messages_to_prompt as generic_messages_to_prompt
from llama_index.core.llms.llm import default_completion_to_prompt
from surerag.adapting import takes_template

from llama_index_surerag.prompts import messages_for, text_for
from surerag.messages import Message
from surerag.readers import BaseReader


def reader_from_huggingface_llm(llm: Any, *, chat_template: bool, **thinking: Any) -> BaseReader:
    """Return a reader over the LLM's model; torch is imported here, when there is such a model.

    Prompts are wrapped as the user has the LLM wrap them, else by the tokenizer's chat template, and begin as
    its tokenizer begins a text. Control tokens of those wrappings are control tokens; inside a document, they
    stay text. What ``generate_kwargs`` say gives way to what a method asks for.
    """
    from surerag import TransformersReader

    def render(messages: Sequence[Message]) -> str:
        prompt = tuple(messages)
        if not llm.metadata.is_chat_model:
            return text_for(llm, prompt)
        return str(llm.messages_to_prompt(messages_for(llm, prompt)))

    templated = (
        chat_template
        and not _renders(llm)
        and takes_template(llm._tokenizer, type(llm).__name__, "reader_from_llm")
    )
    own: Callable[[Sequence[Message]], str] | None = render
    if templated:
        own = _after_system(llm._tokenizer, llm.system_prompt) if llm.system_prompt else None
    return TransformersReader(
        llm._model,
        llm._tokenizer,
        window=min(llm.context_window, _window(llm._model) or llm.context_window),
        end_tokens=llm.stopping_ids or (),
        render=own,
        max_tokens=llm.max_new_tokens,
        **thinking,
    )


def _renders(llm: Any) -> bool:
    """Whether the user told a HuggingFaceLLM how to write its prompts."""
    turns = getattr(llm.messages_to_prompt, "__func__", llm.messages_to_prompt)
    return bool(
        llm.is_chat_model
        or turns not in (type(llm)._tokenizer_messages_to_prompt, generic_messages_to_prompt)
        or llm.completion_to_prompt not in (None, default_completion_to_prompt)
        or (llm.query_wrapper_prompt and llm.query_wrapper_prompt.get_template() != "{query_str}")
    )


def _after_system(tokenizer: Any, system_prompt: str) -> Callable[[Sequence[Message]], str]:
    """Return what writes a conversation by a chat template, after the LLM's own system prompt."""

    def written(messages: Sequence[Message]) -> str:
        turns = [{"role": role, "content": content} for role, content in messages]
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))

    def render(messages: Sequence[Message], role: Literal["system", "user"]) -> str:
        [first, *others] = messages
        if first.role != role:
            return written([Message(role, system_prompt), *messages])
        return written([Message(role, f"{system_prompt}\n\n{first.content}"), *others])

    try:
        render([Message("user", "?")], "system")
    except Exception:
        # A template that knows no system role raises whatever it likes; its text then opens the first turn.
        return lambda messages: render(_without_system(messages), "user")
    return lambda messages: render(messages, "system")


def _without_system(messages: Sequence[Message]) -> list[Message]:
    """Return a conversation whose first turn is a user's, and opens with what its system turn said."""
    [first, *others] = messages
    if first.role != "system" or not others:
        return [Message("user", first.content), *others]
    return [Message("user", f"{first.content}\n\n{others[0].content}"), *others[1:]]


def _window(model: Any) -> int | None:
    size = getattr(model.config, "max_position_embeddings", None)
    return size if isinstance(size, int) else None
