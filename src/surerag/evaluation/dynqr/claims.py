"""What the study was asked to show."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from surerag.evaluation.dynqr.results import (
    Agreement,
    Claim,
    GoldRow,
    KindRow,
    MetricRow,
    Row,
    SweepPoint,
)
from surerag.evaluation.dynqr.training_results import TrainingStudy
from surerag.evaluation.formatting import percent, percent_with_interval
from surerag.evaluation.statistics import PairedDifference, is_monotone

MARGIN = 0.02


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
    """Judge what training was to show: every stage lowers the reader's uncertainty, and all rewards run."""
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


def points(gap: PairedDifference) -> str:
    """Write a difference of shares with its interval, in points.

    Example:
        >>> points(PairedDifference(0.05, 0.01, 0.0912, 0.02))
        '+5.0 points [+1.0, +9.1]'
    """
    return f"{100 * gap.value:+.1f} points [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"


def _not_inferior(row: Row) -> Claim:
    gap = row.against_always
    if gap is None:
        raise ValueError("DynQR is compared with rewriting always")
    return Claim(
        f"Not inferior to rewriting always by more than {100 * MARGIN:g} points ({row.documents})",
        f"{points(gap)}, one-sided bound {100 * gap.lower_bound:+.1f}",
        gap.lower_bound > -MARGIN,
    )


def _fewer(rows: Sequence[Row]) -> Claim:
    shares = {row.documents: row.rewritten for row in rows if row.label == "DynQR"}
    found = ", ".join(f"{percent(value)} ({documents})" for documents, value in shares.items())
    return Claim("With fewer rewrites", f"rewrites {found}", all(value < 1 for value in shares.values()))


def _better_where_vague(row: KindRow) -> Claim:
    return Claim(
        "Above the original query on under-specified questions",
        points(row.against_original),
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
