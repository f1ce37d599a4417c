"""DENSE: did the reader understand its context?

"DENSE-RAG: Measuring and Improving Context Understanding for Consistent Retrieval-Augmented Generation",
section 4, and the labels of section 5.2. A reader that understands a text gives the same answer when a part
of it is said in other words. The algorithm comes first; the asking for one question follows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.effects import Program, emit, entail, generate
from surerag.errors import InputError, ServiceError
from surerag.measures import degree_semantic_entropy
from surerag.messages import Generation, Pair, Passage, Prompt, SamplingParams
from surerag.methods.dense.options import DenseOptions, MeasureOptions
from surerag.methods.dense.result import Calls, ChunkReading, DenseResult, Rephrased
from surerag.methods.inputs import check_passages, check_question
from surerag.prompts import format_passages

_BATCH = 256
"""Chunks of a corpus that are rephrased together."""


def dense(question: str, passages: Sequence[Passage], options: DenseOptions) -> Program[DenseResult]:
    """Algorithm 1, and where ``options.mask`` says so the labels of Eq. 8 to 10.

    Calls at most, for k chunks: k rephrasings, k + 1 answers, k (k + 1) judgements, and for the labels
    k answers and 2 k judgements; k² + 6 k + 1 in all. Where ``max_calls`` is less, the first m chunks are
    said in other words, as many as can be, and the others stay as they are.

    Args:
        question: Not empty.
        passages: The context, at least one passage. They are not changed.
        options: What steers the method.

    Raises:
        InputError: If there is no question, or no passage with a text.
    """
    check_question(question)
    check_passages(passages)
    if not any(passage.text.strip() for passage in passages):
        raise InputError("there is no context to understand", hint="give at least one passage with a text")
    asking = Asking(question, options)
    most = options.max_calls
    tested = asking.affordable(passages, most)
    result = yield from measure(asking, passages, tested)
    short = tested < len(passages)
    if options.mask:
        uncertain = sum(chunk.label == "uncertain" for chunk in result.chunks)
        afforded = uncertain if most is None else min(uncertain, (most - asking.calls.total) // 3)
        short = short or afforded < uncertain
        result = yield from label(asking, result, afforded)
    if short:
        yield from emit(
            "dense.out_of_calls",
            warning=True,
            question=question,
            max_calls=most,
            calls=result.calls.total,
            tested=tested,
            chunks=len(passages),
        )
    result = replace(result, out_of_calls=short)
    yield from emit("dense.measured", detail=result, question=question, **result.to_dict())
    return result


def prepare(passages: Sequence[Passage], options: MeasureOptions) -> Program[int]:
    """Rephrase a corpus before any question is asked, so that no question has to; return what is now known.

    Chunks go to the reader in batches, and what a batch gave is in the cache when the next one fails.
    """
    asking = Asking("", options)
    for start in range(0, len(passages), _BATCH):
        yield from asking.rephrase(passages[start : start + _BATCH])
    return len(passages) - asking.unrephrased(passages)


def measure(asking: Asking, passages: Sequence[Passage], tested: int | None = None) -> Program[DenseResult]:
    """Algorithm 1: rephrase, answer under k + 1 contexts, link the answers, take the entropy.

    Args:
        asking: On behalf of the question.
        passages: The context.
        tested: Chunks to say in other words, the first ones; None for all.
    """
    before = asking.calls
    rephrased = yield from asking.rephrase(passages[:tested])
    answers = yield from _answers(asking, passages, rephrased)
    texts = [answer.text.strip() for answer in answers]
    links = yield from _links(asking, texts)
    score = degree_semantic_entropy(links)
    told = any(one.outcome == "rephrased" for one in rephrased)
    if not told:
        # Equal contexts have equal answers: that says nothing about understanding.
        yield from emit("dense.untested", warning=True, question=asking.question)
    return DenseResult(
        question=asking.question,
        score=score,
        certain=told and score <= asking.options.threshold,
        answers=tuple(texts),
        links=tuple(tuple(row) for row in links.tolist()),
        chunks=tuple(
            ChunkReading(passage, one, answer, link, "certain" if link == 1 else "uncertain")
            for passage, one, answer, link in zip(
                passages[:tested], rephrased, texts[1:], links[1:, 0].tolist(), strict=True
            )
        )
        + tuple(
            ChunkReading(passage, Rephrased(passage.text, "untested"), texts[0], 1.0, "untested")
            for passage in passages[len(rephrased) :]
        ),
        generation=answers[0],
        calls=asking.calls - before,
        truncated=(yield from _truncated(asking, answers)),
    )


def label(asking: Asking, result: DenseResult, most: int | None = None) -> Program[DenseResult]:
    """Tell necessary chunks from unnecessary ones by the answer without each uncertain one (Eq. 9 and 10).

    Args:
        asking: On behalf of the question.
        result: What was measured.
        most: Chunks to label at most, the first uncertain ones; None for all.
    """
    before = asking.calls
    context = [chunk.passage.text for chunk in result.chunks]
    uncertain = [at for at, chunk in enumerate(result.chunks) if chunk.label == "uncertain"][:most]
    masked = [[*context[:at], *context[at + 1 :]] for at in uncertain]
    replies = yield from asking.answer(masked)
    texts = [reply.text.strip() for reply in replies]
    links = yield from asking.link([(result.answer, text) for text in texts])
    chunks = list(result.chunks)
    for at, text, link in zip(uncertain, texts, links, strict=True):
        same = link == 1 or (link == 0.5 and asking.options.settled("half") == "unnecessary")
        chunks[at] = replace(
            chunks[at],
            label="unnecessary" if same else "necessary",
            masked_answer=text,
            masked_link=link,
        )
    return replace(
        result,
        chunks=tuple(chunks),
        calls=result.calls + asking.calls - before,
        truncated=result.truncated + (yield from _truncated(asking, replies)),
    )


def _truncated(asking: Asking, answers: Sequence[Generation]) -> Program[int]:
    """Count the answers that were cut at their limit, and tell of them."""
    truncated = sum(answer.finish == "length" for answer in answers)
    if truncated:
        yield from emit(
            "dense.truncated",
            warning=True,
            question=asking.question,
            truncated=truncated,
            answers=len(answers),
            max_tokens=asking.options.answering.max_tokens,
        )
    return truncated


def _answers(
    asking: Asking, passages: Sequence[Passage], rephrased: Sequence[Rephrased]
) -> Program[list[Generation]]:
    """Answer under C_0 and its k single edits (Eq. 4), r_0 first.

    The edits are asked about from the last chunk to the first, the longest common beginning with C_0 first:
    k chunks of L tokens cost k L + L k (k + 1) / 2 tokens of reading where prefixes are shared.
    """
    context = [passage.text for passage in passages]
    edits = [[*context[:at], one.text, *context[at + 1 :]] for at, one in enumerate(rephrased)]
    if asking.options.original_first:
        yield from asking.answer([context])
    original, *edited = yield from asking.answer([context, *reversed(edits)])
    return [original, *reversed(edited)]


def _links(asking: Asking, answers: Sequence[str]) -> Program[NDArray[np.float64]]:
    """Link every two answers (Eq. 5), shape [k + 1, k + 1]."""
    pairs = list(combinations(range(len(answers)), 2))
    found = yield from asking.link([(answers[i], answers[j]) for i, j in pairs])
    links = np.eye(len(answers))
    for (i, j), link in zip(pairs, found, strict=True):
        links[i, j] = links[j, i] = link
    return links


_ENTAILMENT = 2
_YES_OR_NO = re.compile(r"\b(yes|no)\b", re.IGNORECASE)
_VERDICT = SamplingParams(max_tokens=8, trace="none")


class Statements(NamedTuple):
    """Two answers, the first of which may entail the second."""

    premise: str
    hypothesis: str


class Asking:
    """Asks on behalf of one question, and keeps account.

    Args:
        question: As asked.
        options: What steers the method; its memory is read and filled.

    Attributes:
        calls: What was asked so far.
    """

    def __init__(self, question: str, options: MeasureOptions) -> None:
        self.question = question
        self.options = options
        self._memory = options.memory
        self.calls = Calls()
        self._answers: dict[Prompt, Generation] = {}
        self._links: dict[Statements, bool] = {}

    def unrephrased(self, passages: Sequence[Passage]) -> int:
        """Count the chunks that have yet to be rephrased."""
        cache = self._memory.cache.rephrasings
        keys = {self._rephrasing_key(prompt) for prompt in self._rephrasing_prompts(passages).values()}
        return sum(key not in cache for key in keys)

    def affordable(self, passages: Sequence[Passage], most: int | None) -> int:
        """Return how many chunks, from the first on, may be said in other words within so many calls."""
        if most is None:
            return len(passages)
        wanted = (
            number
            for number in range(len(passages), 0, -1)
            if self.unrephrased(passages[:number]) + (number + 1) ** 2 <= most
        )
        return next(wanted, 0)

    def rephrase(self, passages: Sequence[Passage]) -> Program[list[Rephrased]]:
        """Say each chunk in other words, on its own (Eq. 3); an unusable rephrasing leaves it as it is."""
        cache = self._memory.cache.rephrasings
        prompts = self._rephrasing_prompts(passages)
        keys = {text: self._rephrasing_key(prompt) for text, prompt in prompts.items()}
        known = {text: found for text, key in keys.items() if (found := cache.get(key)) is not None}
        unknown = [text for text in prompts if text not in known]
        cut: set[str] = set()
        if unknown:
            sampling = self.options.rephrasing
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
        prompts = [self.options.answer_prompt(self.question, context) for context in contexts]
        unknown = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._answers]
        if unknown:
            replies = yield from generate(unknown, self.options.answering)
            self._count([reply for [reply] in replies], Calls(answers=len(unknown)))
            self._answers.update((prompt, reply) for prompt, [reply] in zip(unknown, replies, strict=True))
        return [self._answers[prompt] for prompt in prompts]

    def link(self, pairs: Sequence[tuple[str, str]]) -> Program[list[float]]:
        """Return w, the mean of both directions of entailment, for pairs of answers (Eq. 5).

        Identical answers need no judge, and an empty one means the same as an empty one only.
        """
        wanted = [Statements(*pair) for a, b in pairs if a != b and a and b for pair in ((a, b), (b, a))]
        cache = self._memory.cache.links
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
        prompt = self.options.prompts["sufficient"].render(question=self.question, passages=shown)
        [[reply]] = yield from generate([prompt], _VERDICT)
        self._count([reply], Calls(evaluations=1))
        verdict = says_yes(reply.text)
        if verdict is None:
            yield from emit(
                "dense.unclear_evaluation", warning=True, question=self.question, reply=reply.text[:80]
            )
        return bool(verdict)

    def _rephrasing_prompts(self, passages: Sequence[Passage]) -> dict[str, Prompt]:
        template = self.options.prompts["rephrase"]
        texts = dict.fromkeys(passage.text for passage in passages if passage.text.strip())
        return {text: template.render(passage=text) for text in texts}

    def _rephrasing_key(self, prompt: Prompt) -> str:
        return self._memory.rephrasing_key(prompt, self.options.rephrase_tokens)

    def _link_key(self, one: Statements) -> str:
        pair = Pair(one.premise, one.hypothesis, self.question)
        return self._memory.link_key(pair, self.options.entailment_threshold)

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
        if self.options.entailment_threshold is not None:
            return [bool(row[_ENTAILMENT] >= self.options.entailment_threshold) for row in found]
        # A tie is no entailment: the first of the largest is taken, and entailment comes last.
        return [int(row.argmax()) == _ENTAILMENT for row in found]

    def _count(self, replies: Sequence[Generation], calls: Calls) -> None:
        self.calls += replace(
            calls,
            prompt_tokens=sum(reply.prompt_tokens for reply in replies),
            completion_tokens=sum(reply.completion_tokens for reply in replies),
            cached_tokens=sum(reply.cached_tokens for reply in replies),
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
