"""surerag's prompts as LlamaIndex templates, and LlamaIndex templates as surerag's prompts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeGuard, TypeVar

from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.bridge.pydantic import field_serializer
from llama_index.core.llms import LLM
from llama_index.core.prompts import (
    BasePromptTemplate,
    ChatPromptTemplate,
    PromptTemplate,
    RichPromptTemplate,
)
from llama_index.core.prompts.base import SelectorPromptTemplate
from llama_index.core.prompts.mixin import PromptDictType, PromptMixin, PromptMixinType
from surerag.adapting import Adapted

from surerag import PromptSet
from surerag.errors import PromptError
from surerag.framing import as_data
from surerag.messages import Message, Prompt, Template, as_messages
from surerag.readers import Reader

T = TypeVar("T")

TemplateLike = str | BasePromptTemplate | Sequence[Sequence[str]] | Mapping[str, Any]
"""A text; any LlamaIndex template; turns of a chat as pairs of role and text; or what ``plain_template`` made
of one of these."""

_STANDS_FOR = {"query_str": ("question", "query", "statement"), "context_str": ("context", "passages")}
"""What LlamaIndex's own templates call the slots."""


class TemplatePrompt:
    """A LlamaIndex template, rendered as a prompt of ours; chat templates keep their turns.

    ``query_str`` may stand for ``question`` (``query``, ``statement``), ``context_str`` for ``context`` or
    ``passages``.

    Args:
        name: Key in ``get_prompts``.
        template: Any LlamaIndex template, with mappings, functions and partial values of its own.
        llm: What a selector template chooses by.
    """

    def __init__(self, name: str, template: BasePromptTemplate, llm: BaseLLM | None = None) -> None:
        self.name = name
        self.template = template.select(llm) if isinstance(template, SelectorPromptTemplate) else template
        self._aliases: dict[str, str] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TemplatePrompt) and self.template == other.template

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def text(self) -> str:
        """The template's text, for people to read."""
        return self.template.get_template()

    def require(self, *slots: str) -> TemplatePrompt:
        """Return this prompt if it has exactly these slots.

        Raises:
            PromptError: If slots are missing or unknown.
        """
        found = TemplatePrompt(self.name, self.template)
        found._aliases = {
            theirs: next(mine for mine in ours if mine in slots)
            for theirs, ours in _STANDS_FOR.items()
            if not {*ours}.isdisjoint(slots)
        }
        mine = found._slots()
        missing, unknown = frozenset(slots) - mine, mine - frozenset(slots)
        # A function may stand for any slot: it is handed all of them.
        if unknown or (missing and not self.template.function_mappings):
            raise PromptError(
                f"prompt {self.name!r} must have the slots {sorted(slots)}, has {sorted(mine)}",
                hint="keep the slots of the prompt that this one replaces; query_str and context_str will do",
            )
        return found

    def render(self, **values: str) -> Prompt:
        """Fill the slots: a text, or the turns of a chat template.

        Lines of a value that begin like the template's own are put behind a mark, as in surerag's prompts.
        """
        data = as_data(_frame(self.template), values)
        known: dict[str, Any] = data | {
            theirs: data[mine] for theirs, mine in self._aliases.items() if mine in data
        }
        if isinstance(self.template, ChatPromptTemplate) or _is_rich_chat(self.template):
            return from_chat_messages(self.template.format_messages(**known))
        return self.template.format(**known)

    def _slots(self) -> frozenset[str]:
        mapped = {theirs: mine for mine, theirs in (self.template.template_var_mappings or {}).items()}
        variables = (mapped.get(variable, variable) for variable in self.template.template_vars)
        filled = {*self.template.kwargs, *(self.template.function_mappings or {})}
        found = {self._aliases.get(name, name) for name in variables}
        return frozenset(found - {self._aliases.get(name, name) for name in filled})


def _is_rich_chat(template: BasePromptTemplate) -> bool:
    return isinstance(template, RichPromptTemplate) and template.is_chat_template


def _frame(template: BasePromptTemplate) -> str:
    """Return a template's text as the core writes its own: slots in single braces, tags away."""
    text = template.get_template()
    if isinstance(template, RichPromptTemplate):
        text = re.sub(r"{%.*?%}", "\n", text, flags=re.DOTALL)
        text = re.sub(r"{{-?\s*(\w+).*?}}", r"{\1}", text, flags=re.DOTALL)
    return text


