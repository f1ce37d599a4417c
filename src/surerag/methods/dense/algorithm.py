"""DENSE: measure whether a reader gives the same answer if a chunk of its context is rephrased.

"DENSE-RAG: Measuring and Improving Context Understanding for Consistent Retrieval-Augmented Generation",
section 4 (Algorithm 1), and the labels of section 5.2 (Algorithm 3, lines 16 to 27).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from surerag.effects import Generate, Program, emit, perform
from surerag.errors import InputError, check_question
from surerag.lru import LRUDict
from surerag.measures import degree_semantic_entropy
from surerag.messages import EVENT_SENTENCES, Generation, Pair, Passage, Prompt, SamplingParams
from surerag.methods.dense.options import DenseOptions, DenseRefinerOptions
from surerag.methods.dense.result import ChunkResult, DenseResult, Rephrasing
from surerag.methods.shared import CallBudget, check_passages, is_yes, judge
from surerag.prompts import format_passages

Rephrasings = LRUDict[str]
"""Cache of rephrased chunks; a key consists of the reader's name, the maximum length and the prompt."""


def dense(
    session: DenseSession, passages: Sequence[Passage], label_chunks: bool = False
) -> Program[DenseResult]:
    """Measure how well a reader understands a context (Algorithm 1).

    With ``label_chunks``, chunks are also labelled as necessary or unnecessary for the answer. If
    ``max_calls`` is too small for all chunks, only the first chunks are rephrased. Errors are those of
    :meth:`surerag.DenseEvaluator.program`.
    """
    check_question(session.question)
    check_passages(passages)
    if not any(passage.text.strip() for passage in passages):
        raise InputError("no passage of the context has a text", hint="pass at least one passage with a text")
    result = yield from measure(session, passages, session.affordable(passages))
    if label_chunks:
        uncertain = sum(chunk.label == "uncertain" for chunk in result.chunks)
        affords = session.budget.affords(3 * uncertain)
        result = yield from label(session, result, None if affords else int(session.budget.left // 3))
    result = replace(result, out_of_calls=session.budget.exhausted)
    yield from session.budget.warn("dense", session.question)
    yield from emit("dense.measured", detail=result, question=session.question, **result.to_dict())
    return result


def measure(
    session: DenseSession, passages: Sequence[Passage], tested: int | None = None
) -> Program[DenseResult]:
    """Measure the semantic entropy of the answers from a context and its rephrased variants (Algorithm 1).

    In each variant one chunk is rephrased. Only the first ``tested`` chunks are rephrased; None means all.
    """
    before = session.budget.spent, session.unusable
    rephrased = yield from session.rephrase(passages[:tested])
    context = [passage.text for passage in passages]
    edits = [[*context[:at], text, *context[at + 1 :]] for at, (text, _) in enumerate(rephrased)]  # Eq. 4
    # The variant with the last chunk rephrased comes first: it shares the longest prefix with the context.
    original, *edited = yield from session.answer([context, *reversed(edits)])
    answers = [original, *reversed(edited)]
    texts = [answer.text.strip() for answer in answers]
    links = yield from _link_matrix(session, texts)
    score = degree_semantic_entropy(links)
    chunks = [
        ChunkResult(passage, text, outcome, answer, link, "certain" if link == 1 else "uncertain")  # Eq. 8
        for passage, (text, outcome), answer, link in zip(
            passages[:tested], rephrased, texts[1:], links[1:, 0].tolist(), strict=True
        )
    ]
    chunks += [
        ChunkResult(passage, passage.text, "untested", texts[0], 1.0, "untested")
        for passage in passages[len(rephrased) :]
    ]
    result = DenseResult(
        question=session.question,
        score=score,
        certain=False,
        answers=tuple(texts),
        links=tuple(tuple(row) for row in links.tolist()),
        chunks=tuple(chunks),
        generation=original,
        calls=session.budget.spent - before[0],
        truncated=sum(answer.is_cut for answer in answers),
        empty=texts.count(""),
        unusable=session.unusable - before[1],
    )
    if not result.conclusive:
        yield from emit(
            "dense.not_conclusive",
            warning=True,
            question=session.question,
            rephrased=sum(chunk.outcome == "rephrased" for chunk in chunks),
            truncated=result.truncated,
            empty=result.empty,
            answers=len(answers),
            max_tokens=session.max_tokens,
        )
    return replace(result, certain=result.conclusive and score <= session.options.threshold)


def label(session: DenseSession, result: DenseResult, most: int | None = None) -> Program[DenseResult]:
    """Label each uncertain chunk as necessary or unnecessary for the answer (Eq. 9).

    A chunk is uncertain if the answer changes when the chunk is rephrased. An uncertain chunk is unnecessary
    if the answers from the contexts with and without it entail each other (Algorithm 3, line 24).
    The paper's Eq. 10, which demands entailment in one direction only, is not used. Only the first ``most``
    uncertain chunks are labelled; None means all.
    """
    before = session.budget.spent, session.unusable
    context = [chunk.passage.text for chunk in result.chunks]
    uncertain = [at for at, chunk in enumerate(result.chunks) if chunk.label == "uncertain"][:most]
    replies = yield from session.answer([[*context[:at], *context[at + 1 :]] for at in uncertain])
    texts = [reply.text.strip() for reply in replies]
    links = yield from session.link([(result.answer, text) for text in texts])
    chunks = list(result.chunks)
    for at, text, link in zip(uncertain, texts, links, strict=True):
        chunks[at] = replace(
            chunks[at], label="unnecessary" if link == 1 else "necessary", masked_answer=text
        )
    return replace(
        result,
        chunks=tuple(chunks),
        calls=result.calls + session.budget.spent - before[0],
        unusable=result.unusable + session.unusable - before[1],
    )


def _link_matrix(session: DenseSession, answers: Sequence[str]) -> Program[NDArray[np.float64]]:
    pairs = list(combinations(range(len(answers)), 2))
    values = yield from session.link([(answers[i], answers[j]) for i, j in pairs])
    links = np.eye(len(answers))
    for (i, j), value in zip(pairs, values, strict=True):
        links[i, j] = links[j, i] = value
    return links


@dataclass(eq=False)
class DenseSession:
    """Calls the models for one question, and caches their replies.

    The attribute ``reader`` is the reader's name.
    """

    question: str
    options: DenseOptions | DenseRefinerOptions
    max_tokens: int
    reader: str
    rephrasings: Rephrasings

    def __post_init__(self) -> None:
        self.budget = CallBudget(self.options.max_calls)
        self.unusable = 0
        self._answers: dict[Prompt, Generation] = {}
        self._entails: dict[tuple[str, str], bool] = {}

    def cost(self, passages: Sequence[Passage], tested: int) -> int:
        """Return how many model calls a measurement of ``passages`` needs at most.

        ``tested`` is the number of chunks that are rephrased. If answers are equal, fewer calls are needed.
        """
        keys = {self._key(passage.text) for passage in passages[:tested] if passage.text.strip()}
        new = sum(self.rephrasings.get(key) is None for key in keys)
        return new + (tested + 1) + tested * (tested + 1)

    def affordable(self, passages: Sequence[Passage]) -> int:
        """Return how many chunks, counted from the first, can be rephrased within the budget of calls."""
        if self.budget.affords(self.cost(passages, len(passages))):
            return len(passages)
        numbers = range(len(passages) - 1, 0, -1)
        return next((number for number in numbers if self.budget.affords(self.cost(passages, number))), 0)

    def rephrase(self, passages: Sequence[Passage]) -> Program[list[tuple[str, Rephrasing]]]:
        """Rephrase each chunk without the other chunks (Eq. 3).

        For each chunk, return the new text and ``"rephrased"``, or the old text and the reason why
        the new text is not used (``"empty"``, …).
        """
        texts = list(dict.fromkeys(passage.text for passage in passages if passage.text.strip()))
        rephrased = {text: self.rephrasings.get(self._key(text)) for text in texts}
        new = [text for text in texts if rephrased[text] is None]
        if new:
            sampling = SamplingParams(max_tokens=self.options.rephrase_max_tokens, trace="none")
            replies = yield from self._generate([self._rephrase_prompt(text) for text in new], sampling)
            for text, reply in zip(new, replies, strict=True):
                if not reply.is_cut:
                    rephrased[text] = reply.text.strip()
                    self.rephrasings.put(self._key(text), reply.text.strip())
        results = [_rephrasing(passage.text, rephrased.get(passage.text, "")) for passage in passages]
        unused = [
            passage.id for passage, (_, how) in zip(passages, results, strict=True) if how in ("cut", "empty")
        ]
        if unused:
            yield from emit("dense.not_rephrased", warning=True, question=self.question, ids=unused)
        return results

    def answer(self, contexts: Sequence[Sequence[str]]) -> Program[list[Generation]]:
        """Return the greedy answer from each context (a list of texts); equal contexts share one call."""
        prompts = [self._answer_prompt(context) for context in contexts]
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._answers]
        if new:
            sampling = SamplingParams(max_tokens=self.max_tokens, trace="none")
            replies = yield from self._generate(new, sampling)
            self._answers.update(zip(new, replies, strict=True))
        return [self._answers[prompt] for prompt in prompts]

    def link(self, pairs: Sequence[tuple[str, str]]) -> Program[list[float]]:
        """Return the link w of each pair of answers (Eq. 5).

        The link is 1 if the answers are equal or each entails the other, ½ if only one entails the other, and
        0 if neither does, or if only one is empty.
        """
        ordered = [both for a, b in pairs if a != b and a and b for both in ((a, b), (b, a))]
        new = [pair for pair in dict.fromkeys(ordered) if pair not in self._entails]
        if new:
            self.budget.spend(len(new))
            judged = yield from judge([Pair(a, b, self.question) for a, b in new])
            self.unusable += judged.unusable
            self._entails.update((pair, judged.entails(*pair)) for pair in new)
        return [
            float(a == b) if a == b or not a or not b else (self._entails[a, b] + self._entails[b, a]) / 2
            for a, b in pairs
        ]

    def sufficient(self, context: Sequence[str]) -> Program[bool]:
        """Ask the reader whether a context suffices to answer the question; an unclear reply counts as no."""
        passages = format_passages(context)
        prompt = self.options.prompts["sufficient"].render(question=self.question, passages=passages)
        [reply] = yield from self._generate([prompt], SamplingParams(max_tokens=8, trace="none"))
        verdict = is_yes(reply.text)
        if verdict is None:
            yield from emit(
                "dense.unclear_evaluation", warning=True, question=self.question, reply=reply.text[:80]
            )
        return bool(verdict)

    def _generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> Program[list[Generation]]:
        self.budget.spend(len(prompts))
        return [row[0] for row in (yield from perform(Generate(prompts, sampling)))]

    def _answer_prompt(self, texts: Sequence[str]) -> Prompt:
        if not texts:
            return self.options.prompts["closed_book"].render(question=self.question)  # type: ignore[no-any-return]
        passages = format_passages(texts)
        return self.options.prompts["answer"].render(question=self.question, passages=passages)  # type: ignore[no-any-return]

    def _rephrase_prompt(self, text: str) -> Prompt:
        return self.options.prompts["rephrase"].render(passage=text)  # type: ignore[no-any-return]

    def _key(self, text: str) -> tuple[str, int, Prompt]:
        return self.reader, self.options.rephrase_max_tokens, self._rephrase_prompt(text)


def _rephrasing(text: str, changed: str | None) -> tuple[str, Rephrasing]:
    if not changed:
        return text, "cut" if changed is None else "empty"
    same = changed.casefold().split() == text.casefold().split()
    return (text, "unchanged") if same else (changed, "rephrased")


EVENT_SENTENCES |= {
    "dense.measured": "The reader's understanding of the passages was measured",
    "dense.invalid": "The uncertainty could not be measured",
    "dense.no_parents": "The original documents were not cut into new chunks",
    "dense.not_rephrased": "Some passages could not be rephrased and are left as they are",
    "dense.not_conclusive": "No passage was rephrased, or an answer is empty or cut off: the score is void",
    "dense.out_of_calls": "The limit of {max_calls} calls was reached, and some passages were not measured",
    "dense.unclear_evaluation": "The model's reply is neither yes nor no, and counts as no",
}
