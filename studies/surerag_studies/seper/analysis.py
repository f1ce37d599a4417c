"""From samples to the figures of Table 2, of the properties, of Figure 3, and of retrievers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from surerag.evaluation.differences import paired_difference
from surerag.evaluation.statistics import Estimate, correlation, correlation_gap, rank_correlation
from surerag.methods.seper.scoring import beliefs_of_counts
from surerag.world.questions import Question
from surerag_studies.seper.asking import ALL_FORMS, BASELINES, OURS, SAMPLES, Measure, Samples, belief
from surerag_studies.seper.contexts import Found, K, KnownContext, Role
from surerag_studies.seper.results import (
    MethodRow,
    RetrieverRow,
    Retrievers,
    RoleRow,
    Rung,
    SampleRow,
    Spread,
)

CONFIDENCE = 0.95
SINGLE, TAUGHT, TWO_HOP = "single-hop", "taught", "two-hop"
_RUNGS = {
    SINGLE: ("irrelevant passage", "+ distractor", "+ gold", "+ its paraphrase"),
    TWO_HOP: ("irrelevant passage", "+ first half", "+ second half", "+ its paraphrase"),
}

SIZES = (1, 5, 10, 15, 20)
"""Of Figure 3."""

DRAWS = 20


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One question, without context and in every context of known utility.

    Attributes:
        question: What was asked.
        before: Samples without context.
        contexts: The contexts.
        after: Samples in each of them.
        ratings: What a judge says that each is worth, by label; empty without a judge.
    """

    question: Question
    before: Samples
    contexts: tuple[KnownContext, ...]
    after: tuple[Samples, ...]
    ratings: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """``"single-hop"``, ``"taught"`` or ``"two-hop"``."""
        return TWO_HOP if self.question.hops == 2 else TAUGHT if self.question.taught else SINGLE


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Contexts of some questions with a measure's verdict on each.

    Attributes:
        utilities: Known utility, shape [contexts].
        questions: Number of the question of each context, shape [contexts].
        deltas: Difference that the context makes to each measure, by label.
    """

    utilities: NDArray[np.float64]
    questions: NDArray[np.intp]
    deltas: dict[str, NDArray[np.float64]]

    def estimate(self, label: str) -> Estimate:
        """Return the correlation of a measure with known utility."""
        if len(self.utilities) < 2:
            return Estimate(float("nan"), float("nan"), float("nan"))
        return correlation(self.deltas[label], self.utilities, self.questions, confidence=CONFIDENCE)

    def gap(self, first: str, second: str) -> Estimate:
        """Return how much better one measure correlates than another."""
        both = self.deltas[first], self.deltas[second]
        return correlation_gap(*both, self.utilities, self.questions, confidence=CONFIDENCE)


def table_contexts(records: Sequence[Record]) -> list[tuple[int, KnownContext, Samples, Samples]]:
    """List what Table 2 is about, with the question's number and its samples before and after.

    Single passages, as in the paper, and whole two-hop chains; the further steps of the ladder repeat these.
    """
    return [
        (number, context, record.before, after)
        for number, record in enumerate(records)
        for context, after in zip(record.contexts, record.after, strict=True)
        if context.role is not Role.LADDER
    ]


def scored(records: Sequence[Record], measures: Sequence[Measure] = (*BASELINES, *OURS)) -> Scored:
    """Score every context of some questions by every measure, on the first ten samples."""
    rows = table_contexts(records)
    deltas = {
        measure.label: np.array(
            [
                _level(measure, after, records[number]) - _level(measure, before, records[number])
                for number, _, before, after in rows
            ]
        )
        for measure in measures
    }
    for label in records[0].ratings if records else ():
        deltas[label] = np.array(
            [
                rating
                for record in records
                for context, rating in zip(record.contexts, record.ratings[label], strict=True)
                if context.role is not Role.LADDER
            ]
        )
    return Scored(
        np.array([context.utility for _, context, _, _ in rows]),
        np.array([number for number, *_ in rows], dtype=np.intp),
        deltas,
    )


def _level(measure: Measure, samples: Samples, record: Record) -> float:
    return measure.level(samples.first(SAMPLES), record.question.answers)


def method_rows(single: Scored, two_hop: Scored, unknown: Scored) -> tuple[MethodRow, ...]:
    """Return Table 2, ours last."""
    ours = {measure.label for measure in OURS}
    labels = sorted(single.deltas, key=ours.__contains__)
    return tuple(
        MethodRow(
            label,
            label in ours,
            single.estimate(label),
            two_hop.estimate(label),
            unknown.estimate(label),
        )
        for label in labels
    )


def rivals(some: Scored) -> list[str]:
    """List the measures that know no more than ΔSePer does: one short gold answer."""
    ours = {measure.label for measure in OURS}
    return [label for label in some.deltas if label not in ours and label != ALL_FORMS]


def role_rows(records: Sequence[Record]) -> tuple[RoleRow, ...]:
    """Return what each kind of context is worth to the reader, one row a kind."""
    rows = []
    for group in (SINGLE, TAUGHT, TWO_HOP):
        for role in Role:
            some = means(records, group, partial(_plays, role))
            if role is not Role.LADDER and some.size:
                counted = [c for r in records if r.group == group for c in r.contexts if c.role is role]
                rows.append(RoleRow(group, role.value, counted[0].utility, len(counted), _mean(some)))
    return tuple(rows)


def _plays(role: Role, context: KnownContext) -> bool:
    return context.role is role


def means(
    records: Sequence[Record], group: str, wanted: Callable[[KnownContext], bool]
) -> NDArray[np.float64]:
    """Return ΔSePer of the wanted contexts, a mean for each question of a group that has any."""
    found = []
    for record in records:
        pairs = zip(record.contexts, record.after, strict=True)
        deltas = [_delta(record, after) for context, after in pairs if wanted(context)]
        if record.group == group and deltas:
            found.append(float(np.mean(deltas)))
    return np.array(found)


def ladder(records: Sequence[Record]) -> tuple[Rung, ...]:
    """Return ΔSePer along the ladder, on the questions that have every step."""
    rungs = []
    for group, names in _RUNGS.items():
        some = [record for record in records if record.group == group]
        steps = [
            {c.step: (c, after) for c, after in zip(r.contexts, r.after, strict=True) if c.step is not None}
            for r in some
        ]
        whole = [(r, s) for r, s in zip(some, steps, strict=True) if len(s) == len(names)]
        before: list[float] | None = None
        for at, name in enumerate(names) if whole else ():
            deltas = [_delta(record, step[at][1]) for record, step in whole]
            rise = None if before is None else paired_difference(deltas, before, confidence=CONFIDENCE)
            utility = whole[0][1][at][0].utility
            rungs.append(Rung(group, name, utility, len(deltas), _mean(np.array(deltas)), rise))
            before = deltas
    return tuple(rungs)


def _delta(record: Record, after: Samples) -> float:
    return belief(after.first(SAMPLES)) - belief(record.before.first(SAMPLES))


def _mean(values: NDArray[np.float64]) -> Estimate:
    found = paired_difference(values, np.zeros_like(values), confidence=CONFIDENCE)
    return Estimate(found.value, found.low, found.high)


def sample_rows(
    records: Sequence[Record], two_hop: Sequence[bool], sizes: Sequence[int] = SIZES, *, seed: int = 0
) -> tuple[SampleRow, ...]:
    """Return Figure 3's points for both kernels, from the samples that there are, without asking again.

    The first 20 samples of a context hold every smaller run: any n of them are a run of n, so the mean
    correlation over random subsets is that of runs of n. Their spread is not: subsets overlap, and there is
    only one of 20. The spread is therefore that of bootstrap resamples of size n, drawn with replacement.

    Args:
        records: Every question with all of its samples.
        two_hop: Whether each question is a two-hop one.
        sizes: Samples a context; those there are too few of are left out.
        seed: Of the draws.
    """
    rows = table_contexts(records)
    utilities = np.array([context.utility for _, context, _, _ in rows])
    hops = np.array([two_hop[number] for number, *_ in rows])
    most = min(len(record.before.texts) for record in records)
    sizes = [size for size in sizes if size <= most]
    found = []
    for kernel in ("soft", "hard"):
        rng = np.random.default_rng(seed)
        before = [_redrawn(record.before, sizes, rng, hard=kernel == "hard") for record in records]
        deltas = np.stack(
            [
                _redrawn(after, sizes, rng, hard=kernel == "hard") - before[number]
                for number, _, _, after in rows
            ]
        )
        for at, size in enumerate(sizes):
            subsets, resamples = deltas[:, at, 0], deltas[:, at, 1]
            single, chains = (
                _spread(subsets[part], resamples[part], utilities[part]) for part in (~hops, hops)
            )
            found.append(SampleRow(size, kernel, single, chains, float(resamples.std(axis=1, ddof=1).mean())))
    return tuple(found)


def _redrawn(
    samples: Samples, sizes: Sequence[int], rng: np.random.Generator, *, hard: bool
) -> NDArray[np.float64]:
    """Return SePer of redrawn samples, shape [sizes, 2, draws]: of subsets, and of bootstrap resamples."""
    total = len(samples.texts)
    counts = []
    for size in sizes:
        chosen = np.tile(np.arange(total) < size, (DRAWS, 1)).astype(np.int64)
        counts += [rng.permuted(chosen, axis=1), rng.multinomial(size, np.full(total, 1 / total), size=DRAWS)]
    kernel = (samples.matches if hard else samples.degrees)[:, None]
    beliefs = beliefs_of_counts(
        np.concatenate(counts), samples.texts, samples.logs.tolist(), kernel, "distinct", "max"
    )
    return beliefs.reshape(len(sizes), 2, DRAWS)


def _spread(
    subsets: NDArray[np.float64], resamples: NDArray[np.float64], utilities: NDArray[np.float64]
) -> Spread:
    """Return the mean correlation of subsets, and its deviation over resamples; both [contexts, draws]."""
    if len(utilities) < 2:
        return Spread(float("nan"), float("nan"))
    of_subsets, of_resamples = (_correlations(table, utilities) for table in (subsets, resamples))
    return Spread(float(of_subsets.mean()), float(of_resamples.std(ddof=1)))


def _correlations(table: NDArray[np.float64], utilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Pearson's correlation of each column; NaN where one is constant."""
    x, y = table - table.mean(axis=0), utilities - utilities.mean()
    spread = np.sqrt((x**2).sum(axis=0) * (y**2).sum())
    found: NDArray[np.float64] = np.divide(
        y @ x, spread, out=np.full(len(spread), np.nan), where=spread > 1e-9
    )
    return found


def ranked(
    found: Sequence[Found], before: Sequence[Samples], after: Sequence[Sequence[Samples]], k: int = K
) -> Retrievers:
    """Compare known quality with mean ΔSePer.

    Args:
        found: What each retriever found.
        before: Samples of each question without context.
        after: Samples of each question, with the passages of each retriever in the order of ``found``.
        k: Passages that each returned.
    """
    closed = np.array([belief(samples.first(SAMPLES)) for samples in before])
    opened = np.array([[belief(samples) for samples in row] for row in after]).T
    recalls = np.array([one.recall for one in found])
    rows = []
    for one, beliefs in zip(found, opened, strict=True):
        gain = paired_difference(beliefs, closed, confidence=CONFIDENCE)
        rows.append(
            RetrieverRow(one.name, float(np.mean(one.recall)), Estimate(gain.value, gain.low, gain.high))
        )
    return Retrievers(
        k=k,
        n=len(before),
        rows=tuple(sorted(rows, key=lambda row: -row.recall)),
        rank=rank_correlation(recalls, opened - closed, confidence=CONFIDENCE),
    )
