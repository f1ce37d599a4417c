"""Iterative context refinement: mend a context that was not understood (DENSE-RAG, Algorithm 3).

Chunks that only confuse leave; chunks that matter, and are not understood, draw in what is nearest to them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.effects import Program, embed, emit, retrieve
from surerag.errors import MISCONFIGURED, ServiceError
from surerag.messages import Passage
from surerag.methods.dense.algorithm import Asking, label, measure
from surerag.methods.dense.chunking import chunk_passages
from surerag.methods.dense.options import DenseRefinerOptions
from surerag.methods.dense.result import (
    Addition,
    Calls,
    DenseRefinerResult,
    DenseResult,
    Round,
    Stopped,
)
from surerag.methods.inputs import check_passages, check_question

Documents = Sequence[Passage] | Literal["ask"]
"""The documents behind a question's passages, or that a service is to be asked for them."""


def refine_context(
    question: str,
    passages: Sequence[Passage],
    options: DenseRefinerOptions,
    documents: Documents = (),
) -> Program[DenseRefinerResult]:
    """Measure, prune, refill and measure again, and return the best context found (Algorithm 3).

    It ends, whatever the models say: a chunk that left never comes back, so that with N candidates no more
    than 2 N rounds can change anything, and rounds and calls have bounds of their own. Calls at most: see
    :func:`worst_case_calls`.

    Args:
        question: Not empty.
        passages: What was retrieved, best first; the first ``top_n`` are the context, the others candidates.
        options: What steers the method.
        documents: The documents behind the passages, whole; needed to cut them anew. ``"ask"`` asks the
            service ``documents`` for them, of uncertain questions only.

    Raises:
        InputError: If the question is no text, or empty, or a passage is none.
    """
    check_question(question)
    check_passages(passages)
    refinement = _Refinement(question, passages, options, documents)
    failure = ""
    try:
        stopped = yield from refinement.run()
    except MISCONFIGURED:
        raise
    except Exception as error:
        if options.on_failure == "raise":
            raise
        stopped, failure = "failed", f"{type(error).__name__}: {error}"
        kept = "original context" if refinement.best is None else "best context so far"
        yield from emit("context_refiner.failed", warning=True, question=question, reason=failure, kept=kept)
    if stopped == "budget":
        yield from emit(
            "context_refiner.out_of_calls",
            warning=True,
            question=question,
            max_calls=options.max_calls,
            calls=refinement.calls.total,
            rounds=len(refinement.rounds),
        )
    best = refinement.best
    result = DenseRefinerResult(
        question=question,
        passages=tuple(passages[: options.top_n]) if best is None else best.measured.passages,
        answer=None if best is None else best.measured.answer,
        best=best,
        rounds=tuple(refinement.rounds),
        stopped=stopped,
        calls=refinement.calls,
        failure=failure,
        retrievals=refinement.pool.retrievals,
    )
    yield from emit("context_refiner.refined", detail=result, question=question, **result.to_dict())
    return result


def worst_case_calls(chunks: int, rounds: int) -> int:
    """Calls of reader and entailer that a refinement can need: r (k² + 6 k + 2) − 3 k.

    A round rephrases k chunks, answers under k + 1 contexts, judges k (k + 1) ordered pairs of answers, and
    asks once whether the context suffices; for the labels it answers under k masked contexts and judges 2 k
    pairs, but the last round needs no labels. It is a bound: identical answers, known rephrasings and links,
    and chunks that are certain cost nothing.

    Args:
        chunks: Chunks of the largest context, k; ``max_chunks`` where contexts may grow.
        rounds: Contexts to measure, r.

    Example:
        >>> worst_case_calls(5, 1), worst_case_calls(5, 3), worst_case_calls(10, 4)
        (42, 156, 618)
    """
    return rounds * (chunks**2 + 6 * chunks + 2) - 3 * chunks


