"""The EDC²-RAG study, from a seed to its findings."""

from __future__ import annotations

from collections.abc import Sequence

from surerag.evaluation.edc2.analysis import Found, claims, figures
from surerag.evaluation.edc2.asking import Bench, Stages
from surerag.evaluation.edc2.contexts import GRID, LARGE, Cell, Vectors
from surerag.evaluation.edc2.results import CompressionStudy
from surerag.readers.protocol import BaseReader
from surerag.services import Encoder
from surerag.world.world import World

CONFIDENCE = 0.95
LARGE_SHARE = 10
"""One question in so many is asked at top-k 100 too."""


def compression_study(
    reader: BaseReader,
    encoder: Encoder,
    *,
    seed: int,
    n: int,
    grid: Sequence[Cell] = GRID,
    large: Cell | None = LARGE,
    stages: Stages = lambda _: False,
) -> CompressionStudy:
    """Answer the same questions from contexts of growing noise and redundancy, compressed and not.

    Args:
        reader: Compresses and answers, greedily.
        encoder: Ranks and clusters.
        seed: Seed of the world, one that the reader was not trained on.
        n: Questions, the same in every cell.
        grid: Conditions, and the methods to run under each.
        large: A condition to run on a tenth of the questions; None for none.
        stages: Told how far each stage is.
    """
    world = World(seed=seed)
    questions = world.questions(n)
    bench = Bench(world, reader, Vectors(encoder))
    found = [Found(cell.condition, bench.ask(cell, questions, stages)) for cell in grid]
    some = questions[: max(1, n // LARGE_SHARE)]
    more = None if large is None else Found(large.condition, bench.ask(large, some, stages))
    return CompressionStudy(
        seed=seed,
        n=n,
        model=reader.name,
        encoder=encoder.name,
        confidence=CONFIDENCE,
        cells=tuple(map(figures, found)),
        large=None if more is None else figures(more),
        claims=claims(found),
    )
