"""What is asked of a LangChain model and what it answers, in surerag's terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import LLMResult
from langchain_core.prompt_values import ChatPromptValue, PromptValue, StringPromptValue

from langchain_surerag._dialects import Asked
from surerag.types import Generation, Prompt, Sampling, Usage, as_messages


def prompt_value(prompt: Prompt) -> PromptValue:
    """Return a prompt as LangChain's: a text where it is one user turn, else a conversation."""
    turns = as_messages(prompt)
    if len(turns) == 1 and turns[0].role == "user":
        return StringPromptValue(text=turns[0].content)
    classes: dict[str, type[BaseMessage]] = {
        "system": SystemMessage,
        "user": HumanMessage,
        "assistant": AIMessage,
    }
    return ChatPromptValue(messages=[classes[role](content=content) for role, content in turns])


def text_of(prompt: Prompt) -> str:
    """Return a prompt as an LLM gets it: a conversation with its roles written out."""
    return prompt_value(prompt).to_string()


def usage_of(result: LLMResult) -> Usage:
    """Return the server's own count of tokens for one request; zeros where it gives none."""
    counted = (result.llm_output or {}).get("token_usage") or {}
    return Usage(1, counted.get("prompt_tokens") or 0, counted.get("completion_tokens") or 0)


class Missing(NamedTuple):
    """A sample that a server left out: whose it is, and how to ask for it alone."""

    place: int
    prompt: Prompt
    asked: Asked


def missing(
    found: Sequence[Sequence[Generation]], prompts: Sequence[Prompt], sampling: Sampling
) -> list[Missing]:
    """Return the samples that are still to be asked for, each by a request of its own."""
    return [
        Missing(place, prompt, Asked(sampling, 1, number))
        for place, (prompt, answers) in enumerate(zip(prompts, found, strict=True))
        for number in range(len(answers), sampling.n)
    ]


def filled(
    found: Sequence[Sequence[Generation]],
    left_out: Sequence[Missing],
    more: Sequence[Sequence[Generation]],
    n: int,
) -> list[list[Generation]]:
    """Return ``n`` samples for each prompt: those found, then those asked for again."""
    samples = [list(answers[:n]) for answers in found]
    for item, answers in zip(left_out, more, strict=True):
        samples[item.place].append(answers[0])
    return samples