class _Change(NamedTuple):
    """What a round does about its context."""

    stays: tuple[Passage, ...] = ()
    removed: tuple[Passage, ...] = ()
    added: tuple[Addition, ...] = ()
    note: str = ""


class _Refinement:
    """One question's context on its way to a better one."""

    def __init__(
        self,
        question: str,
        passages: Sequence[Passage],
        options: DenseRefinerOptions,
        documents: Documents,
    ) -> None:
        self._options = options
        self._asking = Asking(question, options)
        self._documents = documents if options.chunking is not None else ()
        written = [passage for passage in passages if passage.text.strip()]
        self._context = written[: options.top_n]
        self.pool = Pool(question, written, options.reserve)
        self.pool.visit(self._context)
        self.rounds: list[Round] = []
        self.best: Round | None = None
        self._for_good = False

    @property
    def calls(self) -> Calls:
        """What was asked so far."""
        return self._asking.calls

    def run(self) -> Program[Stopped]:
        """Go through the rounds; return why they ended."""
        if not self._context:
            return "empty"
        while True:
            stopped = yield from self._round()
            if stopped is not None:
                return stopped

    def _round(self) -> Program[Stopped | None]:
        """Measure the context, judge it and change it; return why it was the last round, if it was."""
        if not self._affords(self._measuring()):
            return "budget"
        before, started = self._asking.calls, time.perf_counter()
        measured = yield from measure(self._asking, self._context)
        at_first_sight = not self.rounds and self._options.only_uncertain and measured.certain
        sufficient = None
        if self._options.self_evaluation and not (at_first_sight or self._options.chunking_only):
            sufficient = yield from self._asking.sufficient([passage.text for passage in self._context])
        done = at_first_sight or self._for_good or satisfied(measured, sufficient, self._options)
        self._note(Round(measured, sufficient, note="broken off"), done)
        stopped: Stopped | None = None
        if done:
            stopped = "certain" if at_first_sight else "chunked" if self._for_good else "satisfied"
            note = "moved to semantic chunks" if self._for_good else "the reader understands its context"
            change = _Change(note=note)
        elif len(self.rounds) == self._options.rounds:
            stopped, change = "rounds", _Change(note="no round is left")
        elif self._documents and (yield from self._rechunk()):
            change = _Change(note="the documents were cut anew")
            self._settle(rechunked=True)
            self._for_good = self._options.chunking_only
        elif self._options.chunking_only:
            stopped, change = "unchanged", _Change(note="there are no documents to cut anew")
        elif not self._affords(3 * self._uncertain(measured)):
            stopped, change = "budget", _Change(note="no calls are left to label chunks")
        else:
            measured = yield from label(self._asking, measured)
            change = yield from self._change(measured)
            stopped = None if change.removed or change.added else "unchanged"
            # What stays keeps its place, and what comes goes to the end: a known beginning stays known.
            self._context = [*change.stays, *(addition.passage for addition in change.added)]
        self._settle(
            measured=measured,
            removed=change.removed,
            added=change.added,
            note=change.note,
            calls=self._asking.calls - before,
            seconds=time.perf_counter() - started,
        )
        yield from emit(
            "context_refiner.round",
            question=self._asking.question,
            number=len(self.rounds),
            **self.rounds[-1].to_dict(),
        )
        return stopped

    def _note(self, found: Round, done: bool) -> None:
        """Put a round on record as soon as it is measured, so that a failure later on does not lose it.

        A context that meets the stop rule is the best one, whatever came before.
        """
        better = done or improves(found, self.best, self._options)
        self.rounds.append(replace(found, best=better))
        if better:
            self.best = self.rounds[-1]

    def _settle(self, **known: object) -> None:
        """Fill in what is known of the last round by now."""
        was_best = self.best is self.rounds[-1]
        self.rounds[-1] = replace(self.rounds[-1], **known)  # type: ignore[arg-type]  # fields by name
        if was_best:
            self.best = self.rounds[-1]

    def _measuring(self) -> int:
        """Calls that measuring the context may cost: at most k² + 3 k + 2."""
        k = len(self._context)
        unknown = self._asking.unrephrased(self._context)
        return unknown + (k + 1) + k * (k + 1) + int(self._options.self_evaluation)

    def _affords(self, calls: int) -> bool:
        most = self._options.max_calls
        return most is None or self._asking.calls.total + calls <= most

    def _uncertain(self, measured: DenseResult) -> int:
        return sum(chunk.label == "uncertain" for chunk in measured.chunks)

    def _change(self, measured: DenseResult) -> Program[_Change]:
        """Prune what is unnecessary, and refill by what is not (Algorithm 3, lines 28 to 38)."""
        removed = [chunk.passage for chunk in measured.chunks if chunk.label == "unnecessary"]
        stays = [chunk.passage for chunk in measured.chunks if chunk.label != "unnecessary"]
        if not stays:
            # A context that is empty cannot be understood: the chunk that was ranked first stays.
            stays, removed = removed[:1], removed[1:]
        anchors = [chunk.passage for chunk in measured.chunks if chunk.label == self._options.refill]
        room = self._options.largest - len(stays)
        added: list[Addition] = []
        if not self._options.remove_only and anchors and room > 0:
            added = yield from self.pool.nearest(anchors, room)
        why = self._why(removed, added, anchors, room)
        return _Change(tuple(stays), tuple(removed), tuple(added), why)

    def _why(
        self, removed: Sequence[Passage], added: Sequence[Addition], anchors: Sequence[Passage], room: int
    ) -> str:
        if removed or added:
            return f"{len(removed)} unnecessary left, {len(added)} came"
        if self._options.remove_only:
            return "nothing is unnecessary, and nothing may come"
        if not anchors:
            return f"nothing is unnecessary, and no chunk is {self._options.refill}"
        return "the context is full" if room <= 0 else "no candidate is left"

    def _rechunk(self) -> Program[bool]:
        """Cut the documents anew and take the chunks nearest to the question (section 5.1), once."""
        behind, self._documents = self._documents, ()
        chunking = self._options.chunking
        documents: Sequence[Passage] = behind  # type: ignore[assignment]  # passages, where they are not asked for
        if behind == "ask":
            documents = yield from retrieve(self._asking.question, None, tier="documents")
        if chunking is None:
            return False
        chunks = yield from chunk_passages(documents, chunking)
        ranked = yield from self.pool.replace(chunks)
        if not ranked:
            return False
        self._context = ranked[: self._options.top_n]
        self.pool.visit(self._context)
        return True


