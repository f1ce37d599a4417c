"""DENSE: did the reader understand its context?

"DENSE-RAG: Measuring and Improving Context Understanding for Consistent Retrieval-Augmented Generation",
section 4, and the labels of section 5.2. A reader that understands a text gives the same answer when a part
of it is said in other words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from surerag.effects import Program, emit
from surerag.errors import InputError
from surerag.measures import degree_semantic_entropy
from surerag.methods.dense_asking import Asking
from surerag.methods.dense_types import ChunkReading, DenseResult, DenseSettings, Rephrased
from surerag.types import Generation, Passage

_BATCH = 256
"""Chunks of a corpus that are rephrased together."""


def dense(question: str, passages: Sequence[Passage], settings: DenseSettings) -> Program[DenseResult]:
    """Algorithm 1, and where ``settings.mask`` says so the labels of Eq. 8 to 10.

    Calls at most, for k chunks: k rephrasings, k + 1 answers, k (k + 1) judgements, and for the labels
    k answers and 2 k judgements; k² + 6 k + 1 in all.

    Args:
        question: Not empty.
        passages: The context, at least one passage. They are not changed.
        settings: What steers the method.

    Raises:
        InputError: If there is no question, or no passage with a text.
    """
    if not question.strip():
        raise InputError("the question is empty", hint="ask something")
    if not any(passage.text.strip() for passage in passages):
        raise InputError("there is no context to understand", hint="give at least one passage with a text")
    asking = Asking(question, settings)
    result = yield from measure(asking, passages)
    if settings.mask:
        result = yield from label(asking, result)
    yield from emit("dense.measured", detail=result, question=question, **result.to_dict())
    return result


def prepare(passages: Sequence[Passage], settings: DenseSettings) -> Program[int]:
    """Rephrase a corpus before any question is asked, so that no question has to; return what is now known.

    Chunks go to the reader in batches, and what a batch gave is in the cache when the next one fails.
    """
    asking = Asking("", settings)
    for start in range(0, len(passages), _BATCH):
        yield from asking.rephrase(passages[start : start + _BATCH])
    return len(passages) - asking.unrephrased(passages)


def measure(asking: Asking, passages: Sequence[Passage]) -> Program[DenseResult]:
    """Algorithm 1: rephrase, answer under k + 1 contexts, link the answers, take the entropy."""
    before = asking.calls
    rephrased = yield from asking.rephrase(passages)
    answers = yield from _answers(asking, passages, rephrased)
    texts = [answer.text.strip() for answer in answers]
    links = yield from _links(asking, texts)
    score = degree_semantic_entropy(links)
    tested = any(one.outcome == "rephrased" for one in rephrased)
    if not tested:
        # Equal contexts have equal answers: that says nothing about understanding.
        yield from emit("dense.untested", warning=True, question=asking.question)
    return DenseResult(
        question=asking.question,
        score=score,
        certain=tested and score <= asking.settings.threshold,
        answers=tuple(texts),
        links=tuple(tuple(row) for row in links.tolist()),
        chunks=tuple(
            ChunkReading(passage, one, answer, link, "certain" if link == 1 else "uncertain")
            for passage, one, answer, link in zip(
                passages, rephrased, texts[1:], links[1:, 0].tolist(), strict=True
            )
        ),
        generation=answers[0],
        calls=asking.calls - before,
    )


def label(asking: Asking, result: DenseResult) -> Program[DenseResult]:
    """Tell necessary chunks from unnecessary ones by the answer without each uncertain one (Eq. 9 and 10)."""
    before = asking.calls
    context = [chunk.passage.text for chunk in result.chunks]
    uncertain = [at for at, chunk in enumerate(result.chunks) if chunk.label != "certain"]
    masked = [[*context[:at], *context[at + 1 :]] for at in uncertain]
    replies = yield from asking.answer(masked)
    texts = [reply.text.strip() for reply in replies]
    links = yield from asking.link([(result.answer, text) for text in texts])
    chunks = list(result.chunks)
    for at, text, link in zip(uncertain, texts, links, strict=True):
        same = link == 1 or (link == 0.5 and asking.settings.half == "unnecessary")
        chunks[at] = replace(
            chunks[at],
            label="unnecessary" if same else "necessary",
            masked_answer=text,
            masked_link=link,
        )
    return replace(result, chunks=tuple(chunks), calls=result.calls + asking.calls - before)


def _answers(
    asking: Asking, passages: Sequence[Passage], rephrased: Sequence[Rephrased]
) -> Program[list[Generation]]:
    """Answer under C_0 and its k single edits (Eq. 4), r_0 first.

    The edits are asked about from the last chunk to the first, the longest common beginning with C_0 first:
    k chunks of L tokens cost k L + L k (k + 1) / 2 tokens of reading where prefixes are shared.
    """
    context = [passage.text for passage in passages]
    edits = [[*context[:at], one.text, *context[at + 1 :]] for at, one in enumerate(rephrased)]
    if asking.settings.original_first:
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
