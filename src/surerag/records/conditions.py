"""A question under every condition that a pipeline allows."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from surerag import drivers
from surerag.component import Component
from surerag.errors import MISCONFIGURED, StorageError
from surerag.evaluation.rows import Question
from surerag.methods.dense_rag.component import Dense
from surerag.methods.dynqr.component import UncertaintyRewriter
from surerag.methods.edc2.component import ClusterCompressor
from surerag.methods.lazy_rag.component import LazyRAG
from surerag.methods.lazy_rag.result import LazyRAGResult
from surerag.methods.seper.component import SePer
from surerag.recording import generation_key
from surerag.records.judging import Judge, judge_of
from surerag.records.keeping import Kept
from surerag.records.pipeline import Pipeline
from surerag.records.replay import canonical
from surerag.records.rows import (
    COMPRESSED,
    NONE,
    ORIGINAL,
    RETRIEVAL,
    REWRITTEN,
    STRONG,
    SUMMARIES,
    VERIFIED,
    Found,
    Pass,
    Sample,
    TraceRow,
)
from surerag.records.signals import meaning_clusters, signals_of
from surerag.records.watching import Spent, Watched, watched
from surerag.types import Generation, Passage, TokenTrace

R = TypeVar("R")


@dataclass(frozen=True)
class Manner:
    """How questions are asked and written down.

    Attributes:
        judge: Whether an answer is right.
        n_samples: Answers to sample beside those that a decision may be made on.
        window: Questions at work at a time.
        key: What texts are hashed with; None keeps them.
    """

    judge: Judge
    n_samples: int
    window: int
    key: bytes | None

    def digest(self, text: str) -> str:
        """Return a text's digest: keyed where the text itself shall not be guessed from it."""
        data = text.encode("utf-8", errors="replace")
        if self.key is None:
            return hashlib.sha256(data).hexdigest()
        return hmac.new(self.key, data, hashlib.sha256).hexdigest()

    def text(self, text: str) -> str | None:
        """Return a text, if it is kept."""
        return text if self.key is None else None

    def trace(self, trace: TokenTrace | None) -> TokenTrace | None:
        """Return a trace, with the texts of its tokens if they are kept."""
        if trace is None or self.key is None:
            return trace
        return TokenTrace(("",) * len(trace), trace.logprobs, trace.entropy, trace.logsumexp)


@dataclass
class _Draft:
    """A row in the making."""

    question: Question
    passes: list[Pass] = field(default_factory=list)
    measures: dict[str, float] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    passages: tuple[Passage, ...] = ()


def ask_all(
    pipeline: Pipeline, kept: Kept, questions: Sequence[Question], manner: Manner
) -> tuple[list[TraceRow], list[Exception]]:
    """Answer some questions under every condition.

    Args:
        pipeline: On services whose answers are kept.
        kept: Where they are.
        questions: To ask.
        manner: How.

    Returns:
        A row for each question, and what failed.

    Raises:
        StorageError: If answers can no longer be kept.
        SureragError: If something is misconfigured.
    """
    asking = _Asking(kept, [_Draft(question) for question in questions], manner)
    if pipeline.lazy is not None:
        asking.answer(pipeline.lazy)
    if pipeline.rewriter is not None:
        asking.rewrite(pipeline.rewriter)
    if pipeline.lazy is not None and pipeline.compressor is not None:
        asking.compress(pipeline.compressor, pipeline.lazy)
    if pipeline.seper is not None:
        asking.measure(pipeline.seper)
    if pipeline.dense is not None:
        asking.understand(pipeline.dense)
    return [_row(draft, manner) for draft in asking.drafts], asking.failures


