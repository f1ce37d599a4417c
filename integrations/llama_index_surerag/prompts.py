"""Converts surerag's prompts to LlamaIndex templates, and LlamaIndex templates to surerag's prompts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.llms import LLM
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate, RichPromptTemplate
from llama_index.core.prompts.base import BasePromptTemplate, SelectorPromptTemplate
from llama_index.core.prompts.mixin import PromptDictType, PromptMixin, PromptMixinType
from pydantic import PrivateAttr, field_validator

from surerag.errors import PromptError
from surerag.framing import as_data
from surerag.messages import Message, Prompt, Template, as_messages
from surerag.options import Options

_SLOT_NAMES = {"query_str": ("question", "query", "statement"), "context_str": ("context", "passages")}
"""Slot names in LlamaIndex's templates, each with the names in surerag's prompts that it may replace."""


@dataclass(frozen=True)
class TemplatePrompt:
    """A LlamaIndex template as a surerag prompt.

    ``aliases`` maps LlamaIndex's slot names to surerag's slot names.
    """

    name: str
    template: BasePromptTemplate = field(hash=False)
    aliases: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def text(self) -> str:
        """The template's text with its slots."""
        return self.template.get_template()

    def require(self, *slots: str) -> TemplatePrompt:
        """Return the prompt if its template has exactly the slots ``slots``.

        The template may use LlamaIndex's names for these slots, such as ``query_str``.

        Raises:
            PromptError: If the template's slots differ from ``slots``.
        """
        aliases = {
            theirs: ours for theirs, names in _SLOT_NAMES.items() for ours in reversed(names) if ours in slots
        }
        prompt = TemplatePrompt(self.name, self.template, aliases)
        actual = prompt._slots()
        missing, unknown = frozenset(slots) - actual, actual - frozenset(slots)
        # The template's functions may use any slot, because they receive the values of all slots.
        if unknown or (missing and not self.template.function_mappings):
            raise PromptError(
                f"prompt {self.name!r} must have the slots {sorted(slots)}, has {sorted(actual)}",
                hint="use the slots of the default prompt, or LlamaIndex's names query_str and context_str",
            )
        return prompt

    def render(self, **values: str) -> Prompt:
        """Return the prompt with filled slots: a text, or chat messages if the template is a chat template.

        A line of a value that imitates a line of the template gets a vertical bar at its beginning
        (:mod:`surerag.framing`).
        """
        data = as_data(_frame(self.template), values)
        filled: dict[str, Any] = {**data, **{theirs: data[ours] for theirs, ours in self.aliases.items()}}
        rich = isinstance(self.template, RichPromptTemplate) and self.template.is_chat_template
        if isinstance(self.template, ChatPromptTemplate) or rich:
            return from_chat_messages(self.template.format_messages(**filled))
        return self.template.format(**filled)

    def _slots(self) -> frozenset[str]:
        mapped = {theirs: ours for ours, theirs in (self.template.template_var_mappings or {}).items()}
        variables = (mapped.get(variable, variable) for variable in self.template.template_vars)
        filled = {*self.template.kwargs, *(self.template.function_mappings or {})}
        slots = {self.aliases.get(name, name) for name in variables}
        return frozenset(slots - {self.aliases.get(name, name) for name in filled})


def _frame(template: BasePromptTemplate) -> str:
    text = template.get_template()
    if isinstance(template, RichPromptTemplate):
        text = re.sub(r"{%.*?%}", "\n", text, flags=re.DOTALL)
        text = re.sub(r"{{-?\s*(\w+).*?}}", r"{\1}", text, flags=re.DOTALL)
    return text


def as_templates(prompts: Mapping[str, Any], llm: object = None) -> dict[str, Template | str]:
    """Return a user's prompts; LlamaIndex's templates become templates of surerag, the rest is unchanged.

    A text with LlamaIndex's slot names counts as a LlamaIndex template. ``llm`` decides which template a
    SelectorPromptTemplate selects.
    """
    templates: dict[str, Template | str] = {}
    for name, prompt in prompts.items():
        template = prompt
        if isinstance(template, SelectorPromptTemplate):
            template = template.select(llm if isinstance(llm, BaseLLM) else None)
        if isinstance(template, str) and any(f"{{{theirs}}}" in template for theirs in _SLOT_NAMES):
            template = PromptTemplate(template)
        is_llama = isinstance(template, BasePromptTemplate)
        templates[name] = TemplatePrompt(name, template) if is_llama else template
    return templates


