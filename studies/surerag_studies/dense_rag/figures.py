"""DENSE-RAG's Figures 5 and 6 and Table 7: the threshold of chunking, the size of contexts, and summaries.

Summaries are about a question: the reader extracts what its passages say of it, by the prompt of EDC²-RAG's
section 4.3, which the embedded readers were taught; they were not taught to summarise news.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from surerag import AdaptiveChunker, Candidates, ContextRefiner, Dense, DenseCache
from surerag.drivers.progress import Stages, counted_not_logged
from surerag.evaluation.differences import PairedDifference, paired_difference
from surerag.evaluation.formatting import percent_with_interval, plain_table
from surerag.evaluation.statistics import Estimate, Proportion, correlation, share
from surerag.journal import Memory
from surerag.measures import rouge_l
from surerag.prompts import EXTRACT
from surerag.readers.protocol import BaseReader
from surerag.recording import RecordedReader
from surerag.services import Encoder, Services
from surerag.types import Passage
from surerag.world.questions import is_correct
from surerag.world.regimes import TODAY
from surerag_studies.asking import RememberingEncoder
from surerag_studies.dense_rag.asking import (
    ANSWER,
    AT_ONCE,
    REPHRASE_TOKENS,
    Record,
    measured,
    recut,
    refiner,
    semantic_chunker,
)
from surerag_studies.dense_rag.cases import Case, Library, draw_cases, library, tells_any
from surerag_studies.formatting import interval, points
from surerag_studies.judging import AliasEntailer
from surerag_studies.transfer import carrying
from surerag_studies.worlds import world_of

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of neighbouring sentences that τ lies above: Figure 5's thresholds, for any encoder."""

SIZES = (3, 5, 10)
"""Passages of a context, Figure 6."""

K = 5
BINS = (0.0, 0.2, 0.5, 1.0, np.inf)
"""DENSE of summaries, in nats: Table 7 has steps of 0.1 over thousands of articles."""

_SUMMARY = {"answer": EXTRACT.text.replace("{examples}", "")}
_SUMMARY_TOKENS = 96


