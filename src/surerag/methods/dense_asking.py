"""What one question asks of its models: each thing once, and counted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from surerag.effects import Program, emit, entail, generate
from surerag.errors import ServiceError
from surerag.methods.dense_cache import key_of
from surerag.methods.dense_types import Calls, DenseSettings, Rephrased
from surerag.prompts import format_passages
from surerag.types import Generation, Pair, Passage, Prompt, Sampling

_ENTAILMENT = 2
_YES_OR_NO = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
_VERDICT = Sampling(max_tokens=8)


class Statements(NamedTuple):
    """Two answers, the first of which may entail the second."""

    premise: str
    hypothesis: str


class Asking:
    """Asks on behalf of one question, and keeps account.

    Args:
        question: As asked.
        settings: What steers the method; its cache is read and filled.

    Attributes:
        calls: What was asked so far.
    """

    def __init__(self, question: str, settings: DenseSettings) -> None:
        self.question = question
        self.settings = settings
        self.calls = Calls()
        self._answers: dict[str, Generation] = {}
        self._links: dict[Statements, bool] = {}

    def unrephrased(self, passages: Sequence[Passage]) -> int:
        """Count the chunks that have yet to be rephrased."""
        cache = self.settings.cache.rephrasings
        keys = {self._rephrasing_key(prompt) for prompt in self._rephrasing_prompts(passages).values()}
        return sum(key not in cache for key in keys)

    def rephrase(self, passages: Sequence[Passage]) -> Program[list[Rephrased]]:
        """Say each chunk in other words, on its own (Eq. 3); an unusable rephrasing leaves it as it is."""
        cache = self.settings.cache.rephrasings
        prompts = self._rephrasing_prompts(passages)
        keys = {text: self._rephrasing_key(prompt) for text, prompt in prompts.items()}
        known = {text: found for text, key in keys.items() if (found := cache.get(key)) is not None}
        unknown = [text for text in prompts if text not in known]
        cut: set[str] = set()
        if unknown:
            sampling = self.settings.rephrasing
            replies = yield from generate([prompts[text] for text in unknown], sampling)
            self._count([reply for [reply] in replies], Calls(rephrasings=len(unknown)))
            for text, [reply] in zip(unknown, replies, strict=True):
                known[text] = reply.text.strip()
                if reply.finish == "length":
                    cut.add(text)
                else:
                    cache[keys[text]] = known[text]
        rephrased = [_rephrased(passage.text, known, cut) for passage in passages]
        unusable = [
            at
            for at, (passage, one) in enumerate(zip(passages, rephrased, strict=True))
            if one.outcome in ("empty", "cut") and passage.text.strip()
        ]
        if unusable:
            yield from emit(
                "dense.not_rephrased",
                warning=True,
                question=self.question,
                ids=[passages[at].id for at in unusable],
                outcomes=[rephrased[at].outcome for at in unusable],
            )
        return rephrased

    def answer(self, contexts: Sequence[Sequence[str]]) -> Program[list[Generation]]:
        """Answer greedily under each context of texts; equal contexts are asked about once."""
        prompts = [self.settings.prompts.asking(self.question, context) for context in contexts]
        unknown = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._answers]
        if unknown:
            replies = yield from generate(unknown, self.settings.answering)
            self._count([reply for [reply] in replies], Calls(answers=len(unknown)))
            self._answers.update((prompt, reply) for prompt, [reply] in zip(unknown, replies, strict=True))
        return [self._answers[prompt] for prompt in prompts]

    def link(self, pairs: Sequence[tuple[str, str]]) -> Program[list[float]]:
        """Return w, the mean of both directions of entailment, for pairs of answers (Eq. 5).

        Identical answers need no judge, and an empty one means the same as an empty one only.
        """
        wanted = [Statements(*pair) for a, b in pairs if a != b and a and b for pair in ((a, b), (b, a))]
        cache = self.settings.cache.links
        for one in wanted:
            if one not in self._links and (found := cache.get(self._link_key(one))) is not None:
                self._links[one] = found
        unknown = [one for one in dict.fromkeys(wanted) if one not in self._links]
        if unknown:
            verdicts = yield from self._judged(unknown)
            for one, verdict in zip(unknown, verdicts, strict=True):
                self._links[one] = cache[self._link_key(one)] = verdict
        return [self._link(a, b) for a, b in pairs]

    def sufficient(self, context: Sequence[str]) -> Program[bool]:
        """Ask the reader whether a context is enough to answer from; an unclear reply counts as no."""
        shown = format_passages(context)
        prompt = self.settings.prompts.sufficient.render(question=self.question, passages=shown)
        [[reply]] = yield from generate([prompt], _VERDICT)
        self._count([reply], Calls(evaluations=1))
        verdict = says_yes(reply.text)
        if verdict is None:
            yield from emit(
                "dense.unclear_evaluation", warning=True, question=self.question, reply=reply.text[:80]
            )
        return bool(verdict)

    def _rephrasing_prompts(self, passages: Sequence[Passage]) -> dict[str, Prompt]:
        template = self.settings.prompts.rephrase
        texts = dict.fromkeys(passage.text for passage in passages if passage.text.strip())
        return {text: template.render(passage=text) for text in texts}

    def _rephrasing_key(self, prompt: Prompt) -> str:
        turns = [prompt] if isinstance(prompt, str) else [part for turn in prompt for part in turn]
        return key_of("rephrasing", self.settings.reader, str(self.settings.rephrasing.max_tokens), *turns)

    def _link_key(self, one: Statements) -> str:
        cut = str(self.settings.entailment)
        return key_of("link", self.settings.entailer, cut, self.question, one.premise, one.hypothesis)

    def _link(self, a: str, b: str) -> float:
        if a == b or not a or not b:
            return float(a == b)
        return (self._links[Statements(a, b)] + self._links[Statements(b, a)]) / 2

    def _judged(self, wanted: Sequence[Statements]) -> Program[list[bool]]:
        rows = yield from entail([Pair(a, b, self.question) for a, b in wanted])
        found = np.asarray(rows, dtype=np.float64)
        self.calls += Calls(judgements=len(wanted))
        if found.shape != (len(wanted), 3) or not np.isfinite(found).all():
            raise ServiceError(
                f"expected {len(wanted)} rows of three probabilities, got an array of shape {found.shape}",
                hint="let the entailer return contradiction, neutral and entailment for each pair",
            )
        if self.settings.entailment is not None:
            return [bool(row[_ENTAILMENT] >= self.settings.entailment) for row in found]
        # A tie is no entailment: the first of the largest is taken, and entailment comes last.
        return [int(row.argmax()) == _ENTAILMENT for row in found]

    def _count(self, replies: Sequence[Generation], calls: Calls) -> None:
        self.calls += replace(
            calls,
            prompt_tokens=sum(reply.prompt_tokens for reply in replies),
            completion_tokens=sum(reply.completion_tokens for reply in replies),
        )


def _rephrased(text: str, known: dict[str, str], cut: set[str]) -> Rephrased:
    found = known.get(text, "")
    if text in cut:
        return Rephrased(text, "cut")
    if not found:
        return Rephrased(text, "empty")
    return Rephrased(text, "unchanged") if found == text.strip() else Rephrased(found, "rephrased")


def says_yes(reply: str) -> bool | None:
    """Return what a reply to a question of yes or no says, or None where it says neither or both.

    Example:
        >>> says_yes("**Yes.** It does."), says_yes("No, it lacks the year"), says_yes("Perhaps")
        (True, False, None)
    """
    found = {word.lower() for word in _YES_OR_NO.findall(reply)}
    return found.pop() == "yes" if len(found) == 1 else None