def template_of(given: TemplateLike) -> BasePromptTemplate:
    """Return what a user wrote, or ``plain_template`` made of it, as a LlamaIndex template.

    Raises:
        PromptError: If it had functions, which cannot be written down.
    """
    if isinstance(given, BasePromptTemplate):
        return given
    if isinstance(given, str):
        return PromptTemplate(given)
    if not isinstance(given, Mapping):
        return ChatPromptTemplate([ChatMessage(role=role, content=text) for role, text in given])
    if given.get("functions"):
        raise PromptError(
            f"the functions of this template were not written down: {', '.join(given['functions'])}",
            hint="pass the template anew: prompts={name: template}",
        )
    text, mappings = given["template"], given.get("template_var_mappings")
    partial = dict(given.get("partial") or {})
    if given.get("rich"):
        return RichPromptTemplate(text, template_var_mappings=mappings, **partial)
    if isinstance(text, str):
        return PromptTemplate(text, template_var_mappings=mappings, **partial)
    turns = [ChatMessage(role=role, content=content) for role, content in text]
    return ChatPromptTemplate(turns, template_var_mappings=mappings, **partial)


def plain_template(given: TemplateLike, llm: object = None) -> str | list[list[str]] | dict[str, Any]:
    """Return a template as plain values that :func:`template_of` reads.

    Args:
        given: Any template.
        llm: What a selector chooses by; its choice is written down.

    Returns:
        Its text, or a list of role and text; with mappings, partial values or the syntax of Jinja, a mapping
        that holds them besides. Functions are only named.
    """
    if isinstance(given, SelectorPromptTemplate):
        given = given.select(llm if isinstance(llm, BaseLLM) else None)
    if not isinstance(given, BasePromptTemplate):
        if isinstance(given, str | Mapping):
            return given if isinstance(given, str) else dict(given)
        return [list(turn) for turn in given]
    text: str | list[list[str]] = given.get_template()
    if isinstance(given, ChatPromptTemplate):
        text = [[message.role.value, message.content or ""] for message in given.message_templates]
    more = {
        "rich": isinstance(given, RichPromptTemplate),
        "template_var_mappings": dict(given.template_var_mappings or {}),
        "partial": {name: value for name, value in given.kwargs.items() if isinstance(value, str)},
        "functions": sorted(
            [*(given.function_mappings or {}), *(n for n, value in given.kwargs.items() if callable(value))]
        ),
    }
    kept = {name: value for name, value in more.items() if value}
    return {"template": text, **kept} if kept else text


def for_core(given: Mapping[str, Any], llm: Any = None) -> dict[str, Template | str]:
    """Return replaced prompts as the core takes them.

    Texts stay texts, unless they have LlamaIndex's own names for slots.

    Args:
        given: Templates by name, as the user wrote them.
        llm: What selector templates choose by, if it is a LlamaIndex LLM.
    """
    chooser = llm if isinstance(llm, BaseLLM) else None
    return {
        name: one if _has_our_slots(one) else TemplatePrompt(name, template_of(one), chooser)
        for name, one in given.items()
    }


def _has_our_slots(given: TemplateLike) -> TypeGuard[str]:
    """Whether this is a text whose slots bear the core's names."""
    return isinstance(given, str) and not any(f"{{{theirs}}}" in given for theirs in _STANDS_FOR)


def shown(ours: PromptSet, given: Mapping[str, Any]) -> PromptDictType:
    """Return every prompt as a LlamaIndex template: the user's where it was replaced, else ours."""
    return {name: template_of(given.get(name, text)) for name, text in ours.texts().items()}


class AdaptedPart(Adapted[T], PromptMixin):
    """A pydantic adapter whose prompts answer ``get_prompts`` and ``update_prompts``."""

    @field_serializer("prompts", check_fields=False)
    def _plain_prompts(self, prompts: Mapping[str, Any]) -> dict[str, Any]:
        llm = getattr(self, "llm", None)
        return {name: plain_template(one, llm) for name, one in prompts.items()}

    @classmethod
    def _templates(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return for_core(given)

    @classmethod
    def from_defaults(cls, llm: LLM | Reader | None = None, **settings: Any) -> Self:
        """Build a part as LlamaIndex's own are built; the same arguments as the constructor's."""
        return cls(**{"llm": llm, **settings})

    def _get_prompts(self) -> PromptDictType:
        return shown(type(self).PROMPTS, self.prompts)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self.prompts: Mapping[str, Any] = {**self.prompts, **prompts}


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
