"""Iterative context refinement: mend the context that the reader did not understand (DENSE-RAG, Algorithm 3).

Chunks that only confuse leave; chunks that matter, and are not understood, draw in what is nearest to them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from surerag.effects import Program, emit
from surerag.errors import ConfigurationError, InputError
from surerag.methods.adaptive_chunking import chunk_passages
from surerag.methods.cluster_compression import OURS_TO_MEND
from surerag.methods.dense import label, measure
from surerag.methods.dense_asking import Asking
from surerag.methods.dense_types import Calls, DenseResult
from surerag.methods.refinement_pool import Pool
from surerag.methods.refinement_types import (
    Addition,
    RefinementResult,
    RefinementSettings,
    Round,
    Stopped,
    improves,
    satisfied,
)
from surerag.types import Passage


def refine_context(
    question: str,
    passages: Sequence[Passage],
    settings: RefinementSettings,
    documents: Sequence[Passage] = (),
) -> Program[RefinementResult]:
    """Measure, prune, refill and measure again, and return the best context found (Algorithm 3).

    It ends, whatever the models say: a chunk that left never comes back, so that with N candidates no more
    than 2 N rounds can change anything, and rounds and calls have bounds of their own. Calls at most: see
    :func:`surerag.methods.refinement_types.worst_case_calls`.

    Args:
        question: Not empty.
        passages: What was retrieved, best first; the first k are the context, the others candidates.
        settings: What steers the method.
        documents: The documents behind the passages, whole; needed to cut them anew.

    Raises:
        InputError: If the question is empty.
        ConfigurationError: If ``max_calls`` does not cover the first measurement.
    """
    if not question.strip():
        raise InputError("the question is empty", hint="ask something")
    refinement = _Refinement(question, passages, settings, documents)
    failure = ""
    try:
        stopped = yield from refinement.run()
    except OURS_TO_MEND:
        raise
    except Exception as error:
        if settings.on_failure == "raise":
            raise
        stopped, failure = "failed", f"{type(error).__name__}: {error}"
        kept = "original context" if refinement.best is None else "best context so far"
        yield from emit("context_refiner.failed", warning=True, question=question, reason=failure, kept=kept)
    best = refinement.best
    result = RefinementResult(
        question=question,
        passages=tuple(passages[: settings.k]) if best is None else best.measured.passages,
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
        settings: RefinementSettings,
        documents: Sequence[Passage],
    ) -> None:
        self._settings = settings
        self._asking = Asking(question, settings.dense)
        self._documents = documents if settings.chunking is not None else ()
        written = [passage for passage in passages if passage.text.strip()]
        self._context = written[: settings.k]
        self.pool = Pool(question, written, settings.more)
        self.pool.visit(self._context)
        self.rounds: list[Round] = []
        self.best: Round | None = None

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
            return self._out_of_calls()
        before, started = self._asking.calls, time.perf_counter()
        measured = yield from measure(self._asking, self._context)
        at_first_sight = not self.rounds and self._settings.only_uncertain and measured.certain
        sufficient = None
        if self._settings.self_evaluation and not at_first_sight:
            sufficient = yield from self._asking.sufficient([passage.text for passage in self._context])
        done = at_first_sight or satisfied(measured, sufficient, self._settings)
        self._note(Round(measured, sufficient, note="broken off"), done)
        stopped: Stopped | None = None
        if done:
            stopped = "certain" if at_first_sight else "satisfied"
            change = _Change(note="the reader understands its context")
        elif len(self.rounds) == self._settings.rounds:
            stopped, change = "rounds", _Change(note="no round is left")
        elif self._documents and (yield from self._rechunk()):
            change = _Change(note="the documents were cut anew")
            self._settle(rechunked=True)
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
        better = done or improves(found, self.best, self._settings)
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
        return unknown + (k + 1) + k * (k + 1) + int(self._settings.self_evaluation)

    def _affords(self, calls: int) -> bool:
        most = self._settings.max_calls
        return most is None or self._asking.calls.total + calls <= most

    def _out_of_calls(self) -> Stopped:
        if not self.rounds:
            raise ConfigurationError(
                f"max_calls={self._settings.max_calls} does not cover one measurement of "
                f"{len(self._context)} chunks, which may take {self._measuring()} calls",
                hint="raise max_calls, or lower k",
            )
        return "budget"

    def _uncertain(self, measured: DenseResult) -> int:
        return sum(chunk.label == "uncertain" for chunk in measured.chunks)

    def _change(self, measured: DenseResult) -> Program[_Change]:
        """Prune what is unnecessary, and refill by what is not (Algorithm 3, lines 28 to 38)."""
        removed = [chunk.passage for chunk in measured.chunks if chunk.label == "unnecessary"]
        stays = [chunk.passage for chunk in measured.chunks if chunk.label != "unnecessary"]
        if not stays:
            # A context that is empty cannot be understood: the chunk that was ranked first stays.
            stays, removed = removed[:1], removed[1:]
        anchors = [chunk.passage for chunk in measured.chunks if chunk.label == self._settings.refill]
        room = self._settings.max_chunks - len(stays)
        added: list[Addition] = []
        if not self._settings.remove_only and anchors and room > 0:
            added = yield from self.pool.nearest(anchors, room)
        why = self._why(removed, added, anchors, room)
        return _Change(tuple(stays), tuple(removed), tuple(added), why)

    def _why(
        self, removed: Sequence[Passage], added: Sequence[Addition], anchors: Sequence[Passage], room: int
    ) -> str:
        if removed or added:
            return f"{len(removed)} unnecessary left, {len(added)} came"
        if self._settings.remove_only:
            return "nothing is unnecessary, and nothing may come"
        if not anchors:
            return f"nothing is unnecessary, and no chunk is {self._settings.refill}"
        return "the context is full" if room <= 0 else "no candidate is left"

    def _rechunk(self) -> Program[bool]:
        """Cut the documents anew and take the chunks nearest to the question (section 5.1), once."""
        documents, self._documents = self._documents, ()
        chunking = self._settings.chunking
        if chunking is None:
            return False
        chunks = yield from chunk_passages(documents, chunking)
        ranked = yield from self.pool.replace(chunks)
        if not ranked:
            return False
        self._context = ranked[: self._settings.k]
        self.pool.visit(self._context)
        return True
