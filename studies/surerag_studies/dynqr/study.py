"""The DynQR study, from a seed to its findings and claims."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from surerag import UncertaintyRewriter
from surerag.drivers.progress import Stages, counted_not_logged
from surerag.errors import ConfigurationError
from surerag.evaluation.differences import PairedDifference
from surerag.evaluation.formatting import percent, percent_with_interval
from surerag.evaluation.statistics import is_monotone
from surerag.methods.dynqr.metrics import MetricName
from surerag.readers.protocol import Reader
from surerag.retrieval import PassageIndex
from surerag.services import Encoder, Retriever
from surerag.world.regimes import TODAY, Regime
from surerag.world.world import World
from surerag_studies.claims import Claim
from surerag_studies.dynqr.analysis import (
    CONFIDENCE,
    RULE,
    SETTINGS,
    calibrated,
    gold_rows,
    kind_rows,
    metric_rows,
    rows,
    sweep,
)
from surerag_studies.dynqr.asking import MAX_TOKENS, SAMPLES, WINDOW, Bench, K
from surerag_studies.dynqr.choosing import choices
from surerag_studies.dynqr.records import Record, outcome_of
from surerag_studies.dynqr.results import (
    Agreement,
    DynQRStudy,
    GoldRow,
    KindRow,
    MetricRow,
    Row,
    SweepPoint,
    Threshold,
    TrainingStudy,
)
from surerag_studies.dynqr.training import TrainingPlan, training_study
from surerag_studies.formatting import points
from surerag_studies.worlds import world_of

LARGEST_CHECK = 100
"""Questions that the component itself is asked, in either setting."""

MOST_CALIBRATION = 500

MARGIN = 0.02


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
    regime: Regime = TODAY,
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
        regime: What misleads in both worlds; by default nothing does. A rewriter is trained in today's.
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
    n_tuning = n_calibration or min(n, MOST_CALIBRATION)
    tune, world = world_of(regime, n_tuning, other), world_of(regime, n, seed)
    tuning = Bench(tune, reader, index(tune, encoder))
    bench = Bench(world, reader, index(world, encoder))
    asked = tune.questions(n_tuning)
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
        regime=regime.name,
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
    regime: str = TODAY.name,
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
        regime: Name of the regime of both worlds.
    """
    records = recorded.records
    thresholds = tuple(calibrated(recorded.tuning, documents, "perplexity") for documents in SETTINGS)
    agreement = check(thresholds)
    by_metric = [calibrated(recorded.tuning, "substitute", metric) for metric in recorded.metrics]
    table, kinds = rows(records, thresholds), kind_rows(records, thresholds[0].threshold.value)
    swept, metrics, gold = sweep(records), metric_rows(records, by_metric), gold_rows(records)
    return DynQRStudy(
        seed=seed,
        regime=regime,
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
        sweep=swept,
        metrics=metrics,
        gold=gold,
        choices=choices(recorded.tuning, records),
        agreement=agreement,
        training=training,
        claims=claims(table, kinds, swept, metrics, gold, agreement, training),
        records=tuple(records),
    )


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
        value, documents = threshold.threshold.value, threshold.documents
        rewriter = UncertaintyRewriter(
            reader, index, threshold=value, documents=documents, top_n=K, max_tokens=MAX_TOKENS
        )
        with counted_not_logged():
            results = rewriter.run_many(
                [record.question for record in some],
                window=WINDOW,
                progress=stages(f"The component, {documents}"),
            )
        for record, result in zip(some, results, strict=True):
            expected = outcome_of(record, value, documents)
            same_answer += result.answer == expected.attempt.answer
            same_decision += (result.acted, result.kept == "rewritten") == (expected.acted, expected.replaced)
            tried = [result.original, *result.candidates]
            worse += result.uncertainty > min(attempt.uncertainty for attempt in tried)
    return Agreement(len(some) * len(thresholds), same_answer, same_decision, worse)


