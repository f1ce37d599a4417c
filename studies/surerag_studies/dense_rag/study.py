"""The DENSE-RAG study, from a seed to its findings and claims."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from surerag import AdaptiveChunker, Dense, RefinementResult
from surerag.drivers.progress import Stages, counted_not_logged
from surerag.evaluation.formatting import p_value
from surerag.evaluation.gaps import GapRow
from surerag.evaluation.statistics import Estimate
from surerag.journal import Memory
from surerag.readers.protocol import Reader
from surerag.recording import RecordedReader
from surerag.services import Encoder, Services
from surerag.world.regimes import TODAY, Regime
from surerag.world.world import World
from surerag_studies.asking import CountedReader, RememberingEncoder
from surerag_studies.claims import Claim
from surerag_studies.dense_rag.analysis import (
    CHUNKING,
    PLAIN,
    RANKED,
    answered,
    cut_rows,
    method_rows,
    retriever_rows,
    understanding,
)
from surerag_studies.dense_rag.asking import (
    ANSWER,
    FULL,
    REPHRASE_TOKENS,
    NotingEntailer,
    Record,
    Recut,
    cuts,
    measured,
    recut,
    refined,
    refiner,
    same_answers,
    semantic_chunker,
)
from surerag_studies.dense_rag.cases import POOL, REDUNDANCY, Case, Library, draw_cases, library
from surerag_studies.dense_rag.diagnosis import diagnosis, stops
from surerag_studies.dense_rag.results import (
    Against,
    Cost,
    CutRow,
    DenseStudy,
    MethodRow,
    Sameness,
    Understanding,
)
from surerag_studies.formatting import points
from surerag_studies.judging import Chosen, Entailment, choose
from surerag_studies.worlds import world_of

T = TypeVar("T")

K = 5
MORE = 10
"""Passages of the contexts that DENSE is measured on a second time."""

THRESHOLD = 0.2
CONFIDENCE = 0.95
CHECKED = 20
"""Questions whose greedy answers are compared alone and in batches."""

EQUAL = 0.03
"""Section 6.2: accuracy with and without rephrasing differs by less than this, its whole interval."""

LEAST = 30
"""Questions on either side of a threshold that Figure 4's claim is about: fewer tell nothing."""

LEVEL = 0.05
_IMPROVES: Mapping[tuple[str, str], str] = {
    (CHUNKING, PLAIN): "Chunking helps uncertain questions (Tables 1 and 3)",
    (CHUNKING, RANKED): "… by how it cuts, not by ranking anew alone",
    (FULL, PLAIN): "Chunking and refinement help uncertain questions (Table 1)",
    (FULL, CHUNKING): "Refinement helps beyond chunking (Table 1)",
}
_TABLES: Mapping[str, str] = dict.fromkeys(
    ("only removing", "no self-evaluation", "refill on certain"), " (Table 4)"
)


def dense_study(
    reader: Reader,
    encoder: Encoder,
    *,
    seed: int,
    n: int,
    entailment: Entailment | None = None,
    regime: Regime = TODAY,
    stages: Stages = lambda _: False,
) -> DenseStudy:
    """Measure DENSE of contexts of mixed quality, and mend those that are not understood.

    Args:
        reader: Rephrases, answers and judges, greedily.
        encoder: Behind three of four retrievers, the cutting and the refilling.
        seed: Seed of the world, one that the reader was not trained on.
        n: Questions, in the world's proportions.
        entailment: Who judges answers: ``"judge"``, the reader itself; ``"exact"``, the world's accepted
            forms; None, the reader if it gets at least 95 % of the pairs right that it is tried on.
        regime: What misleads in the world; by default nothing does.
        stages: Told how far each stage is.
    """
    world = world_of(regime, n, seed)
    questions = world.questions(n)
    corpus = library(world, questions)
    with counted_not_logged():
        bench = _Bench(reader, encoder, choose(reader, questions, entailment), stages)
        cases = bench.timed("retrieval", lambda: draw_cases(world, questions, corpus, bench.encoder))
        return bench.study(world, regime, corpus, cases)


