"""Refine a context that the reader does not understand (DENSE-RAG, Algorithm 3).

In each round, unnecessary chunks are removed, and the passages that are most similar to necessary chunks are
added. The loop always ends: a removed chunk never returns, and the numbers of rounds and calls are limited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surerag.effects import Program, Retrieve, emit, perform
from surerag.errors import ServiceError, check_question
from surerag.messages import EVENT_SENTENCES, Passage
from surerag.methods.dense.algorithm import DenseSession, label, measure
from surerag.methods.dense.chunking import chunk_passages
from surerag.methods.dense.options import DenseRefinerOptions, Stop
from surerag.methods.dense.result import DenseRefinerResult, DenseResult, Round, Stopped, best_round
from surerag.methods.shared import MUST_RAISE, check_passages, embed_unit, unit_vectors
from surerag.readers.failures import in_plain_words

_DECIMALS = 6
"""Number of decimals of similarities; passages with equal similarities keep their order."""


def refine_context(
    session: DenseSession,
    passages: Sequence[Passage],
    options: DenseRefinerOptions,
    *,
    documents: Sequence[Passage] = (),
    chunker: Any = None,
    retrieves: bool = False,
) -> Program[DenseRefinerResult]:
    """Measure and change a context in rounds, and return the best context (Algorithm 3).

    Arguments and errors are those of :meth:`surerag.DenseRefiner.program`. ``chunker`` is a
    ``SemanticChunker`` or None. ``retrieves`` says whether there is a retriever for more passages.
    """
    question = session.question
    check_question(question)
    check_passages(passages)
    check_passages(documents)
    pool = Pool(question, passages, 4 * options.top_n if retrieves else 0)
    rounds: list[Round] = []
    failure = ""
    try:
        stopped = yield from _go_through_rounds(session, pool, options, documents, chunker, rounds)
    except MUST_RAISE:
        raise
    except Exception as error:
        if options.on_failure == "raise":
            raise
        stopped, failure = "failed", in_plain_words(error)
        yield from emit("dense_refiner.failed", warning=True, question=question, reason=failure)
    yield from session.budget.warn("dense_refiner", question)
    best = best_round(rounds)
    result = DenseRefinerResult(
        question=question,
        passages=tuple(passages[: options.top_n]) if best is None else best.measured.passages,
        answer=None if best is None else best.measured.answer,
        score=None if best is None else best.measured.score,
        rounds=tuple(rounds),
        stopped=stopped,
        calls=session.budget.spent,
        failure=failure,
    )
    yield from emit("dense_refiner.refined", detail=result, question=question, **result.to_dict())
    return result


def _go_through_rounds(
    session: DenseSession,
    pool: Pool,
    options: DenseRefinerOptions,
    documents: Sequence[Passage],
    chunker: Any,
    rounds: list[Round],
) -> Program[Stopped]:
    context = pool.first(options.top_n)
    evaluates = options.stop != "certain"
    while context:
        if not session.budget.affords(session.cost(context, len(context)) + evaluates):
            return "calls"
        measured = yield from measure(session, context)
        if not rounds and measured.certain:
            rounds.append(Round(measured, None, best=True))
            return "certain"
        sufficient = None
        if evaluates:
            sufficient = yield from session.sufficient([passage.text for passage in context])
        entry = Round(measured, sufficient)
        better = improves(entry, best_round(rounds), options.stop)
        rechunks = chunker and documents  # at most once, before the loop of Algorithm 3 (section 5.1)
        satisfied = not rechunks and meets(entry, better, options.stop)
        rounds.append(replace(entry, best=better or satisfied))
        if satisfied:
            return "satisfied"
        if len(rounds) == options.max_rounds:
            return "rounds"
        if rechunks:
            chunks, documents = (yield from chunk_passages(documents, chunker)), ()
            if chunks:
                yield from pool.replace(chunks)
                context = pool.first(options.top_n)
                rounds[-1] = replace(rounds[-1], rechunked=True)
                continue
        following = yield from _exchange_chunks(session, pool, options, rounds)
        if isinstance(following, str):
            return following
        context = following
    return "empty"


def _exchange_chunks(
    session: DenseSession, pool: Pool, options: DenseRefinerOptions, rounds: list[Round]
) -> Program[list[Passage] | Stopped]:
    measured = rounds[-1].measured
    uncertain = sum(chunk.label == "uncertain" for chunk in measured.chunks)
    if not session.budget.affords(3 * uncertain):
        return "calls"
    measured = yield from label(session, measured)
    stays, removed = prune(measured)
    # The candidate nearest to each necessary chunk is added (Algorithm 3, lines 33 to 38).
    necessary = [chunk.passage for chunk in measured.chunks if chunk.label == "necessary"]
    added = yield from pool.nearest(necessary[: max(options.largest - len(stays), 0)])
    rounds[-1] = replace(rounds[-1], measured=measured, removed=tuple(removed), added=tuple(added))
    if not removed and not added:
        return "unchanged"
    # The kept chunks come first and in the same order, so that successive prompts share a prefix.
    return [*stays, *added]


def prune(measured: DenseResult) -> tuple[list[Passage], list[Passage]]:
    """Return two lists: the chunks of a context that are kept, and the unnecessary chunks.

    If all chunks are unnecessary, the first chunk is kept.
    """
    stays = [chunk.passage for chunk in measured.chunks if chunk.label != "unnecessary"]
    removed = [chunk.passage for chunk in measured.chunks if chunk.label == "unnecessary"]
    return (stays, removed) if stays else (removed[:1], removed[1:])


def meets(entry: Round, better: bool, stop: Stop) -> bool:
    """Return whether a round meets the condition of the option ``stop``.

    The condition ``"both"`` has three parts: the score is at most the threshold, the reader judges the
    context to be sufficient, and the context is better than all earlier contexts (``better``).
    """
    certain, sufficient = entry.measured.certain, bool(entry.sufficient)
    return {
        "both": certain and sufficient and better,
        "either": certain or sufficient,
        "certain": certain,
        "sufficient": sufficient,
    }[stop]


def improves(entry: Round, best: Round | None, stop: Stop) -> bool:
    """Return whether a round's context is better than the best so far (Algorithm 3, lines 8 to 12).

    A conclusive score (see :attr:`surerag.methods.dense.result.DenseResult.conclusive`) always beats a score
    that is not conclusive. Otherwise the lower score is better. There is an exception with ``stop="both"``:
    a context that the reader judges to be insufficient never replaces a sufficient context.
    """
    if best is None:
        return True
    if entry.measured.conclusive != best.measured.conclusive:
        return entry.measured.conclusive
    if stop == "both" and best.sufficient and not entry.sufficient:
        return False
    return entry.measured.score < best.measured.score


class Pool:
    """The passages of one question that can be added to a context; each text is added only once.

    When all passages have been added, the retriever is called once, and returns ``more`` further passages. If
    ``more`` is 0, the retriever is not called.
    """

    def __init__(self, question: str, passages: Sequence[Passage], more: int) -> None:
        self._question = question
        self._passages = [passage for passage in passages if passage.text.strip()]
        self._more = more
        self._visited: set[str] = set()
        self._encoded: dict[str, NDArray[np.float64]] = {}

    def first(self, count: int) -> list[Passage]:
        """Return the first ``count`` passages of the pool, used or not, and mark them as used."""
        self._visited.update(passage.text for passage in self._passages[:count])
        return self._passages[:count]

    def nearest(self, anchors: Sequence[Passage]) -> Program[list[Passage]]:
        """Return, for each passage in ``anchors``, the most similar passage that was not added yet.

        The returned passages count as added. If fewer passages are left than there are anchors, the last
        anchors get no passage.
        """
        if not anchors:
            return []
        if not self._candidates() and self._more:
            retrieved = yield from perform(Retrieve(self._question, self._more))
            self._more = 0
            self._passages += [passage for passage in retrieved if passage.text.strip()]
        candidates = self._candidates()
        if not candidates:
            return []
        vectors = yield from self._vectors([*anchors, *candidates])
        similarities = np.round(vectors[: len(anchors)] @ vectors[len(anchors) :].T, _DECIMALS)
        taken: list[Passage] = []
        for row in similarities[: len(candidates)]:
            place = int(row.argmax())
            taken.append(candidates[place])
            similarities[:, place] = -np.inf
        self._visited.update(passage.text for passage in taken)
        return taken

    def replace(self, passages: Sequence[Passage]) -> Program[None]:
        """Replace all passages by other passages, ordered by their similarity to the question."""
        passages = list({passage.text: passage for passage in reversed(passages)}.values())[::-1]
        vectors = yield from self._vectors(passages)
        query = (yield from embed_unit([self._question], "query"))[0]
        if len(query) != vectors.shape[1]:
            raise ServiceError(
                f"the passages' vectors have {vectors.shape[1]} dimensions, but the question's vector has "
                f"{len(query)}",
                hint="embed all passages and the question with the same encoder",
            )
        order = np.argsort(-np.round(vectors @ query, _DECIMALS), kind="stable")
        self._passages = [passages[place] for place in order]

    def _candidates(self) -> list[Passage]:
        texts: dict[str, Passage] = {}
        for passage in self._passages:
            if passage.text not in self._visited:
                texts.setdefault(passage.text, passage)
        return list(texts.values())

    def _vectors(self, passages: Sequence[Passage]) -> Program[NDArray[np.float64]]:
        own = [passage.embedding for passage in passages]
        if all(own) and len({len(vector or ()) for vector in own}) == 1:
            return unit_vectors(own, len(own))
        new = list(dict.fromkeys(one.text for one in passages if one.text not in self._encoded))
        if new:
            vectors = yield from embed_unit(new, "document")
            self._encoded.update(zip(new, vectors, strict=True))
        return np.array([self._encoded[passage.text] for passage in passages])


EVENT_SENTENCES |= {
    "dense_refiner.documents_missing": "The original documents of some chunks are missing",
    "dense_refiner.failed": "The refinement failed; the best context so far, or the first, is returned",
    "dense_refiner.out_of_calls": "The limit of {max_calls} calls was reached before the refinement ended",
    "dense_refiner.refined": "The passages were refined",
}
