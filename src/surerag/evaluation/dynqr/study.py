"""The DynQR study, from a seed to its findings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from surerag.components import UncertaintyRewriter
from surerag.errors import ConfigurationError
from surerag.evaluation.dynqr.analysis import (
    CONFIDENCE,
    SETTINGS,
    gold_rows,
    kind_rows,
    metric_rows,
    rows,
    sweep,
)
from surerag.evaluation.dynqr.asking import AT_ONCE, MAX_TOKENS, SAMPLES, Bench, K, Stages
from surerag.evaluation.dynqr.calibrating import RULE, calibrated
from surerag.evaluation.dynqr.claims import MARGIN, claims
from surerag.evaluation.dynqr.records import Record, outcome_of
from surerag.evaluation.dynqr.results import Agreement, DynQRStudy, Threshold
from surerag.evaluation.dynqr.training import TrainingPlan, training_study
from surerag.evaluation.dynqr.training_results import TrainingStudy
from surerag.methods.uncertainty_metrics import MetricName
from surerag.readers.protocol import Reader
from surerag.retrieval import PassageIndex
from surerag.services import Encoder, Retriever
from surerag.world.world import World

LARGEST_CHECK = 100
"""Questions that the component itself is asked, in either setting."""

MOST_CALIBRATION = 500


class Recorded(NamedTuple):
    """What everything is computed from.

    Attributes:
        tuning: Records of the world for calibration.
        records: Records of the world that is asked.
        metrics: The reader's metrics, perplexity first.
    """

    tuning: list[Record]
    records: list[Record]
    metrics: tuple[MetricName, ...]


def index_world(world: World, encoder: Encoder) -> Retriever:
    """Index all passages of a world."""
    return PassageIndex.from_passages(world.passages, encoder)


def dynqr_study(
    reader: Reader,
    encoder: Encoder,
    *,
    seed: int,
    n: int,
    calibration_seed: int | None = None,
    n_calibration: int | None = None,
    index: Callable[[World, Encoder], Retriever] = index_world,
    base: str | Path | None = None,
    plan: TrainingPlan | None = None,
    stages: Stages = lambda _: False,
) -> DynQRStudy:
    """Ask one world from every context once, at thresholds that were calibrated on another.

    Args:
        reader: Answers and rewrites; reports log-probabilities.
        encoder: Behind the index.
        seed: Seed of the world that is asked.
        n: Questions, in the world's proportions: a quarter of them under-specified.
        calibration_seed: Seed of the world for calibration; by default the next one.
        n_calibration: Questions for calibration; by default as many, at most 500.
        index: Makes a world's index.
        base: What to train a rewriter from: a folder, or a Hugging Face id; None trains none.
        plan: How much it learns from; None for the defaults.
        stages: Told how far each stage is.

    Raises:
        ConfigurationError: If both worlds are the same.
        CapabilityError: If the reader reports no log-probabilities.
        MissingExtraError: If there is a base, and packages for training are not installed.
    """
    other = seed + 1 if calibration_seed is None else calibration_seed
    if other == seed:
        raise ConfigurationError("calibration and study would use the same world", hint="choose another seed")
    tune, world = World(seed=other), World(seed=seed)
    tuning = Bench(tune, reader, index(tune, encoder))
    bench = Bench(world, reader, index(world, encoder))
    asked = tune.questions(n_calibration or min(n, MOST_CALIBRATION))
    questions = world.questions(n)
    recorded = Recorded(
        tuning.ask(asked, stages("Calibration")), bench.ask(questions, stages("Every context")), bench.metrics
    )
    training = None
    if base is not None:
        training = training_study(reader, encoder, base, seed=seed, plan=plan, stages=stages)
    return study_of(
        recorded,
        seed=seed,
        calibration_seed=other,
        model=reader.name,
        encoder=encoder.name,
        check=lambda thresholds: _agreement(reader, bench.index, thresholds, recorded.records, stages),
        training=training,
    )


def study_of(
    recorded: Recorded,
    *,
    seed: int,
    calibration_seed: int,
    model: str,
    encoder: str,
    check: Callable[[Sequence[Threshold]], Agreement],
    training: TrainingStudy | None = None,
) -> DynQRStudy:
    """Compute every finding from what was recorded.

    Args:
        recorded: Every answer, of both worlds.
        seed: Seed of the world that was asked.
        calibration_seed: Seed of the other one.
        model: Identity of the reader.
        encoder: Identity of the encoder.
        check: Runs the component itself at the thresholds found.
        training: What training brought, if it was done.
    """
    records = recorded.records
    thresholds = tuple(calibrated(recorded.tuning, documents, "perplexity") for documents in SETTINGS)
    agreement = check(thresholds)
    by_metric = [calibrated(recorded.tuning, "substitute", metric) for metric in recorded.metrics]
    table, kinds = rows(records, thresholds), kind_rows(records, thresholds[0].theta.value)
    points, metrics, gold = sweep(records), metric_rows(records, by_metric), gold_rows(records)
    return DynQRStudy(
        seed=seed,
        n=len(records),
        model=model,
        encoder=encoder,
        confidence=CONFIDENCE,
        k=K,
        samples=SAMPLES,
        rule=RULE,
        calibration_seed=calibration_seed,
        n_calibration=len(recorded.tuning),
        margin=MARGIN,
        thresholds=thresholds,
        rows=table,
        kinds=kinds,
        sweep=points,
        metrics=metrics,
        gold=gold,
        agreement=agreement,
        training=training,
        claims=claims(table, kinds, points, metrics, gold, agreement, training),
        records=tuple(records),
    )


@contextmanager
def _counted_not_logged() -> Iterator[None]:
    """Keep warnings of single questions, of rewrites that change nothing, out of the log."""
    logger = logging.getLogger("surerag")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _agreement(
    reader: Reader,
    index: Retriever,
    thresholds: Sequence[Threshold],
    records: Sequence[Record],
    stages: Stages,
) -> Agreement:
    """Run the component itself in either setting, and compare with what the records say."""
    some = records[:LARGEST_CHECK]
    same_answer = same_decision = worse = 0
    for threshold in thresholds:
        theta, documents = threshold.theta.value, threshold.documents
        rewriter = UncertaintyRewriter(
            reader, index, theta=theta, documents=documents, k=K, max_tokens=MAX_TOKENS
        )
        with _counted_not_logged():
            results = rewriter.run_many(
                [record.question for record in some],
                at_once=AT_ONCE,
                progress=stages(f"The component, {documents}"),
            )
        for record, result in zip(some, results, strict=True):
            expected = outcome_of(record, theta, documents)
            same_answer += result.answer == expected.attempt.answer
            same_decision += (result.acted, result.kept == "rewritten") == (expected.acted, expected.replaced)
            tried = [result.original, *result.candidates]
            worse += result.uncertainty > min(attempt.uncertainty for attempt in tried)
    return Agreement(len(some) * len(thresholds), same_answer, same_decision, worse)
