"""What DynQR asks for one question, and what that costs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from surerag.effects import ModelRole, Program, generate, retrieve
from surerag.methods.uncertainty_metrics import uncertainty_of
from surerag.methods.uncertainty_types import Attempt, RewriteCosts, RewriteSettings
from surerag.prompts import format_passages
from surerag.types import Generation, Message, Passage, Prompt, Sampling, as_messages

Stage = Literal["retrieving", "answering", "rewriting"]


class RewriteAsking:
    """Asks retriever, reader and rewriter on behalf of one question, and keeps account.

    Attributes:
        question: As asked.
        settings: What steers the method.
        history: The conversation before it.
        costs: Calls and tokens so far.
        stage: What was asked for last.
    """

    def __init__(self, question: str, settings: RewriteSettings, history: tuple[Message, ...] = ()) -> None:
        self.question = question
        self.settings = settings
        self.history = history
        self.costs = RewriteCosts()
        self.stage: Stage = "retrieving"

    def retrieve(self, query: str) -> Program[list[Passage]]:
        """Retrieve with a query."""
        self.stage = "retrieving"
        self.costs = replace(self.costs, retrievals=self.costs.retrievals + 1)
        k = self.settings.k
        return (yield from retrieve(query, sys.maxsize if k is None else k))

    def answer(self, contexts: Mapping[str, Sequence[Passage]]) -> Program[list[Attempt]]:
        """Answer the question from what each query found, all in one call."""
        self.stage = "answering"
        settings = self.settings
        prompts = [self.prompt(passages) for passages in contexts.values()]
        answers = yield from self._generate(prompts, settings.answering)
        sampled: list[list[Generation]] = [[] for _ in prompts]
        if settings.metric == "ln_entropy":
            sampled = yield from self._generate(prompts, settings.sampling)
        drawn = sum(map(len, sampled))
        self.costs = replace(
            self.costs, answers=self.costs.answers + len(prompts), samples=self.costs.samples + drawn
        )
        return [
            Attempt(query, tuple(passages), answer, uncertainty_of(settings.metric, answer, samples))
            for (query, passages), [answer, *_], samples in zip(
                contexts.items(), answers, sampled, strict=True
            )
        ]

    def rewrite(self) -> Program[list[Generation]]:
        """Ask for rewrites of the question."""
        self.stage = "rewriting"
        prompts = self.settings.prompts
        template = prompts.rewrite_in_conversation if self.history else prompts.rewrite
        prompt = after(self.history, template.render(query=self.question))
        [replies] = yield from self._generate([prompt], self.settings.rewriting, "rewriter")
        self.costs = replace(self.costs, rewrites=self.costs.rewrites + len(replies))
        return replies

    def prompt(self, passages: Sequence[Passage]) -> Prompt:
        """Return the prompt for an answer from passages."""
        prompts = self.settings.prompts
        if not passages:
            return after(self.history, prompts.closed_book.render(question=self.question))
        shown = format_passages(passage.text for passage in passages)
        return after(self.history, prompts.answer.render(passages=shown, question=self.question))

    def _generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, role: ModelRole = "reader"
    ) -> Program[list[list[Generation]]]:
        replies = yield from generate(prompts, sampling, role=role)
        self.costs = replace(
            self.costs,
            prompt_tokens=self.costs.prompt_tokens + sum(group[0].prompt_tokens for group in replies),
            completion_tokens=self.costs.completion_tokens
            + sum(reply.completion_tokens for group in replies for reply in group),
        )
        return replies


def after(history: Sequence[Message], prompt: Prompt) -> Prompt:
    """Put a conversation's turns before a prompt; system turns go first, and roles take turns.

    Many chat templates refuse two turns of one role in a row: such are joined. What an assistant said before
    anyone asked is left out.

    Example:
        >>> [turn.role for turn in after([Message("assistant", "Hello"), Message("user", "Hi")], "Where?")]
        ['user']
    """
    if not history:
        return prompt
    turns = [*history, *as_messages(prompt)]
    found = [turn for turn in turns if turn.role == "system"]
    spoken = len(found)
    for turn in turns:
        if turn.role == "system" or (turn.role == "assistant" and len(found) == spoken):
            continue
        if len(found) > spoken and found[-1].role == turn.role:
            found[-1] = Message(turn.role, f"{found[-1].content}\n{turn.content}")
        else:
            found.append(turn)
    return tuple(found)
