"""The prompts of query rewriting in LlamaIndex's form, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate

from llama_index_surerag.prompts import TemplatePrompt, plain_template
from surerag.errors import PromptError
from surerag.methods.uncertainty_types import RewritePrompts

_NAMES = tuple(item.name for item in fields(RewritePrompts))


class RewritePromptSet:
    """The prompts of query rewriting: ``answer``, ``closed_book``, ``rewrite``, ``rewrite_in_conversation``.

    Args:
        llm: What selector templates choose by.
    """

    def __init__(self, llm: BaseLLM | None = None) -> None:
        self._llm = llm
        ours = RewritePrompts()
        self.templates: dict[str, BasePromptTemplate] = {
            name: PromptTemplate(getattr(ours, name).text) for name in _NAMES
        }
        self._replaced: dict[str, Any] = {}

    def updated(self, changes: Mapping[str, BasePromptTemplate | str]) -> RewritePromptSet:
        """Return a set with some prompts replaced.

        Raises:
            PromptError: If a name is unknown, or a template's slots do not fit.
        """
        unknown = sorted(changes.keys() - set(_NAMES))
        if unknown:
            raise PromptError(f"there is no prompt {unknown}", hint=f"choose among {sorted(_NAMES)}")
        other = RewritePromptSet(self._llm)
        given = {
            name: PromptTemplate(change) if isinstance(change, str) else change
            for name, change in changes.items()
        }
        other.templates = self.templates | given
        other._replaced = self._replaced | {
            name: TemplatePrompt(name, template, self._llm) for name, template in given.items()
        }
        other.for_core()
        return other

    def for_core(self) -> RewritePrompts:
        """Return the prompts as the method takes them; those never changed are its own."""
        return RewritePrompts(**self._replaced)

    def to_dict(self) -> dict[str, Any]:
        """Return templates as plain values: a text, or a list of role and text."""
        return {name: plain_template(template) for name, template in self.templates.items()}