def llama_templates(prompts: Mapping[str, Template]) -> PromptDictType:
    """Return surerag prompts as LlamaIndex templates, for ``get_prompts``."""
    return {
        name: prompt.template if isinstance(prompt, TemplatePrompt) else PromptTemplate(prompt.text)
        for name, prompt in prompts.items()
    }


def changed_prompts(prompts: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the prompts that differ from the current prompts ``now``."""
    return {name: prompt for name, prompt in prompts.items() if name not in now or now[name] != prompt}


def update_nested_prompts(part: PromptMixin, prompts: PromptDictType) -> None:
    """Replace prompts of a component and of its inner components.

    The name ``a:b`` means the prompt ``b`` of the inner component ``a``.

    Raises:
        PromptError: If the component has no inner component with a given name.
    """
    modules = part._get_prompt_modules()
    of_parts: dict[str, PromptDictType] = {}
    for name, prompt in prompts.items():
        module, inner = name.split(":", 1) if ":" in name else ("", name)
        if module and module not in modules:
            raise PromptError(f"there is no component {module!r}", hint=f"components are {sorted(modules)}")
        of_parts.setdefault(module, {})[inner] = prompt
    part._update_prompts(of_parts.pop("", {}))
    for module, inner_prompts in of_parts.items():
        update_nested_prompts(modules[module], inner_prompts)


class NestedPrompts(PromptMixin):
    """A mixin for components that contain components; ``update_prompts`` replaces prompts at any depth."""

    def update_prompts(self, prompts_dict: PromptDictType) -> None:
        """Replace prompts, given by their names in ``get_prompts``; the other prompts stay as they are."""
        update_nested_prompts(self, prompts_dict)


class WithPrompts(Options, PromptMixin):
    """Base class of components whose fields are a method's options; prompts may be LlamaIndex templates."""

    _core: Any = PrivateAttr()

    @property
    def core(self) -> Any:
        """The wrapped method, with its options and services (LLM, retriever, encoder …)."""
        return self._core

    @field_validator("prompts", mode="before", check_fields=False)
    @classmethod
    def _templates(cls, value: Any) -> Any:
        return as_templates(value) if isinstance(value, Mapping) else value

    def _get_prompts(self) -> PromptDictType:
        return llama_templates(getattr(self, "prompts", {}))

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        if changed := changed_prompts(prompts, self._get_prompts()):
            self.prompts: Mapping[str, Any] = {**self.prompts, **changed}


def chat_messages(llm: LLM, prompt: Prompt) -> list[ChatMessage]:
    """Return a prompt as chat messages, with the LLM's own system prompt, if any, as the first message."""
    own = [ChatMessage(role=MessageRole.SYSTEM, content=llm.system_prompt)] if llm.system_prompt else []
    return [*own, *_turns(prompt)]


def _turns(prompt: Prompt) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole(role), content=content) for role, content in as_messages(prompt)]


def completion_text(llm: LLM, prompt: Prompt) -> str:
    """Return a prompt as one text, formatted by the LLM's own templates as ``llm.predict`` formats it."""
    turns, text = as_messages(prompt), plain_text(prompt)
    if len(turns) == 1 and turns[0].role == "user":
        text = llm.completion_to_prompt(text) if llm.completion_to_prompt else text
    elif llm.messages_to_prompt:
        text = llm.messages_to_prompt(_turns(prompt))
    if llm.system_prompt:
        text = f"{llm.system_prompt}\n\n{text}"
    return llm.query_wrapper_prompt.format(query_str=text) if llm.query_wrapper_prompt else text


def plain_text(prompt: Prompt) -> str:
    """Return the contents of a prompt's messages, joined by line breaks."""
    return "\n".join(message.content for message in as_messages(prompt))


def from_chat_messages(messages: list[ChatMessage]) -> tuple[Message, ...]:
    """Convert LlamaIndex messages to surerag messages, which hold only text.

    A message whose role is neither system, developer nor assistant becomes a user's message.
    """
    roles = {"system": "system", "developer": "system", "assistant": "assistant"}
    return tuple(
        Message(roles.get(message.role.value, "user"), message.content or "")  # type: ignore[arg-type]  # our three roles
        for message in messages
    )
