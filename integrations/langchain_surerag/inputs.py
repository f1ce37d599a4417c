"""Inputs of chains, in the forms in which LangChain's pipelines give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue
from pydantic import BaseModel, Field

from langchain_surerag.documents import passages_of
from surerag.errors import InputError
from surerag.types import Message, Passage, Role

ChainInput = str | dict[str, Any]
_KEYS = ("question", "input", "query")
_ROLES: Mapping[str, Role] = {"human": "user", "ai": "assistant", "system": "system"}


class QuestionInput(BaseModel):
    """Arguments of a chain that is used as a tool."""

    question: str = Field(description="question to answer")


class Question(NamedTuple):
    """A question, and gold passages where mode ``"oracle"`` needs them."""

    text: str
    oracle: list[Passage] | None = None


def question_of(given: Any) -> Question:
    """Read a question from a text, a mapping or an arguments model.

    Raises:
        InputError: If there is none, or it is no text.
    """
    if isinstance(given, BaseModel):
        given = given.model_dump()
    if isinstance(given, str):
        return Question(given)
    if not isinstance(given, Mapping):
        raise InputError(
            f"expected a question, got {type(given).__name__}", hint='pass a str or {"question": …}'
        )
    key = next((name for name in _KEYS if name in given), None)
    if key is None:
        raise InputError(
            f"there is no question among {sorted(map(str, given))}", hint='pass it under the key "question"'
        )
    if not isinstance(given[key], str):
        raise InputError(f"the question is a {type(given[key]).__name__}", hint="pass a str")
    documents = given.get("documents")
    return Question(given[key], None if documents is None else passages_of(documents))


class Asked(NamedTuple):
    """A question, and the conversation before it."""

    question: str
    history: tuple[Message, ...] = ()


def asked(given: Any) -> Asked:
    """Read a question and its conversation from a text, a mapping, a prompt or messages.

    A mapping has the question under ``question``, ``input`` or ``query``, and a conversation under
    ``chat_history`` if there is one. Of a prompt or of messages, the last one is the question; system
    messages are instructions to another model, and are left out.

    Raises:
        InputError: If there is no question, or it is no text.
    """
    if isinstance(given, PromptValue):
        given = given.to_messages()
    if isinstance(given, BaseMessage):
        given = [given]
    if isinstance(given, Sequence) and not isinstance(given, str):
        turns = [turn for turn in _turns(given) if turn.role != "system"]
        if not turns or turns[-1].role != "user":
            raise InputError(
                "there is no question in these messages", hint="end them with the user's message"
            )
        return Asked(turns[-1].content, tuple(turns[:-1]))
    question = question_of(given).text
    history = given.get("chat_history") if isinstance(given, Mapping) else None
    if isinstance(history, str):
        history = [("human", history)] if history.strip() else []
    return Asked(question, _turns(history or ()))


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


def _turns(messages: Sequence[Any]) -> tuple[Message, ...]:
    found = convert_to_messages(list(messages))
    return tuple(Message(_ROLES.get(message.type, "user"), str(message.text)) for message in found)