class _Bench:
    """The models of one study, and account of what they were asked."""

    def __init__(self, reader: Reader, encoder: Encoder, chosen: Chosen, stages: Stages) -> None:
        self._raw, self._chosen, self._stages = reader, chosen, stages
        self._counted = CountedReader(reader)
        # Variants of one method begin alike. A greedy answer does not depend on what is asked beside it,
        # which the study checks.
        self._reader = RecordedReader(self._counted, Memory())
        self._entailer = NotingEntailer(chosen.entailer)
        self.encoder = RememberingEncoder(encoder)
        self._dense = Dense(
            self._reader,
            self._entailer,
            threshold=THRESHOLD,
            max_tokens=ANSWER.max_tokens,
            rephrase_tokens=REPHRASE_TOKENS,
        )
        self._costs: list[Cost] = []

    def timed(self, stage: str, work: Callable[[], T]) -> T:
        """Do a part of the study, and note what it took."""
        reader, known = self._counted, len(self._entailer.verdicts)
        asked, tokens, start = reader.asked, reader.prompt_tokens, time.perf_counter()
        found = work()
        self._costs.append(
            Cost(
                stage,
                reader.asked - asked,
                reader.prompt_tokens - tokens,
                len(self._entailer.verdicts) - known,
                time.perf_counter() - start,
            )
        )
        return found

    def study(self, world: World, regime: Regime, corpus: Library, cases: Sequence[Case]) -> DenseStudy:
        """Measure, mend, and say why."""
        records, more = self._measured(cases, K), self._measured(cases, MORE)
        sameness = self.timed("batches", lambda: same_answers(self._raw, records, CHECKED))
        chunker = semantic_chunker(corpus, self.encoder)
        recuts = self.timed("other cuts", lambda: self._recuts(corpus, chunker, cases))
        at = [place for place, record in enumerate(records) if record.uncertain]
        uncertain = [records[place] for place in at]
        found = self.timed("refinement", lambda: self._refined(chunker, uncertain))
        some = {name: [rows[place] for place in at] for name, rows in recuts.items()}
        made = answered(uncertain, some, found) if uncertain else {}
        both = tuple(understanding(rows, k, THRESHOLD) for rows, k in ((records, K), (more, MORE)))
        cut_table = cut_rows(records, recuts)
        methods = method_rows(uncertain, made) if made else ()
        full = made.get(FULL)
        return DenseStudy(
            seed=world.seed,
            regime=regime.name,
            n=len(cases),
            model=self._raw.name,
            encoder=self.encoder.name,
            entailment=self._chosen.kind,
            judge=self._chosen.accuracy,
            confidence=CONFIDENCE,
            threshold=THRESHOLD,
            k=K,
            pool=POOL,
            corpus=len(corpus.passages),
            redundancy=REDUNDANCY,
            outdated=sum("outdated" in passage.metadata for passage in corpus.passages),
            tau=chunker.similarity_threshold,
            t_max=chunker.chunk_size,
            measured=both,
            sameness=sameness,
            retrievers=retriever_rows(records),
            cuts=cut_table,
            uncertain=len(uncertain),
            methods=methods,
            stops=stops(full.results) if full else (),
            diagnosis=diagnosis(records, full, self._entailer.verdicts),
            costs=tuple(self._costs),
            claims=claims(both, sameness, cut_table, methods),
        )

    def _measured(self, cases: Sequence[Case], k: int) -> tuple[Record, ...]:
        name = f"DENSE, k = {k}"
        return self.timed(name, lambda: measured(self._dense, cases, k, self._stages(name)))

    def _recuts(
        self, corpus: Library, chunker: AdaptiveChunker, cases: Sequence[Case]
    ) -> dict[str, tuple[Recut, ...]]:
        services = Services(reader=self._reader, encoder=self.encoder)
        return {
            name: recut(cases, pieces, K, services, self._stages(f"Cut: {name}"))
            for name, pieces in cuts(corpus, chunker).items()
        }

    def _refined(
        self, chunker: AdaptiveChunker, uncertain: Sequence[Record]
    ) -> dict[str, list[RefinementResult]]:
        default = refiner(self._reader, self._entailer, chunker, self._dense.cache, K)
        return refined(default, uncertain, self._stages)