def satisfied(measured: DenseResult, sufficient: bool | None, options: DenseRefinerOptions) -> bool:
    """Return whether a context meets the stop rule; without self-evaluation, certainty alone decides."""
    if sufficient is None:
        return measured.certain
    met = (measured.certain, sufficient)
    return all(met) if options.settled("stop_rule") == "both" else any(met)


def improves(round_: Round, best: Round | None, options: DenseRefinerOptions) -> bool:
    """Return whether a context replaces the best one so far (Algorithm 3, lines 7 to 12).

    Beyond the paper, of two equal scores that of a context judged sufficient wins.
    """
    if best is None:
        return True
    score, lowest = round_.measured.score, best.measured.score
    if options.settled("keep") == "lowest":
        return score < lowest
    if best.sufficient and not round_.sufficient:
        return False
    newly = bool(round_.sufficient) and not best.sufficient
    return score < lowest or (score == lowest and newly)


_DECIMALS = 6
"""Similarities are compared to this many decimals; ties go to what was ranked higher."""


class Pool:
    """The candidates of one question. A text that was in a context once is never taken again.

    Args:
        question: What a retriever is asked.
        passages: What was retrieved, best first.
        more: Passages to ask the retriever for when no candidate is left; 0 asks for none.

    Attributes:
        retrievals: How often the retriever was asked.
    """

    def __init__(self, question: str, passages: Sequence[Passage], more: int) -> None:
        self._question = question
        self._passages = list(passages)
        self._more = more
        self._visited: set[str] = set()
        self._vectors: dict[str, NDArray[np.float64]] = {}
        self._carried = False
        self.retrievals = 0

    def visit(self, passages: Iterable[Passage]) -> None:
        """Note what was shown to the reader."""
        self._visited.update(passage.text for passage in passages)

    def nearest(self, anchors: Sequence[Passage], room: int) -> Program[list[Addition]]:
        """Take the candidate nearest to each anchor, in order, as long as there is room."""
        if not self._candidates() and self._more and not self.retrievals:
            self.retrievals += 1
            found = yield from retrieve(self._question, self._more)
            self._passages += [passage for passage in found if passage.text.strip()]
        candidates = self._candidates()
        if not candidates:
            return []
        yield from self._embed([*anchors, *candidates])
        taken: list[Addition] = []
        for anchor in anchors[:room]:
            similarities = [self._similarity(anchor, candidate) for candidate in candidates]
            place = int(np.argmax(similarities))
            chosen = candidates.pop(place)
            taken.append(Addition(chosen, anchor, similarities[place]))
            if not candidates:
                break
        self.visit(addition.passage for addition in taken)
        return taken

    def replace(self, passages: Sequence[Passage]) -> Program[list[Passage]]:
        """Put other passages in the place of all, and return them ranked by likeness to the question."""
        if not passages:
            return []
        # Documents that quote one another yield equal chunks; one of them will do.
        self._passages = list({passage.text: passage for passage in reversed(passages)}.values())[::-1]
        yield from self._embed(self._passages)
        rows = yield from embed([self._question], "query")
        query = _unit(rows, 1)[0]
        scores = [_cosine(self._vectors[passage.text], query) for passage in self._passages]
        order = np.argsort(-np.asarray(scores), kind="stable")
        self._passages = [self._passages[place] for place in order]
        return list(self._passages)

    def _candidates(self) -> list[Passage]:
        unseen: dict[str, Passage] = {}
        for passage in self._passages:
            if passage.text not in self._visited:
                unseen.setdefault(passage.text, passage)
        return list(unseen.values())

    def _embed(self, passages: Sequence[Passage]) -> Program[None]:
        """Learn the vectors that are not known: those that passages carry, if all do, else the encoder's.

        The two are never mixed: they need not be of one model.
        """
        carried = all(passage.embedding for passage in self._passages)
        if carried != self._carried:
            self._vectors.clear()
            self._carried = carried
        wanted = {passage.text: passage for passage in passages if passage.text not in self._vectors}
        if wanted:
            rows = (
                [passage.embedding for passage in wanted.values()]
                if carried
                else (yield from embed(list(wanted), "document"))
            )
            self._vectors.update(zip(wanted, _unit(rows, len(wanted)), strict=True))

    def _similarity(self, one: Passage, other: Passage) -> float:
        return _cosine(self._vectors[one.text], self._vectors[other.text])


def _cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    if one.shape != other.shape:
        raise ServiceError(
            f"vectors have {len(one)} and {len(other)} dimensions",
            hint="encode all passages and the question with one encoder",
        )
    return round(float(one @ other), _DECIMALS)


def _unit(rows: Any, count: int) -> NDArray[np.float64]:
    try:
        vectors = np.asarray(rows, dtype=np.float64)
    except ValueError:
        # Vectors of different lengths make no array.
        vectors = np.empty(0)
    if vectors.ndim != 2 or len(vectors) != count or not np.isfinite(vectors).all():
        raise ServiceError(
            f"expected {count} vectors of finite numbers, got an array of shape {vectors.shape}",
            hint="let the encoder return one vector for each text",
        )
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float64] = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return unit
