"""Convert LangChain's prompt templates to prompts of surerag: texts, or messages with roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import Any

from langchain_core.messages import BaseMessage

from langchain_surerag.inputs import role_of
from surerag import PromptTemplate
from surerag.errors import PromptError, kind_of
from surerag.framing import PromptText, as_data
from surerag.messages import Message, Prompt, Template


@dataclass(frozen=True)
class ChatPrompt:
    """A prompt of several turns; each turn is a template and keeps its role."""

    name: str = field(compare=False)
    turns: tuple[Message, ...]

    @property
    def text(self) -> str:
        """Text of all turns, for people to read."""
        return "\n".join(turn.content for turn in self.turns)

    def require(self, *slots: str) -> ChatPrompt:
        """Return this prompt; raise a PromptError unless its turns together have exactly these slots."""
        PromptTemplate(self.name, self.text).require(*slots)
        return self

    def render(self, **values: str) -> Prompt:
        """Fill the slots with ``values``.

        If a line of a value looks like a line of the template, ``| `` is put before the line.
        """
        data = as_data(self.text, values)
        turns = [(role, PromptTemplate(self.name, content)) for role, content in self.turns]
        return tuple(
            Message(role, template.render(**{slot: PromptText(data[slot]) for slot in template.slots}))
            for role, template in turns
        )


def prompt_of(name: str, value: Any) -> str | Template:
    """Convert a text, a template of LangChain's, or pairs of role and text to a prompt of surerag.

    ``name`` is the name of the prompt in errors.

    Example:
        >>> from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
        >>> prompt_of("closed_book", PromptTemplate.from_template("Q: {question}"))
        'Q: {question}'
        >>> chat = ChatPromptTemplate([("system", "Be brief."), ("human", "{question}")])
        >>> prompt_of("closed_book", chat).render(question="Where?")
        (Message(role='system', content='Be brief.'), Message(role='user', content='Where?'))
    """
    if isinstance(value, str | ChatPrompt | PromptTemplate):
        return value
    # LangChain's templates import jinja2, so we import them only where they are used.
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.prompts import PromptTemplate as LangChainPrompt

    if isinstance(value, LangChainPrompt):
        return _text(value, value.partial_variables)
    if isinstance(value, ChatPromptTemplate):
        return ChatPrompt(name, tuple(_turn(one, value.partial_variables) for one in value.messages))
    if isinstance(value, Sequence):
        try:
            chat = ChatPromptTemplate([("human" if role == "user" else role, text) for role, text in value])
        except (TypeError, ValueError) as error:
            raise PromptError(
                f"the prompt {name!r} cannot be read: {error}", hint="pass a text, or pairs of role and text"
            ) from error
        return prompt_of(name, chat)
    raise PromptError(
        f"the prompt {name!r} is {kind_of(value)}",
        hint="pass a text, a PromptTemplate or a ChatPromptTemplate of texts",
    )


def plain_prompt(value: Any) -> Any:
    """Return a prompt as JSON values: a text, or pairs of role and text."""
    return [list(turn) for turn in value.turns] if isinstance(value, ChatPrompt) else value.text


def _turn(value: Any, partial: Mapping[str, Any]) -> Message:
    from langchain_core.prompts import PromptTemplate as LangChainPrompt

    if isinstance(value, BaseMessage):
        return Message(role_of(value.type), _escaped(str(value.text)))
    template = getattr(value, "prompt", None)
    if not isinstance(template, LangChainPrompt):
        raise PromptError(
            f"a chat prompt contains {kind_of(value)}",
            hint="use system, human and ai messages of text; pass a conversation with the input, under "
            '"chat_history"',
        )
    [formatted] = value.format_messages(**dict.fromkeys(template.input_variables, ""))
    return Message(role_of(formatted.type), _text(template, {**partial, **template.partial_variables}))


def _text(template: Any, partial: Mapping[str, Any]) -> str:
    if template.template_format != "f-string":
        raise PromptError(
            f"a prompt is in the format {template.template_format}", hint="write it in f-string format"
        )
    pieces: list[str] = []
    for literal, slot, _, _ in Formatter().parse(template.template):
        pieces.append(_escaped(literal))
        if slot is not None and slot in partial:
            value = partial[slot]
            pieces.append(_escaped(str(value() if callable(value) else value)))
        elif slot is not None:
            pieces.append(f"{{{slot}}}")
    return "".join(pieces)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