def claims(
    rows: Sequence[Row],
    kinds: Sequence[KindRow],
    sweep: Sequence[SweepPoint],
    metrics: Sequence[MetricRow],
    gold: Sequence[GoldRow],
    agreement: Agreement,
    training: TrainingStudy | None = None,
) -> tuple[Claim, ...]:
    """Judge every claim."""
    return (
        *(_not_inferior(row) for row in rows if row.label == "DynQR"),
        _fewer(rows),
        *(_better_where_vague(row) for row in kinds if row.kind == "under-specified"),
        Claim(
            "Post-verification never keeps the more uncertain answer",
            f"{agreement.more_uncertain} of {agreement.n} answers of the component",
            agreement.more_uncertain == 0,
        ),
        *(_gold_claim(row) for row in gold if row.kind == "all"),
        _monotone(sweep),
        _perplexity(metrics),
        Claim(
            "The component itself, run at these thresholds, answers as the records say",
            f"{agreement.same_answer} answers, {agreement.same_decision} decisions agree of {agreement.n}",
            agreement.same_answer == agreement.same_decision == agreement.n,
        ),
        *(() if training is None else training_claims(training)),
    )


def training_claims(training: TrainingStudy) -> tuple[Claim, ...]:
    """Judge training: every stage lowers the reader's uncertainty, and all rewards run."""
    steps = list(itertools.pairwise(training.stages))[1:]
    rewards = 1 + sum(row.triplets > 0 for row in training.rewards)
    return (
        *(
            Claim(
                f"The reader's uncertainty falls from {before.stage} to {after.stage}",
                "nothing: no two answers to compare" if gap is None else _change(gap),
                gap is not None and gap.high < 0,
            )
            for before, after in steps
            for gap in [after.against_previous]
        ),
        Claim(
            f"All {1 + len(training.rewards)} rewards can be aligned with",
            f"{rewards} of them made a rewriter",
            rewards == 1 + len(training.rewards),
        ),
    )


def _change(gap: PairedDifference) -> str:
    return f"log perplexity {gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"


def _not_inferior(row: Row) -> Claim:
    gap = row.against_always
    if gap is None:
        raise ValueError("DynQR is compared with rewriting always")
    return Claim(
        f"Not inferior to rewriting always by more than {100 * MARGIN:g} points ({row.documents})",
        f"{points(gap, unit=' points')}, one-sided bound {100 * gap.lower_bound:+.1f}",
        gap.lower_bound > -MARGIN,
    )


def _fewer(rows: Sequence[Row]) -> Claim:
    shares = {row.documents: row.rewritten for row in rows if row.label == "DynQR"}
    found = ", ".join(f"{percent(value)} ({documents})" for documents, value in shares.items())
    return Claim("With fewer rewrites", f"rewrites {found}", all(value < 1 for value in shares.values()))


def _better_where_vague(row: KindRow) -> Claim:
    return Claim(
        "Above the original query on under-specified questions",
        points(row.against_original, unit=" points"),
        row.against_original.low > 0,
    )


def _gold_claim(row: GoldRow) -> Claim:
    return Claim(
        "Uncertainty falls in most cases when a gold passage replaces one at random (Figure 3)",
        f"{percent_with_interval(row.falls)} % of {row.falls.n:,}",
        row.falls.low > 0.5,
    )


def _monotone(sweep: Sequence[SweepPoint]) -> Claim:
    first, last = sweep[0].rewritten.value, sweep[-1].rewritten.value
    return Claim(
        "The share of rewritten questions falls monotonically with θ",
        f"from {percent(first)} to {percent(last)} over {len(sweep)} thresholds",
        is_monotone([point.rewritten.value for point in sweep], "decreasing") and first > last,
    )


def _perplexity(metrics: Sequence[MetricRow]) -> Claim:
    better = [
        row.metric for row in metrics if row.against_perplexity is not None and row.against_perplexity.low > 0
    ]
    gaps = [row.against_perplexity.value for row in metrics if row.against_perplexity is not None]
    finding = f"the best other is {100 * max(gaps, default=0.0):+.1f} points from it"
    return Claim(
        "No other uncertainty gives better answers than perplexity (Table 5)",
        f"{', '.join(better)} better" if better else finding,
        not better,
    )
