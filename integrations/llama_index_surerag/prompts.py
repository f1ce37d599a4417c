"""surerag's prompts as LlamaIndex templates, and LlamaIndex templates as surerag's prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.prompts import BasePromptTemplate, ChatPromptTemplate, PromptTemplate
from llama_index.core.prompts.base import SelectorPromptTemplate

from llama_index_surerag._prompting import from_chat_messages
from surerag.errors import PromptError
from surerag.methods.lazy_rag import LazyRAGPrompts
from surerag.types import Prompt, Template

_ALIASES = {"query_str": "question", "context_str": "context"}
"""What LlamaIndex's own templates call the slots."""

_FIELDS = {getattr(LazyRAGPrompts(), item.name).name: item.name for item in fields(LazyRAGPrompts)}


class TemplatePrompt:
    """A LlamaIndex template, rendered as a prompt of ours; chat templates keep their turns.

    ``query_str`` and ``context_str`` may stand for ``question`` and ``context``.

    Args:
        name: Key in ``get_prompts``.
        template: Any LlamaIndex template, with mappings, functions and partial values of its own.
        llm: What a selector template chooses by.
    """

    def __init__(self, name: str, template: BasePromptTemplate, llm: BaseLLM | None = None) -> None:
        self.name = name
        self.template = template.select(llm) if isinstance(template, SelectorPromptTemplate) else template
        self.slots = (
            frozenset(self._slot(variable) for variable in self.template.template_vars) - self._filled()
        )

    @property
    def text(self) -> str:
        """The template's text, for people to read."""
        return self.template.get_template()

    def require(self, *slots: str) -> TemplatePrompt:
        """Return this prompt if it has exactly these slots.

        Raises:
            PromptError: If slots are missing or unknown.
        """
        missing, unknown = frozenset(slots) - self.slots, self.slots - frozenset(slots)
        # A function may stand for any slot: it is handed all of them.
        if unknown or (missing and not self.template.function_mappings):
            raise PromptError(
                f"prompt {self.name!r} must have the slots {sorted(slots)}, has {sorted(self.slots)}",
                hint="keep the slots of the prompt that this one replaces; query_str and context_str will do",
            )
        return self

    def render(self, **values: str) -> Prompt:
        """Fill the slots: a text, or the turns of a chat template."""
        known: dict[str, Any] = values | {
            alias: values[slot] for alias, slot in _ALIASES.items() if slot in values
        }
        if isinstance(self.template, ChatPromptTemplate):
            return from_chat_messages(self.template.format_messages(**known))
        return self.template.format(**known)

    def _slot(self, variable: str) -> str:
        mapped = {theirs: mine for mine, theirs in (self.template.template_var_mappings or {}).items()}
        name = mapped.get(variable, variable)
        return _ALIASES.get(name, name)

    def _filled(self) -> frozenset[str]:
        given = {*self.template.kwargs, *(self.template.function_mappings or {})}
        return frozenset(_ALIASES.get(name, name) for name in given)


def with_passages(template: BasePromptTemplate, llm: BaseLLM | None = None) -> BasePromptTemplate:
    """Let ``context_str`` stand for ``passages``, as LlamaIndex's own templates have it.

    Args:
        template: Any LlamaIndex template.
        llm: What a selector template chooses by.
    """
    chosen = template.select(llm) if isinstance(template, SelectorPromptTemplate) else template
    mapped = dict(chosen.template_var_mappings or {})
    if "context_str" not in chosen.template_vars or "context_str" in {*mapped, *mapped.values()}:
        return chosen
    return chosen.model_copy(update={"template_var_mappings": {**mapped, "passages": "context_str"}})


class PromptSet:
    """The prompts of lazy retrieval in LlamaIndex's form, by their names.

    Args:
        llm: What selector templates choose by.
    """

    def __init__(self, llm: BaseLLM | None = None) -> None:
        self._llm = llm
        self.templates: dict[str, BasePromptTemplate] = {
            name: PromptTemplate(getattr(LazyRAGPrompts(), field).text) for name, field in _FIELDS.items()
        }
        self._prompts: dict[str, Template] = {}

    def updated(self, changes: Mapping[str, BasePromptTemplate | str]) -> PromptSet:
        """Return a set with some prompts replaced.

        Raises:
            PromptError: If a name is unknown, or a template's slots do not fit.
        """
        unknown = sorted(changes.keys() - _FIELDS.keys())
        if unknown:
            raise PromptError(f"there is no prompt {unknown}", hint=f"choose among {sorted(_FIELDS)}")
        other = PromptSet(self._llm)
        other.templates = self.templates | {name: _template(given) for name, given in changes.items()}
        other._prompts = self._prompts | {
            _FIELDS[name]: TemplatePrompt(name, other.templates[name], self._llm) for name in changes
        }
        other.for_core()
        return other

    def for_core(self) -> LazyRAGPrompts:
        """Return the prompts as the method takes them; those never changed are its own."""
        return LazyRAGPrompts(**self._prompts)

    def to_dict(self) -> dict[str, Any]:
        """Return templates as plain values: a text, or a list of role and text."""
        return {name: plain_template(template) for name, template in self.templates.items()}


def template_from_plain(plain: str | Sequence[Sequence[str]]) -> BasePromptTemplate:
    """Return the template that :func:`plain_template` made plain."""
    if isinstance(plain, str):
        return PromptTemplate(plain)
    return ChatPromptTemplate([ChatMessage(role=role, content=text) for role, text in plain])


def _template(given: BasePromptTemplate | str) -> BasePromptTemplate:
    return PromptTemplate(given) if isinstance(given, str) else given


def plain_template(template: BasePromptTemplate) -> str | list[list[str]]:
    """Return a template as plain values: its text, or a list of role and text."""
    if isinstance(template, ChatPromptTemplate):
        return [[message.role.value, message.content or ""] for message in template.message_templates]
    return template.get_template()
