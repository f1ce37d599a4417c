"""Read the question and the conversation from all forms of input that LangChain's pipelines pass."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self, TypeVar

from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue
from pydantic import BaseModel, ConfigDict, Field, model_validator

from surerag import SamplingParams
from surerag.effects import (
    Effect,
    Generate,
    ModelRole,
    Program,
    Retrieve,
    StartGeneration,
    emit,
    handled,
    perform,
)
from surerag.errors import MISCONFIGURED, InputError, check_question
from surerag.messages import EVENT_SENTENCES, Message, Role, Template
from surerag.prompts import in_conversation
from surerag.readers import in_plain_words

ChainInput = str | BaseMessage | PromptValue | Sequence[BaseMessage] | dict[str, Any]
_KEYS = ("question", "input", "query", "messages")
_HISTORY_KEYS = ("chat_history", "history")
R = TypeVar("R")
_QUESTION_TOKENS = 64
"""Tokens that a rewritten question may have, in addition to one token per character of the original."""
_ROLES: Mapping[str, Role] = {"human": "user", "ai": "assistant", "system": "system"}
_TEXT_BLOCKS = ("text", "reasoning", "thinking", "refusal", "tool_use", "tool_call", "function_call")


class QuestionInput(BaseModel):
    """Arguments of a tool that calls a chain."""

    question: str = Field(description="question to answer")


class ConversationInput(BaseModel):
    """The input of a chain: a question, with the conversation before it, if any."""

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)

    question: Any = Field(None, description="question to answer, or messages that end with it")
    input: Any = Field(None, description="another name for question, as in LangChain's chains")
    query: Any = Field(None, description="another name for question, as in RetrievalQA")
    messages: list[Any] | None = Field(None, description="messages that end with the question")
    chat_history: list[Any] | None = Field(None, description="messages before the question")
    history: list[Any] | None = Field(None, description="another name for chat_history")

    @model_validator(mode="before")
    @classmethod
    def _name_question(cls, value: Any) -> Any:
        return value if isinstance(value, Mapping | cls) else {"question": value}

    @model_validator(mode="after")
    def _check_question(self) -> Self:
        try:
            query_of(self)
        except InputError as error:
            raise ValueError(str(error)) from error
        return self


class Query(NamedTuple):
    """A question, and the conversation before it."""

    question: str
    history: tuple[Message, ...] = ()


def query_of(value: Any) -> Query:
    """Return the question and the conversation in an input: a text, messages, a prompt or a mapping.

    Raises:
        InputError: If there is no question, or the input has another type.
    """
    if isinstance(value, BaseModel) and not isinstance(value, BaseMessage | PromptValue):
        value = dict(value)
    if not isinstance(value, Mapping):
        return _query(value)
    key = next((name for name in _KEYS if value.get(name) is not None), None)
    if key is None:
        raise InputError(
            f"the input has no question; its keys are {sorted(map(str, value))}",
            hint='pass the question under the key "question"',
        )
    query = _query(value[key])
    return Query(query.question, (*_history(value, key, query.question), *query.history))


def check_has_question(value: Any) -> None:
    """Raise an InputError if the question in an input is empty; do nothing if no question is found."""
    is_mapping = isinstance(value, Mapping)
    given = [value[name] for name in _KEYS if value.get(name) is not None] if is_mapping else [value]
    texts = [_last_text(one) for one in given]
    if texts and all(text is not None and not text.strip() for text in texts):
        check_question("")


def _last_text(value: Any) -> str | None:
    value = value.to_messages() if isinstance(value, PromptValue) else value
    if isinstance(value, list | tuple) and value:
        try:
            [value] = convert_to_messages([value[-1]])
        except (ValueError, TypeError, NotImplementedError):
            return None
    value = value.content if isinstance(value, BaseMessage) and value.type == "human" else value
    return value if isinstance(value, str) else None


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
        raise InputError(
            "there is no question in these messages", hint="end the messages with a message of the user"
        )
    return Query(turns[-1].content, turns[:-1])


def _history(values: Mapping[Any, Any], key: str, question: str) -> tuple[Message, ...]:
    """Return the conversation before ``question`` from a chain's input, a mapping.

    If the last message repeats the question, this message is left out. ``key`` is the question's key.
    """
    names = [name for name in _HISTORY_KEYS if values.get(name)]
    names = names or [name for name in values if name != key and _is_conversation(values[name])]
    if len(names) > 1:
        raise InputError(
            f"expected one conversation, found several, under {names}",
            hint=f'pass one conversation, under "{_HISTORY_KEYS[0]}"',
        )
    value = values[names[0]] if names else ()
    turns = (Message("user", value),) if isinstance(value, str) else turns_of(value)
    return turns[:-1] if turns[-1:] == (Message("user", question),) else turns


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, BaseMessage) for one in value)


def turns_of(messages: Sequence[Any]) -> tuple[Message, ...]:
    """Return the messages of user and assistant as surerag's messages; leave system messages out.

    Raises:
        InputError: If an item of ``messages`` is not a message, or a user's message holds more than text.
    """
    try:
        converted = convert_to_messages(list(messages))
    except (ValueError, TypeError, NotImplementedError) as error:
        raise InputError(
            f"expected messages: {error}", hint="pass messages, or pairs of role and text"
        ) from error
    if any(message.type == "system" for message in converted):
        warnings.warn(
            "system messages of a conversation are ignored: put their text into prompts=…", stacklevel=2
        )
    for message in converted:
        blocks = message.content if message.type == "human" and isinstance(message.content, list) else []
        kinds = {str(block.get("type")) for block in blocks if isinstance(block, Mapping)}
        if lost := sorted(kinds.difference(_TEXT_BLOCKS)):
            raise InputError(
                f"the user's message holds {', '.join(lost)}, but only text can be used",
                hint="pass text only, or use LazyRetrievalMiddleware, which gives the model whole messages",
            )
    return spoken_turns(converted)


def spoken_turns(messages: Sequence[BaseMessage]) -> tuple[Message, ...]:
    """Return the texts of user and assistant as surerag's messages; leave other messages out."""
    spoken = (one for one in messages if one.type == "human" or (one.type == "ai" and str(one.text)))
    return tuple(Message(role_of(message.type), str(message.text)) for message in spoken)