def claims(
    measured: Sequence[Understanding],
    sameness: Sameness,
    cuts: Sequence[CutRow],
    methods: Sequence[MethodRow],
) -> tuple[Claim, ...]:
    """Judge every claim that there are data for."""
    return (
        *(claim for one in measured for claim in _understanding(one)),
        *_control(measured[0]),
        _same(sameness),
        *_chunking(cuts),
        *_methods(methods),
    )


def above_zero(low: float, high: float) -> bool | None:
    """Judge by an interval whether something is more than zero; None where the interval holds zero."""
    return True if low > 0 else False if high < 0 else None


def _understanding(one: Understanding) -> Iterable[Claim]:
    fall = one.trend.correlation
    shown = f"r {fall.value:+.2f} [{fall.low:+.2f}, {fall.high:+.2f}], p {p_value(one.trend.p)}"
    yield Claim(
        f"Accuracy falls as DENSE grows, k = {one.k} (Figure 2)",
        shown if math.isfinite(fall.value) else "n/a",
        above_zero(-fall.high, -fall.low),
    )
    if one.gap is not None:
        yield Claim(
            f"Certain questions are answered better than uncertain ones, k = {one.k} (Figure 3)",
            points(one.gap.gap),
            above_zero(one.gap.gap.low, one.gap.gap.high),
        )
    counted = [row for row in one.thresholds if min(row.certain.n, row.uncertain.n) >= LEAST]
    if counted:
        yield _everywhere(one.k, counted)


def _everywhere(k: int, rows: Sequence[GapRow]) -> Claim:
    clear = sum(row.gap.low > 0 for row in rows)
    holds = True if clear == len(rows) else None
    if any(row.gap.high < 0 for row in rows):
        holds = False
    least = min(rows, key=lambda row: row.gap.value)
    return Claim(
        f"There is a gap at every threshold with {LEAST} questions on either side, k = {k} (Figure 4)",
        f"clear at {clear} of {len(rows)}; smallest {points(least.gap)}",
        holds,
    )


def _control(one: Understanding) -> Iterable[Claim]:
    for what, found in (("one passage", one.edited), ("every passage", one.rephrased)):
        apart = found.low > EQUAL or found.high < -EQUAL
        within = max(abs(found.low), abs(found.high)) < EQUAL
        yield Claim(
            f"Rephrasing {what} changes accuracy by less than {100 * EQUAL:g} points (section 6.2)",
            points(found),
            True if within else False if apart else None,
        )


def _same(found: Sameness) -> Claim:
    counts = (found.in_one_batch, found.in_mixed_batches)
    return Claim(
        "Greedy answers are the same alone and in any batch (appendix C)",
        f"{counts[0]} and {counts[1]} of {found.prompts}",
        min(counts) == found.prompts,
    )


def _chunking(cuts: Sequence[CutRow]) -> Iterable[Claim]:
    semantic = next(row for row in cuts if row.name == "semantic")
    if semantic.on_certain is not None:
        gap = semantic.on_certain
        yield Claim(
            "Semantic chunking of every question harms certain ones (Table 3)",
            points(gap),
            above_zero(-gap.high, -gap.low),
        )


def _methods(methods: Sequence[MethodRow]) -> Iterable[Claim]:
    found = {(row.name, one.other): one for row in methods for one in row.against}
    for pair, statement in _IMPROVES.items():
        if pair in found:
            yield _better(statement, found[pair], sign=1)
    for (name, other), one in found.items():
        if other == FULL:
            yield _better(f"The default is better than “{name}”{_TABLES.get(name, '')}", one, sign=-1)


def _better(statement: str, found: Against, *, sign: int) -> Claim:
    """Judge by the corrected p-value, not by one interval among many."""
    gap = found.difference
    # Adding 0 turns a negative zero round.
    value, low, high = (sign * end + 0.0 for end in (gap.value, gap.low, gap.high))
    low, high = min(low, high), max(low, high)
    clear = found.p_corrected < LEVEL
    shown = points(Estimate(value, low, high))
    return Claim(statement, f"{shown}, p {p_value(found.p_corrected)} (Holm)", value > 0 if clear else None)
