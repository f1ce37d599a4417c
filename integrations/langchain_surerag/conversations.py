"""A question within a conversation: condensed by the reader, or asked with the conversation shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from langchain_surerag._programs import mapped
from surerag.effects import Effect, Generate, Program, StartGeneration, emit, generate
from surerag.messages import Message, SamplingParams, Template
from surerag.prompts import REWRITE_IN_CONVERSATION, in_conversation

T = TypeVar("T")

Conversation = Literal["condense", "show"]
"""``"condense"`` has the reader first write a question that stands alone, in one call, and goes on with that;
``"show"`` puts the conversation before every prompt, and searches with the question as it was asked."""

CONDENSE = REWRITE_IN_CONVERSATION
QUESTION_TOKENS = 64
"""Length of a condensed question, at most."""


def condensed(
    question: str, history: Sequence[Message], template: Template, goes_on: Callable[[str], Program[T]]
) -> Program[T]:
    """Have the reader write a question that stands alone, and go on with it.

    An empty one gives way to the question as it was asked.
    """
    prompt = in_conversation(history, template.render(query=question))
    [[found]] = yield from generate([prompt], SamplingParams(max_tokens=QUESTION_TOKENS, trace="none"))
    alone = found.text.strip() or question
    yield from emit("conversation.condensed", question=question, alone=alone)
    return (yield from goes_on(alone))


def shown(history: Sequence[Message], program: Program[T]) -> Program[T]:
    """Put a conversation before every prompt of a program."""

    def told(effect: Effect) -> Effect:
        if not isinstance(effect, Generate | StartGeneration):
            return effect
        return replace(effect, prompts=tuple(in_conversation(history, prompt) for prompt in effect.prompts))

    return mapped(program, told)