def role_of(kind: str) -> Role:
    """Return the role for the type of a LangChain message: ``"user"`` for ``"human"``, for example."""
    return _ROLES.get(kind, "user")


def standalone_question(
    question: str, history: Sequence[Message], prompt: Template, role: ModelRole = "rewriter"
) -> Program[str]:
    """Have a model rewrite a question so that the question is clear without the conversation ``history``.

    If the model fails, or its text is cut off, the question stays unchanged, and a warning is emitted.
    """
    prompt_turns = in_conversation(history, prompt.render(query=question))
    # A long question has a long rewrite, and a question has at most as many tokens as characters.
    sampling = SamplingParams(max_tokens=_QUESTION_TOKENS + len(question), trace="none")
    try:
        [[written]] = yield from perform(Generate([prompt_turns], sampling, role=role))
    except MISCONFIGURED:
        raise
    except Exception as error:
        failure = in_plain_words(error)
    else:
        failure = f"the rewritten question was {'withheld' if written.finish != 'length' else 'cut off'}"
        if not written.is_cut:
            alone = written.text.strip() or question
            yield from emit("conversation.condensed", question=question, alone=alone)
            return alone
    yield from emit("conversation.not_condensed", warning=True, question=question, reason=failure)
    return question


def with_conversation(
    program: Program[R], history: Sequence[Message], searched: str, ends: Callable[..., Any]
) -> Program[R]:
    """Return a method's program that puts ``history`` before each prompt, and searches with ``searched``.

    ``history`` is the earlier conversation, and ``searched`` is the query of every search. ``ends`` is passed
    to :func:`surerag.effects.handled`.
    """

    def handle(effect: Effect[Any]) -> Program[Any]:
        match effect:
            case Retrieve():
                effect = replace(effect, query=searched)
            case Generate() | StartGeneration():
                effect = replace(effect, prompts=[in_conversation(history, one) for one in effect.prompts])
        return (yield effect)

    return handled(program, handle, ends)


EVENT_SENTENCES |= {
    "conversation.condensed": "The question was rewritten to stand alone",
    "conversation.not_condensed": "The question could not be rewritten to stand alone and is asked as it is",
}
