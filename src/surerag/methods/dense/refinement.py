"""Iterative context refinement: mend a context that the reader does not understand (DENSE-RAG, Algorithm 3).

Unnecessary chunks leave, and the candidates nearest to necessary ones come. It ends, whatever models reply: a
chunk that was in a context once is never taken again, and rounds and calls have limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surerag.effects import Program, emit, retrieve
from surerag.errors import ServiceError
from surerag.messages import Passage
from surerag.methods.dense.algorithm import DenseSession, DenseSettings, label, measure
from surerag.methods.dense.chunking import chunk_passages
from surerag.methods.dense.options import DenseRefinerOptions
from surerag.methods.dense.result import DenseRefinerResult, DenseResult, Round, Stopped
from surerag.methods.service_answers import embed_unit, unit_vectors
from surerag.methods.shared import MUST_RAISE, CallBudget, check_passages, check_question

_DECIMALS = 6
"""Similarities are compared to this many decimals; ties go to the better rank."""


def refine_context(
    question: str,
    passages: Sequence[Passage],
    options: DenseRefinerOptions,
    settings: DenseSettings,
    *,
    documents: Sequence[Passage] = (),
    chunker: Any = None,
    retrieves: bool = False,
) -> Program[DenseRefinerResult]:
    """Measure, prune, refill and measure again; return the best context (Algorithm 3).

    Args:
        question: Not empty.
        passages: Best first; the first ``top_n`` are the context, the others candidates.
        options: Options of the method.
        settings: What measuring needs.
        documents: The documents behind the passages, whole, to be cut anew.
        chunker: How to cut them; None leaves chunks as they are.
        retrieves: Whether there is a retriever to ask for more candidates.

    Raises:
        InputError: If the question is no text, or empty, or a passage is none.
    """
    check_question(question)
    check_passages(passages)
    check_passages(documents)
    session = DenseSession(question, settings, CallBudget(options.max_calls))
    refinement = _Refinement(
        session,
        passages,
        options,
        documents if chunker else (),
        chunker,
        4 * options.top_n if retrieves else 0,
    )
    failure = ""
    try:
        stopped = yield from refinement.run()
    except MUST_RAISE:
        raise
    except Exception as error:
        if options.on_failure == "raise":
            raise
        stopped, failure = "failed", f"{type(error).__name__}: {error}"
        yield from emit("dense_refiner.failed", warning=True, question=question, reason=failure)
    yield from session.budget.warn("dense_refiner", question)
    best = refinement.best
    result = DenseRefinerResult(
        question=question,
        passages=tuple(passages[: options.top_n]) if best is None else best.measured.passages,
        answer=None if best is None else best.measured.answer,
        score=None if best is None else best.measured.score,
        rounds=tuple(refinement.rounds),
        stopped=stopped,
        calls=session.budget.spent,
        failure=failure,
    )
    yield from emit("dense_refiner.refined", detail=result, question=question, **result.to_dict())
    return result


class _Refinement:
    """The contexts of one question."""

    def __init__(
        self,
        session: DenseSession,
        passages: Sequence[Passage],
        options: DenseRefinerOptions,
        documents: Sequence[Passage],
        chunker: Any,
        more: int,
    ) -> None:
        self._session = session
        self._options = options
        self._documents = documents
        self._chunker = chunker
        passages = [passage for passage in passages if passage.text.strip()]
        self._context = passages[: options.top_n]
        self._pool = Pool(session.question, passages, more)
        self._pool.visit(self._context)
        self.rounds: list[Round] = []
        self.best: Round | None = None

    def run(self) -> Program[Stopped]:
        """Go through the rounds; return why they ended."""
        if not self._context:
            return "empty"
        for number in range(1, self._options.max_rounds + 1):
            k = len(self._context)
            if not self._session.budget.affords(self._session.cost(self._context, k) + 1):
                return "calls"
            measured = yield from measure(self._session, self._context)
            if number == 1 and measured.certain:
                self._record(Round(measured, None), satisfied=True)
                return "certain"
            sufficient = yield from self._session.sufficient([passage.text for passage in self._context])
            satisfied = measured.certain and sufficient
            self._record(Round(measured, sufficient), satisfied)
            if satisfied:
                return "satisfied"
            if number == self._options.max_rounds:
                break
            if self._documents and (yield from self._rechunk()):
                self._settle(rechunked=True)
                continue
            uncertain = sum(chunk.label == "uncertain" for chunk in measured.chunks)
            if not self._session.budget.affords(3 * uncertain):
                return "calls"
            measured = yield from label(self._session, measured)
            stays, removed = prune(measured)
            added = yield from self._refill(measured, len(stays))
            self._settle(measured=measured, removed=tuple(removed), added=tuple(added))
            if not removed and not added:
                return "unchanged"
            # Chunks that stay keep their places, so that the contexts share their beginning.
            self._context = [*stays, *added]
        return "rounds"

    def _record(self, entry: Round, satisfied: bool) -> None:
        """Record a round as soon as it is measured, so that a later failure does not lose it."""
        better = satisfied or improves(entry, self.best)
        self.rounds.append(replace(entry, best=better))
        if better:
            self.best = self.rounds[-1]

    def _settle(self, **changes: Any) -> None:
        """Add to the last round what comes after it."""
        was_best = self.best is self.rounds[-1]
        self.rounds[-1] = replace(self.rounds[-1], **changes)
        if was_best:
            self.best = self.rounds[-1]

    def _refill(self, measured: DenseResult, size: int) -> Program[list[Passage]]:
        """Take the candidate nearest to each necessary chunk (Algorithm 3, lines 33 to 38)."""
        anchors = [chunk.passage for chunk in measured.chunks if chunk.label == "necessary"]
        room = self._options.largest - size
        if not anchors or room <= 0:
            return []
        return (yield from self._pool.nearest(anchors[:room]))

    def _rechunk(self) -> Program[bool]:
        """Cut the documents anew and take the chunks nearest to the question (section 5.1), once."""
        documents, self._documents = self._documents, ()
        chunks = yield from chunk_passages(documents, self._chunker)
        ranked = yield from self._pool.replace(chunks)
        if ranked:
            self._context = ranked[: self._options.top_n]
            self._pool.visit(self._context)
        return bool(ranked)


def prune(measured: DenseResult) -> tuple[list[Passage], list[Passage]]:
    """Return the chunks that stay and those that leave; the first one stays where all are unnecessary."""
    stays = [chunk.passage for chunk in measured.chunks if chunk.label != "unnecessary"]
    removed = [chunk.passage for chunk in measured.chunks if chunk.label == "unnecessary"]
    return (stays, removed) if stays else (removed[:1], removed[1:])


def improves(entry: Round, best: Round | None) -> bool:
    """Whether a context replaces the best one so far (Algorithm 3, lines 7 to 12).

    A context that was judged sufficient gives way only to another such one with a lower score; of two equal
    scores, that of a sufficient context wins. A score that is not conclusive is worse than any that is.
    """
    if best is None:
        return True
    if entry.measured.conclusive != best.measured.conclusive:
        return entry.measured.conclusive
    if best.sufficient and not entry.sufficient:
        return False
    score, lowest = entry.measured.score, best.measured.score
    return score < lowest or (score == lowest and bool(entry.sufficient) and not best.sufficient)


class Pool:
    """The candidates of one question; a text that was in a context once is never taken again.

    Args:
        question: The question.
        passages: The retrieved passages, best first.
        more: Passages to ask the retriever for, once, when no candidate is left; 0 for none.
    """

    def __init__(self, question: str, passages: Sequence[Passage], more: int) -> None:
        self._question = question
        self._passages = list(passages)
        self._more = more
        self._visited: set[str] = set()

    def visit(self, passages: Sequence[Passage]) -> None:
        """Note the chunks of a context."""
        self._visited.update(passage.text for passage in passages)

    def nearest(self, anchors: Sequence[Passage]) -> Program[list[Passage]]:
        """Take the candidate nearest to each anchor, in order."""
        if not self._candidates() and self._more:
            retrieved = yield from retrieve(self._question, self._more)
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
        self.visit(taken)
        return taken

    def replace(self, passages: Sequence[Passage]) -> Program[list[Passage]]:
        """Put other passages in the place of all, and return them by similarity to the question."""
        self._passages = list({passage.text: passage for passage in reversed(passages)}.values())[::-1]
        if not self._passages:
            return []
        vectors = yield from self._vectors(self._passages)
        query = (yield from embed_unit([self._question], "query"))[0]
        if len(query) != vectors.shape[1]:
            raise ServiceError(
                f"vectors have {vectors.shape[1]} and {len(query)} dimensions",
                hint="encode all passages and the question with one encoder",
            )
        order = np.argsort(-np.round(vectors @ query, _DECIMALS), kind="stable")
        self._passages = [self._passages[place] for place in order]
        return list(self._passages)

    def _candidates(self) -> list[Passage]:
        texts: dict[str, Passage] = {}
        for passage in self._passages:
            if passage.text not in self._visited:
                texts.setdefault(passage.text, passage)
        return list(texts.values())

    def _vectors(self, passages: Sequence[Passage]) -> Program[NDArray[np.float64]]:
        """Return the vectors that the passages have, if all have one; else the encoder's."""
        own = [passage.embedding for passage in passages]
        if all(own) and len({len(vector or ()) for vector in own}) == 1:
            return unit_vectors(own, len(own))
        return (yield from embed_unit([passage.text for passage in passages], "document"))
