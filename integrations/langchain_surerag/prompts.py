"""LangChain's prompt templates as surerag's prompts: texts, and conversations with system messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.prompts import PromptTemplate as LangChainPrompt
from langchain_core.prompts.message import BaseMessagePromptTemplate

from langchain_surerag.inputs import role_of
from surerag.errors import PromptError
from surerag.framing import PromptText, as_data
from surerag.messages import Message, Prompt, Template
from surerag.prompts import PromptTemplate

PromptLike = str | LangChainPrompt | ChatPromptTemplate | Sequence[tuple[str, str]]
"""A template with single braces around its slots; LangChain's own template in f-string format, a chat's
included; or a chat's turns as pairs of role and text."""


class ChatPrompt:
    """A chat template as a prompt of ours: each turn is filled, and keeps its role.

    Args:
        name: Key among the method's prompts.
        turns: Roles and templates; together they have the slots.
    """

    def __init__(self, name: str, turns: Sequence[Message]) -> None:
        self.name = name
        self.turns = tuple(turns)
        self._templates = [PromptTemplate(name, turn.content) for turn in turns]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChatPrompt) and self.turns == other.turns

    def __hash__(self) -> int:
        return hash(self.turns)

    @property
    def text(self) -> str:
        """All turns' texts, for people to read."""
        return "\n".join(turn.content for turn in self.turns)

    def require(self, *slots: str) -> ChatPrompt:
        """Return this prompt if its turns have exactly these slots between them.

        Raises:
            PromptError: If slots are missing or unknown.
        """
        PromptTemplate(self.name, self.text).require(*slots)
        return self

    def render(self, **values: str) -> Prompt:
        """Fill the slots; lines of a value that begin like one of any turn's own are put behind a mark."""
        data = as_data(self.text, values)
        # Marked already, for the lines of all turns: no turn does it again for its own.
        return tuple(
            Message(turn.role, template.render(**{slot: PromptText(data[slot]) for slot in template.slots}))
            for turn, template in zip(self.turns, self._templates, strict=True)
        )


def for_core(given: Mapping[str, PromptLike]) -> dict[str, str | Template]:
    """Return replaced prompts as the core takes them, by name.

    Raises:
        PromptError: If a template is in another format or of another kind.

    Example:
        >>> for_core({"closed_book": LangChainPrompt.from_template("Q: {question}")})
        {'closed_book': 'Q: {question}'}
        >>> chat = ChatPromptTemplate([("system", "Be brief."), ("human", "{question}")])
        >>> for_core({"closed_book": chat})["closed_book"].render(question="Where?")
        (Message(role='system', content='Be brief.'), Message(role='user', content='Where?'))
    """
    return {name: _for_core(name, one) for name, one in given.items()}


def plain(given: Mapping[str, PromptLike]) -> dict[str, Any]:
    """Return prompts as plain values: texts, and pairs of role and text."""
    return {
        name: [list(turn) for turn in one.turns] if isinstance(one, ChatPrompt) else one
        for name, one in for_core(given).items()
    }


def _for_core(name: str, given: Any) -> str | Template:
    match given:
        case str() | ChatPrompt() | PromptTemplate():
            return given
        case LangChainPrompt():
            return _text(given, given.partial_variables)
        case ChatPromptTemplate():
            return ChatPrompt(name, [_turn(one, given.partial_variables) for one in given.messages])
        case Sequence():
            turns = [("human" if role == "user" else role, text) for role, text in given]
            return _for_core(name, ChatPromptTemplate(turns))
        case _:
            raise PromptError(
                f"the prompt {name!r} is a {type(given).__name__}",
                hint="give a text, a PromptTemplate or a ChatPromptTemplate of texts",
            )


def _turn(given: Any, partial: Mapping[str, Any]) -> Message:
    if isinstance(given, BaseMessage):
        return Message(role_of(given.type), _escaped(str(given.text)))
    template = getattr(given, "prompt", None)
    if not isinstance(given, BaseMessagePromptTemplate) or not isinstance(template, LangChainPrompt):
        raise PromptError(
            f"a chat prompt has a {type(given).__name__}",
            hint="use system, human and ai messages of text; a conversation comes with the input, under "
            '"chat_history"',
        )
    [formatted] = given.format_messages(**dict.fromkeys(template.input_variables, ""))
    return Message(role_of(formatted.type), _text(template, {**partial, **template.partial_variables}))


def _text(template: LangChainPrompt, partial: Mapping[str, Any]) -> str:
    """Return a template's text with its partial variables filled in; braces in those stay braces."""
    if template.template_format != "f-string":
        raise PromptError(
            f"a prompt is in the format {template.template_format}", hint="write it in f-string format"
        )
    pieces: list[str] = []
    for literal, slot, _, _ in Formatter().parse(template.template):
        pieces.append(_escaped(literal))
        if slot is not None:
            pieces.append(_filled(slot, partial))
    return "".join(pieces)


def _filled(slot: str, partial: Mapping[str, Any]) -> str:
    if slot not in partial:
        return f"{{{slot}}}"
    value = partial[slot]
    return _escaped(str(value() if callable(value) else value))


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