@dataclass(frozen=True, slots=True)
class Point:
    """A point of Figure 5 or 6, on uncertain questions.

    Attributes:
        at: Quantile of τ, or k.
        tau: The cosine itself; None for Figure 6.
        n: Uncertain questions.
        plain: Accuracy from the k passages as retrieved.
        made: Accuracy from the k pieces that chunking gives; in Figure 6, of chunking and refinement.
        against_plain: The difference, on the same questions.
    """

    at: float
    tau: float | None
    n: int
    plain: Proportion
    made: Proportion
    against_plain: PairedDifference


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A row of Table 7.

    Attributes:
        low: DENSE from here, in nats.
        high: Up to here.
        n: Summaries.
        rouge: Mean ROUGE-L.
    """

    low: float
    high: float
    n: int
    rouge: PairedDifference


@dataclass(frozen=True, slots=True)
class DenseFigures:
    """Every figure of the study.

    Attributes:
        seed: Of the world.
        n: Questions.
        model: Identity of the reader.
        encoder: Identity of the encoder.
        taus: Figure 5.
        sizes: Figure 6.
        summaries: Table 7.
        trend: Correlation of DENSE and ROUGE-L over all summaries.
    """

    seed: int
    n: int
    model: str
    encoder: str
    taus: tuple[Point, ...]
    sizes: tuple[Point, ...]
    summaries: tuple[SummaryRow, ...]
    trend: Estimate


def dense_figures(
    reader: BaseReader, encoder: Encoder, *, seed: int, n: int, stages: Stages = lambda _: False
) -> DenseFigures:
    """Vary τ and k, and measure DENSE of summaries.

    Args:
        reader: Rephrases, answers, extracts and judges sufficiency; the world says which answers agree.
        encoder: Behind retrievers, cutting and refilling.
        seed: Of the world, one that nothing was tuned on.
        n: Questions.
        stages: Told how far each stage is.
    """
    world = world_of(TODAY, n, seed)
    questions = world.questions(n)
    corpus, vectors = library(world, questions), RememberingEncoder(encoder)
    once, judge = RecordedReader(reader, Memory()), AliasEntailer(questions)
    dense = Dense(
        once, judge, max_tokens=ANSWER.max_tokens, rephrase_tokens=REPHRASE_TOKENS, cache=DenseCache()
    )
    with counted_not_logged():
        cases = draw_cases(world, questions, corpus, vectors)
        by_size = {k: measured(dense, cases, k, stages(f"DENSE, k = {k}")) for k in SIZES}
        chunkers = _chunkers(corpus, vectors)
        taus = _by_tau(chunkers, by_size[K], Services(reader=once, encoder=vectors), stages)
        sizes = tuple(
            _by_size(refiner(once, judge, chunkers[0.5], DenseCache(), k), records, stages)
            for k, records in by_size.items()
        )
        told, scores = _summaries(dense, cases, stages)
    return DenseFigures(
        seed,
        n,
        reader.name,
        encoder.name,
        taus,
        tuple(point for point in sizes if point is not None),
        _binned(told, scores),
        correlation(scores, told),
    )


def _chunkers(corpus: Library, encoder: Encoder) -> Mapping[float, AdaptiveChunker]:
    texts = [document.text for document in corpus.documents.values()]
    middle = semantic_chunker(corpus, encoder)
    return {quantile: middle.with_quantile(texts, quantile=quantile) for quantile in QUANTILES}


def _by_tau(
    chunkers: Mapping[float, AdaptiveChunker], records: Sequence[Record], services: Services, stages: Stages
) -> tuple[Point, ...]:
    uncertain = [record for record in records if record.uncertain]
    if not uncertain:
        return ()
    found = []
    for quantile, chunker in chunkers.items():
        documents = {document.id: document for record in uncertain for document in record.case.documents}
        pieces: dict[str, list[Passage]] = {name: [] for name in documents}
        for piece in chunker.passages(list(documents.values())):
            pieces[str(piece.metadata["document"])].append(piece)
        made = recut([record.case for record in uncertain], pieces, K, services, stages(f"τ at {quantile:g}"))
        right = [one.correct for one in made]
        found.append(_point(quantile, chunker.similarity_threshold, uncertain, right))
    return tuple(found)


def _by_size(refining: ContextRefiner, records: Sequence[Record], stages: Stages) -> Point | None:
    uncertain = [record for record in records if record.uncertain]
    if not uncertain:
        return None
    asked = [Candidates(one.case.question.text, one.case.pool, one.case.documents) for one in uncertain]
    results = refining.run_many(asked, window=AT_ONCE, progress=stages(f"refining, k = {refining.top_n}"))
    right = [
        is_correct(one.case.question, result.answer or "")
        for one, result in zip(uncertain, results, strict=True)
    ]
    return _point(refining.top_n, None, uncertain, right)


def _point(at: float, tau: float | None, records: Sequence[Record], right: Sequence[bool]) -> Point:
    plain = [record.correct for record in records]
    return Point(at, tau, len(records), share(plain), share(right), paired_difference(right, plain))


def _summaries(dense: Dense, cases: Sequence[Case], stages: Stages) -> tuple[list[float], list[float]]:
    """Return ROUGE-L of each summary with the sentences that tell what is asked, and its DENSE."""
    some = [case for case in cases if any(tells_any(passage, case.facts) for passage in case.pool[:K])]
    summing = dense.with_options(prompts=_SUMMARY, max_tokens=_SUMMARY_TOKENS)
    asked = [(case.question.text, case.pool[:K]) for case in some]
    results = summing.run_many(asked, window=AT_ONCE, progress=stages("summaries"))
    golds = [
        " ".join(passage.text for passage in case.pool[:K] if tells_any(passage, case.facts)) for case in some
    ]
    told = [rouge_l(result.answer, [gold]) for result, gold in zip(results, golds, strict=True)]
    return told, [result.score for result in results]


def _binned(told: Sequence[float], scores: Sequence[float]) -> tuple[SummaryRow, ...]:
    found = []
    for low, high in pairwise(BINS):
        some = [rouge for rouge, score in zip(told, scores, strict=True) if low <= score < high]
        if some:
            found.append(SummaryRow(low, high, len(some), paired_difference(some, [0.0] * len(some))))
    return tuple(found)


def study_tables(study: DenseFigures) -> RenderableType:
    """Return the study's tables."""
    heading = Text.assemble(
        ("DENSE-RAG by τ and k, and of summaries", "bold"),
        f", seed {study.seed}, n = {study.n:,}\nReader {study.model}; encoder {study.encoder}\n",
        "Figures 5 and 6 are about uncertain questions. Intervals are 95 %; differences are paired.",
    )
    parts: list[RenderableType] = [heading]
    for title, points_, name in (
        (f"Threshold of chunking, k = {K} (cf. Figure 5)", study.taus, "τ (quantile)"),
        ("Passages of a context, with chunking and refinement (cf. Figure 6)", study.sizes, "k"),
    ):
        table = plain_table(title, padding=(0, 1, 0, 0))
        for column in (name, "n", "As retrieved, %", "DENSE-RAG, %", "Difference"):
            table.add_column(column, justify="right")
        for one in points_:
            at = f"{one.at:g}" if one.tau is None else f"{one.tau:.2f} ({one.at:g})"
            table.add_row(
                at, str(one.n), percent_with_interval(one.plain), percent_with_interval(one.made),
                points(one.against_plain),
            )  # fmt: skip
        parts.append(carrying(table, None, "accuracies and sizes of effects"))
    table = plain_table("ROUGE-L of summaries by DENSE (cf. Table 7)", padding=(0, 1, 0, 0))
    for column in ("DENSE, nats", "n", "ROUGE-L"):
        table.add_column(column, justify="right")
    for row in study.summaries:
        reach = f"{row.low:g} and more" if np.isinf(row.high) else f"{row.low:g} to {row.high:g}"
        table.add_row(reach, str(row.n), interval(row.rouge, 2))
    table.caption = f"Pearson's r of DENSE and ROUGE-L: {interval(study.trend, 2)}."
    parts.append(carrying(table, None, "values of ROUGE-L"))
    return Group(*parts)
