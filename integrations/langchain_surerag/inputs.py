"""Inputs of chains, in the forms in which LangChain's pipelines pass them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue
from pydantic import BaseModel, Field

from surerag.errors import InputError
from surerag.messages import Message, Role

ChainInput = str | BaseMessage | PromptValue | Sequence[BaseMessage] | dict[str, Any]
_KEYS = ("question", "input", "query", "messages")
_ROLES: Mapping[str, Role] = {"human": "user", "ai": "assistant", "system": "system"}
_TEXT_BLOCKS = ("text", "reasoning", "thinking", "refusal", "tool_use", "tool_call", "function_call")


class QuestionInput(BaseModel):
    """Arguments of a chain that is used as a tool."""

    question: str = Field(description="question to answer")


class Query(NamedTuple):
    """A question, and the conversation before it."""

    question: str
    history: tuple[Message, ...] = ()


def query_of(value: Any) -> Query:
    """Read a question and its conversation, in any form in which LangChain passes them.

    These are a text, a message, messages, a prompt's value, an arguments model, or a mapping. A mapping has
    the question under ``question``, ``input``, ``query`` or ``messages``, itself a text, a message or
    messages, and may have a conversation under ``chat_history``; other keys, such as those of a graph's
    state, are not read. Of messages the last one is the question, and those before it belong to the
    conversation; system messages and those of tools are left out.
    """
    if isinstance(value, BaseModel) and not isinstance(value, BaseMessage | PromptValue):
        value = value.model_dump()
    if not isinstance(value, Mapping):
        return _query(value)
    key = next((name for name in _KEYS if name in value), None)
    if key is None:
        raise InputError(
            f"there is no question among {sorted(map(str, value))}", hint='pass it under the key "question"'
        )
    query = _query(value[key])
    return Query(query.question, (*_history(value.get("chat_history")), *query.history))


def _query(value: Any) -> Query:
    if isinstance(value, str):
        return Query(value)
    if isinstance(value, PromptValue):
        value = value.to_messages()
    if isinstance(value, BaseMessage):
        value = [value]
    if not isinstance(value, Sequence):
        raise InputError(
            f"expected a question, got {type(value).__name__}",
            hint='pass a str, messages, {"question": …} or {"messages": […]}',
        )
    turns = turns_of(value)
    if not turns or turns[-1].role != "user":
        raise InputError("there is no question in these messages", hint="end them with the user's message")
    return Query(turns[-1].content, turns[:-1])


def _history(value: Any) -> tuple[Message, ...]:
    if isinstance(value, str):
        return (Message("user", value),) if value.strip() else ()
    return turns_of(value or ())


def turns_of(messages: Sequence[Any]) -> tuple[Message, ...]:
    """Return the turns of user and assistant."""
    try:
        converted = convert_to_messages(list(messages))
    except (ValueError, TypeError, NotImplementedError) as error:
        raise InputError(
            f"expected messages: {error}", hint="pass messages, or pairs of role and text"
        ) from error
    spoken = [one for one in converted if one.type == "human" or (one.type == "ai" and str(one.text))]
    for message in spoken:
        blocks = message.content if isinstance(message.content, list) else []
        kinds = {str(block.get("type")) for block in blocks if isinstance(block, Mapping)}
        if message.type == "human" and (lost := sorted(kinds.difference(_TEXT_BLOCKS))):
            raise InputError(
                f"the user's message holds {', '.join(lost)}, and only text is read",
                hint="leave it out, or use LazyRetrievalMiddleware, which passes the message on whole",
            )
    return tuple(Message(role_of(message.type), str(message.text)) for message in spoken)


def role_of(kind: str) -> Role:
    """Return the role of a kind of LangChain's messages."""
    return _ROLES.get(kind, "user")
