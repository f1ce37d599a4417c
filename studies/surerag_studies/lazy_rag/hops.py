"""A gate before each hop: questions whose answer is a chain of two facts (L-RAG, section VI-F).

The paper names retrieval for each hop as future work, and no way to search for the next one. Ours searches
for the question together with what the reader says of what it has so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from surerag.drivers.progress import Stages
from surerag.evaluation.differences import PairedDifference, paired_difference
from surerag.evaluation.formatting import percent_with_interval, plain_table
from surerag.evaluation.gate import world_questions
from surerag.evaluation.gate.asking import ask
from surerag.evaluation.statistics import Proportion, share
from surerag.readers.protocol import Reader
from surerag.services import Encoder
from surerag.world.regimes import TODAY
from surerag.world.spec import QuestionKind
from surerag.world.tiers import index_world
from surerag_studies.formatting import points
from surerag_studies.lazy_rag.study import pipeline
from surerag_studies.transfer import carrying
from surerag_studies.worlds import world_of

HOPS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class HopRow:
    """Some hops at most.

    Attributes:
        hops: How many.
        accuracy: Share of right answers.
        against_one: Accuracy less that of one hop, on the same questions; None for one hop.
        told: Share of questions whose two facts both stood before the reader.
        retrievals: Mean retrievals a question.
        passages: Mean passages shown.
        tokens: Mean tokens read a question.
    """

    hops: int
    accuracy: Proportion
    against_one: PairedDifference | None
    told: Proportion
    retrievals: float
    passages: float
    tokens: float


@dataclass(frozen=True, slots=True)
class HopStudy:
    """Every figure of the study."""

    seed: int
    n: int
    model: str
    encoder: str
    threshold: float
    rows: tuple[HopRow, ...]


def hop_study(
    reader: Reader,
    encoder: Encoder,
    *,
    seed: int,
    n: int,
    hops: Sequence[int] = HOPS,
    stages: Stages = lambda _: False,
) -> HopStudy:
    """Answer chains of two facts with one retrieval at most, and with more.

    Args:
        reader: Reports entropies.
        encoder: Behind both tiers.
        seed: Of the world, one that nothing was tuned on.
        n: Questions.
        hops: How many retrievals there may be; the first is what others are compared with.
        stages: Told how far each stage is.
    """
    world = world_of(TODAY, n, seed)
    questions = world_questions(world, world.questions(n, [QuestionKind.TWO_HOP]))
    rag = pipeline(reader, index_world(world, encoder))
    rows: list[HopRow] = []
    first: list[bool] = []
    for most in hops:
        results = ask(rag.with_options(max_hops=most), questions, stages(f"{most} hops"))
        right = [one.is_correct(result.answer) for one, result in zip(questions, results, strict=True)]
        shown = [{passage.id for passage in (*result.passages, *result.summaries)} for result in results]
        texts = [
            " ".join(passage.text for passage in (*result.passages, *result.summaries)) for result in results
        ]
        told = [
            all(gold.id in ids or gold.text in text for gold in one.gold)
            for one, ids, text in zip(questions, shown, texts, strict=True)
        ]
        rows.append(
            HopRow(
                most,
                share(right),
                paired_difference(right, first) if first else None,
                share(told),
                float(np.mean([result.retrievals for result in results])),
                float(np.mean([len(result.passages) for result in results])),
                float(np.mean([result.prompt_tokens for result in results])),
            )
        )
        first = first or right
    return HopStudy(seed, n, reader.name, encoder.name, rag.boundary(), tuple(rows))


def study_tables(study: HopStudy) -> RenderableType:
    """Return the study's table."""
    heading = Text.assemble(
        ("A gate before each hop", "bold"),
        f", seed {study.seed}, n = {study.n:,} chains of two facts, threshold {study.threshold:g} nats\n",
        f"Reader {study.model}; encoder {study.encoder}. Intervals are 95 %.",
    )
    table = plain_table("Retrievals at most, each behind the gate", padding=(0, 1, 0, 0))
    for name in ("Hops", "Accuracy, %", "vs one", "Both facts shown, %", "Retrievals", "Passages", "Tokens"):
        table.add_column(name, justify="right")
    for row in study.rows:
        table.add_row(
            str(row.hops),
            percent_with_interval(row.accuracy),
            "" if row.against_one is None else points(row.against_one),
            f"{100 * row.told.value:.1f}",
            f"{row.retrievals:.2f}",
            f"{row.passages:.1f}",
            f"{row.tokens:.0f}",
        )
    return Group(heading, carrying(table, "that retrievals are bounded"))
