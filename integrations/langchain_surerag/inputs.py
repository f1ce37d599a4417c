"""Inputs of chains, in the forms in which LangChain's pipelines give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue
from pydantic import BaseModel, Field

from langchain_surerag.documents import passages_of
from surerag.errors import InputError
from surerag.messages import Message, Passage, Role

ChainInput = str | BaseMessage | PromptValue | Sequence[BaseMessage] | dict[str, Any]
_KEYS = ("question", "input", "query", "messages")
_ROLES: Mapping[str, Role] = {"human": "user", "ai": "assistant", "system": "system"}


class QuestionInput(BaseModel):
    """Arguments of a chain that is used as a tool."""

    question: str = Field(description="question to answer")


class SearchInput(BaseModel):
    """Arguments of a rewriter that is used as a tool."""

    question: str = Field(description="question to search for")


class Asked(NamedTuple):
    """A question, the conversation before it, and gold passages where mode ``"oracle"`` needs them."""

    question: str
    history: tuple[Message, ...] = ()
    oracle: list[Passage] | None = None


def asked(given: Any) -> Asked:
    """Read a question and its conversation, in any form in which LangChain hands them over.

    These are a text, a message, messages, a prompt's value, an arguments model, or a mapping. A mapping has
    the question under ``question``, ``input``, ``query`` or ``messages``, itself a text, a message or
    messages, and may have a conversation under ``chat_history``. Of messages the last one is the question,
    and those before it belong to the conversation; system messages are instructions to another model, and
    tools' messages its notes: both are left out.

    Raises:
        InputError: If there is no question, or it is no text.
    """
    if isinstance(given, BaseModel) and not isinstance(given, BaseMessage | PromptValue):
        given = given.model_dump()
    if not isinstance(given, Mapping):
        return _spoken(given)
    key = next((name for name in _KEYS if name in given), None)
    if key is None:
        raise InputError(
            f"there is no question among {sorted(map(str, given))}", hint='pass it under the key "question"'
        )
    found = _spoken(given[key])
    documents = given.get("documents")
    return Asked(
        found.question,
        (*_history(given.get("chat_history")), *found.history),
        None if documents is None else passages_of(documents),
    )


def _spoken(given: Any) -> Asked:
    if isinstance(given, str):
        return Asked(given)
    if isinstance(given, PromptValue):
        given = given.to_messages()
    if isinstance(given, BaseMessage):
        given = [given]
    if not isinstance(given, Sequence):
        raise InputError(
            f"expected a question, got {type(given).__name__}",
            hint='pass a str, messages, {"question": …} or {"messages": […]}',
        )
    turns = turns_of(given)
    if not turns or turns[-1].role != "user":
        raise InputError("there is no question in these messages", hint="end them with the user's message")
    return Asked(turns[-1].content, turns[:-1])


def _history(given: Any) -> tuple[Message, ...]:
    if isinstance(given, str):
        return (Message("user", given),) if given.strip() else ()
    return turns_of(given or ())


def turns_of(messages: Sequence[Any]) -> tuple[Message, ...]:
    """Return what user and assistant said to each other.

    Raises:
        InputError: If these are no messages.
    """
    try:
        found = convert_to_messages(list(messages))
    except (ValueError, TypeError, NotImplementedError) as error:
        raise InputError(
            f"expected messages: {error}", hint="pass messages, or pairs of role and text"
        ) from error
    # What an assistant only did, by tools, it did not say.
    spoken = [one for one in found if one.type == "human" or (one.type == "ai" and one.text)]
    return tuple(Message(role_of(message.type), str(message.text)) for message in spoken)


def role_of(kind: str) -> Role:
    """Return who speaks in a message of LangChain's."""
    return _ROLES.get(kind, "user")


def joined(chunks: list[Any]) -> Any:
    """Put an input together that came in chunks, as LangChain's own runnables do.

    Raises:
        InputError: If nothing came.
    """
    if not chunks:
        raise InputError("there is no question", hint="pass a str or a mapping")
    whole, *more = chunks
    for chunk in more:
        try:
            whole = whole + chunk
        except TypeError:
            whole = chunk
    return whole
