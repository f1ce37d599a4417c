"""What a LlamaIndex LLM is handed for a prompt: the same text or turns as from LlamaIndex's own pipelines."""

from __future__ import annotations

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.llms import LLM

from surerag.types import Message, Prompt, as_messages


def messages_for(llm: LLM, prompt: Prompt) -> list[ChatMessage]:
    """Return a prompt as chat turns, after the LLM's own system prompt if it has one."""
    return llm._extend_messages(to_chat_messages(prompt))


def text_for(llm: LLM, prompt: Prompt) -> str:
    """Return a prompt as the text that ``llm.predict`` would complete.

    One user turn goes through ``completion_to_prompt``, a conversation through ``messages_to_prompt``;
    then ``system_prompt`` and ``query_wrapper_prompt`` are put around it.
    """
    [first, *others] = as_messages(prompt)
    if first.role == "user" and not others:
        text = llm.completion_to_prompt(first.content) if llm.completion_to_prompt else first.content
    else:
        text = (
            llm.messages_to_prompt(to_chat_messages(prompt)) if llm.messages_to_prompt else flat_text(prompt)
        )
    return llm._extend_prompt(text)


def flat_text(prompt: Prompt) -> str:
    """Return the contents of a prompt's turns, one below the other."""
    return "\n".join(message.content for message in as_messages(prompt))


def to_chat_messages(prompt: Prompt) -> list[ChatMessage]:
    """Return a prompt's turns as LlamaIndex messages."""
    return [ChatMessage(role=MessageRole(role), content=content) for role, content in as_messages(prompt)]


def from_chat_messages(messages: list[ChatMessage]) -> tuple[Message, ...]:
    """Return LlamaIndex messages as turns of ours; text blocks only.

    Roles that we do not know (tool, developer, …) speak as the user.
    """
    roles = {"system": "system", "developer": "system", "assistant": "assistant"}
    return tuple(
        Message(roles.get(message.role.value, "user"), message.content or "")  # type: ignore[arg-type]  # our three roles
        for message in messages
    )
