"""The DENSE-RAG study, from a seed to its findings."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from surerag.components import AdaptiveChunker, Dense
from surerag.evaluation.dense.analysis import answered, cut_rows, method_rows, retriever_rows, understanding
from surerag.evaluation.dense.cases import POOL, REDUNDANCY, Case, Library, draw_cases, library
from surerag.evaluation.dense.claims import claims
from surerag.evaluation.dense.cutting import Recut, cuts, recut, semantic_chunker
from surerag.evaluation.dense.diagnosis import diagnosis, stops
from surerag.evaluation.dense.measuring import ANSWER, REPHRASE_TOKENS, Record, measured, same_answers
from surerag.evaluation.dense.memory import NotingEntailer, RememberingEncoder, RememberingReader
from surerag.evaluation.dense.refining import FULL, Stages, refined, refiner
from surerag.evaluation.dense.results import Cost, DenseStudy
from surerag.evaluation.seper.entailment import Chosen, Entailment, choose
from surerag.methods.refinement_types import RefinementResult
from surerag.readers.protocol import Reader
from surerag.services import Encoder, Services
from surerag.world.world import World

T = TypeVar("T")

K = 5
MORE = 10
"""Passages of the contexts that DENSE is measured on a second time."""

THRESHOLD = 0.2
CONFIDENCE = 0.95
CHECKED = 20
"""Questions whose greedy answers are compared alone and in batches."""


def dense_study(
    reader: Reader,
    encoder: Encoder,
    *,
    seed: int,
    n: int,
    entailment: Entailment | None = None,
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
        stages: Told how far each stage is.
    """
    world = World(seed=seed)
    questions = world.questions(n)
    corpus = library(world, questions)
    with _counted_not_logged():
        bench = _Bench(reader, encoder, choose(reader, questions, entailment), stages)
        cases = bench.timed("retrieval", lambda: draw_cases(world, questions, corpus, bench.encoder))
        return bench.study(world, corpus, cases)


class _Bench:
    """The models of one study, and account of what they were asked."""

    def __init__(self, reader: Reader, encoder: Encoder, chosen: Chosen, stages: Stages) -> None:
        self._raw, self._chosen, self._stages = reader, chosen, stages
        self._reader = RememberingReader(reader)
        self._entailer = NotingEntailer(chosen.entailer)
        self.encoder = RememberingEncoder(encoder)
        self._dense = Dense(
            self._reader,
            self._entailer,
            threshold=THRESHOLD,
            mask=False,
            max_tokens=ANSWER.max_tokens,
            rephrase_tokens=REPHRASE_TOKENS,
        )
        self._costs: list[Cost] = []

    def timed(self, stage: str, work: Callable[[], T]) -> T:
        """Do a part of the study, and note what it took."""
        reader, known = self._reader, len(self._entailer.verdicts)
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

    def study(self, world: World, corpus: Library, cases: Sequence[Case]) -> DenseStudy:
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
            tau=chunker.tau,
            t_max=chunker.t_max,
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


@contextmanager
def _counted_not_logged() -> Iterator[None]:
    """Keep warnings of single questions out of the log: the study counts what they are about."""
    logger = logging.getLogger("surerag")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
