"""Prompts as LangChain's users write them: a text, or a PromptTemplate."""

from __future__ import annotations

from string import Formatter

from langchain_core.prompts import PromptTemplate as LangChainPrompt

from surerag.errors import PromptError
from surerag.prompts import PromptTemplate

PromptLike = str | LangChainPrompt
"""A template with single braces around its slots, or LangChain's own template in f-string format."""


def prompt_from(given: PromptLike | None, default: PromptTemplate) -> PromptTemplate:
    """Return a prompt in place of a default one, with the default's slots.

    Args:
        given: The user's; None keeps the default.
        default: The prompt that it replaces.

    Raises:
        PromptError: If its slots are others, or its format is not f-string.

    Example:
        >>> from surerag.prompts import CLOSED_BOOK
        >>> prompt_from("Q: {question}", CLOSED_BOOK).render(question="Where?")
        'Q: Where?'
    """
    if given is None:
        return default
    text = given if isinstance(given, str) else _text(given)
    return PromptTemplate(default.name, text).require(*default.slots)


def _text(template: LangChainPrompt) -> str:
    """Return a template's text with its partial variables filled in; braces in those stay braces."""
    if template.template_format != "f-string":
        raise PromptError(
            f"a prompt is in the format {template.template_format}", hint="write it in f-string format"
        )
    pieces: list[str] = []
    for literal, slot, _, _ in Formatter().parse(template.template):
        pieces.append(_escaped(literal))
        if slot is not None:
            pieces.append(_filled(slot, template))
    return "".join(pieces)


def _filled(slot: str, template: LangChainPrompt) -> str:
    if slot not in template.partial_variables:
        return f"{{{slot}}}"
    value = template.partial_variables[slot]
    return _escaped(str(value() if callable(value) else value))


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
