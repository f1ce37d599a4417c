"""The prompts of DENSE in LlamaIndex's form, by their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate

from llama_index_surerag.prompts import TemplatePrompt, plain_template, with_passages
from surerag.errors import PromptError
from surerag.methods.dense_types import DensePrompts
from surerag.prompts import ENTAILMENT

_OURS = {
    **{item.name: getattr(DensePrompts(), item.name).text for item in fields(DensePrompts)},
    ENTAILMENT.name: ENTAILMENT.text,
}


class DensePromptSet:
    """Those prompts of DENSE that a component uses; ``entailment`` is that of a judge in words.

    Args:
        names: Some of ``rephrase``, ``answer``, ``closed_book``, ``sufficient``, ``entailment``.
        llm: What selector templates choose by.
    """

    def __init__(self, names: Iterable[str], llm: BaseLLM | None = None) -> None:
        self._llm = llm
        self.templates: dict[str, BasePromptTemplate] = {name: PromptTemplate(_OURS[name]) for name in names}
        self._replaced: dict[str, Any] = {}

    def updated(self, changes: Mapping[str, BasePromptTemplate | str]) -> DensePromptSet:
        """Return a set with some prompts replaced.

        Raises:
            PromptError: If a name is unknown, or a template's slots do not fit.
        """
        unknown = sorted(changes.keys() - self.templates.keys())
        if unknown:
            raise PromptError(f"there is no prompt {unknown}", hint=f"choose among {sorted(self.templates)}")
        given = {
            name: PromptTemplate(change) if isinstance(change, str) else change
            for name, change in changes.items()
        }
        other = DensePromptSet((), self._llm)
        other.templates = self.templates | given
        replaced = {
            name: TemplatePrompt(name, with_passages(template, self._llm)) for name, template in given.items()
        }
        other._replaced = self._replaced | replaced
        other.for_core()
        other.for_judge().require("question", "premise", "hypothesis")
        return other

    def for_core(self) -> DensePrompts:
        """Return the prompts as the method takes them; those never changed are its own."""
        return DensePrompts(
            **{name: prompt for name, prompt in self._replaced.items() if name != ENTAILMENT.name}
        )

    def for_judge(self) -> Any:
        """Return the prompt for a judge in words."""
        return self._replaced.get(ENTAILMENT.name, ENTAILMENT)

    def to_dict(self) -> dict[str, Any]:
        """Return replaced templates as plain values: a text, or a list of role and text."""
        return {name: plain_template(self.templates[name]) for name in self._replaced}