class _Asking:
    """The work on one part."""

    def __init__(self, kept: Kept, drafts: list[_Draft], manner: Manner) -> None:
        self.drafts = drafts
        self.failures: list[Exception] = []
        self._kept, self._manner = kept, manner
        self._judge = judge_of(manner.judge)

    def answer(self, lazy: LazyRAG) -> None:
        """L-RAG: without context, from summaries, from passages, and from both."""
        n = self._manner.n_samples
        summaries = lazy.summaries is not None
        modes = [
            (NONE, lazy.with_options(mode="none"), n),
            *([(SUMMARIES, lazy.with_options(mode="lazy", threshold=math.inf), n)] if summaries else []),
            (RETRIEVAL, lazy.with_options(mode="standard"), n),
            *([(STRONG, lazy.with_options(mode="strong"), 0)] if summaries else []),
        ]
        for condition, rag, samples in modes:
            for draft, found in self._each(rag, condition, self.drafts, _asked, samples):
                self._lazy(draft, condition, rag, found)
                if condition == RETRIEVAL:
                    draft.passages = found.result.passages

    def rewrite(self, rewriter: UncertaintyRewriter) -> None:
        """DynQR, always rewriting: the first answer, the rewrite's, and the one that is kept."""
        always = rewriter.with_options(threshold=-math.inf)
        names = (always.reader.name, (always.rewriter or always.reader).name)
        asked = self._each(
            always, REWRITTEN, self.drafts, lambda one: (one.question.text,), self._manner.n_samples
        )
        for draft, found in asked:
            result = found.result
            first = Spent(found.spent.asked[:1], result.original.generation.prompt_tokens)
            first.completion_tokens = result.original.generation.completion_tokens
            first.cached_tokens = result.original.generation.cached_tokens
            self._add(
                draft,
                ORIGINAL,
                result.original.generation,
                first,
                names,
                found.samples,
                result.original.passages,
            )
            best = result.rewritten
            if best is not None:
                self._add(
                    draft, REWRITTEN, best.generation, found.spent, names, (), best.passages, best.query
                )
            chosen = result.chosen
            query = None if result.kept == "original" else chosen.query
            self._add(draft, VERIFIED, chosen.generation, found.spent, names, (), chosen.passages, query)
            draft.measures["rewritten_kept"] = float(result.kept == "rewritten")

    def compress(self, compressor: ClusterCompressor, lazy: LazyRAG) -> None:
        """EDC²-RAG on what was retrieved, and the answer from that."""
        shown = [draft for draft in self.drafts if draft.passages]
        shorter = {
            id(draft): found
            for draft, found in self._each(
                compressor, COMPRESSED, shown, lambda one: (one.question.text, one.passages)
            )
        }
        given = lazy.with_options(mode="oracle")
        ready = [draft for draft in shown if id(draft) in shorter]
        for draft, found in self._each(
            given,
            COMPRESSED,
            ready,
            lambda one: (one.question.text, shorter[id(one)].result.passages),
        ):
            first = shorter[id(draft)]
            draft.measures["compression_before"] = float(first.result.tokens_before)
            draft.measures["compression_after"] = float(first.result.tokens_after)
            self._lazy(draft, COMPRESSED, given, found, first.spent)

    def measure(self, seper: SePer) -> None:
        """ΔSePer of what was retrieved."""
        judged = [draft for draft in self.drafts if draft.passages and draft.question.golds]
        for draft, found in self._each(
            seper,
            "seper",
            judged,
            lambda one: (one.question.text, tuple(one.question.golds), one.passages),
        ):
            draft.measures["delta_seper"] = found.result.delta
            draft.measures["seper_before"] = found.result.before.seper
            draft.measures["seper_after"] = found.result.after.seper

    def understand(self, dense: Dense) -> None:
        """DENSE of what was retrieved."""
        shown = [draft for draft in self.drafts if draft.passages]
        for draft, found in self._each(dense, "dense", shown, lambda one: (one.question.text, one.passages)):
            if found.result.score is not None:
                draft.measures["dense_score"] = found.result.score

    def _each(
        self,
        component: Component[Any, Any],
        condition: str,
        drafts: Sequence[_Draft],
        case: Callable[[_Draft], tuple[Any, ...]],
        n_samples: int = 0,
    ) -> Iterable[tuple[_Draft, Watched[Any]]]:
        """Run a method for some questions; what fails for one of them is noted there."""
        programs = [watched(component.program(*case(draft)), n_samples) for draft in drafts]
        outcomes: Sequence[Any] = drivers.run_many(
            programs, component.services, window=self._manner.window, return_exceptions=True
        )
        for draft, outcome in zip(drafts, outcomes, strict=True):
            if isinstance(outcome, (*MISCONFIGURED, StorageError)):
                raise outcome
            if isinstance(outcome, Exception):
                told = "" if self._manner.key is not None else f": {outcome}"
                draft.errors.append(f"{condition}: {type(outcome).__name__}{told}")
                self.failures.append(outcome)
            else:
                yield draft, outcome

    def _lazy(
        self,
        draft: _Draft,
        condition: str,
        rag: Any,
        found: Watched[LazyRAGResult],
        before: Spent | None = None,
    ) -> None:
        spent = found.spent
        if before is not None:
            spent = Spent(
                [*before.asked, *spent.asked],
                before.prompt_tokens + spent.prompt_tokens,
                before.completion_tokens + spent.completion_tokens,
                before.cached_tokens + spent.cached_tokens,
            )
        names = (rag.reader.name, rag.reader.name)
        result = found.result
        shown = result.summaries if condition == SUMMARIES else result.passages
        self._add(draft, condition, result.generation, spent, names, found.samples, shown)

    def _add(
        self,
        draft: _Draft,
        condition: str,
        answer: Generation,
        spent: Spent,
        names: tuple[str, str],
        samples: Sequence[Generation],
        shown: Sequence[Passage],
        query: str | None = None,
    ) -> None:
        manner, golds = self._manner, tuple(draft.question.golds)
        clusters = meaning_clusters(samples)
        traces = [one.trace for one in samples if one.trace is not None]
        scores = [passage.score for passage in shown if passage.score is not None]
        keys = [
            generation_key(names[rewriter], prompt, canonical(sampling))
            for prompt, sampling, rewriter in spent.asked
        ]
        draft.passes.append(
            Pass(
                condition=condition,
                text=manner.text(answer.text),
                sha256=manner.digest(answer.text),
                correct=float(self._judge(answer.text, golds)) if golds else None,
                trace=manner.trace(answer.trace),
                samples=tuple(
                    Sample(manner.text(one.text), manner.digest(one.text), cluster, manner.trace(one.trace))
                    for one, cluster in zip(samples, clusters, strict=True)
                ),
                retrieved=tuple(Found(one.id, one.score, manner.digest(one.text)) for one in shown),
                query=None if query is None else manner.text(query),
                signals=signals_of(answer.text, answer.trace, clusters, traces, scores),
                finish=answer.finish,
                calls=len(spent.asked),
                prompt_tokens=spent.prompt_tokens,
                completion_tokens=spent.completion_tokens,
                seconds=self._kept.seconds(keys),
                cached_tokens=spent.cached_tokens,
            )
        )


def _asked(draft: _Draft) -> tuple[str]:
    return (draft.question.text,)


def _row(draft: _Draft, manner: Manner) -> TraceRow:
    question = draft.question
    golds = tuple(question.golds)
    name = question.id or (question.text if manner.key is None else manner.digest(question.text)[:16])
    return TraceRow(
        id=name,
        question=manner.text(question.text),
        sha256=manner.digest(question.text),
        golds=golds if golds and manner.key is None else None,
        passes=tuple(draft.passes),
        measures=draft.measures,
        error="; ".join(draft.errors),
    )
