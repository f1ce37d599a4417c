"""What a trace says: accuracy, signals, gates, rewriting, compressing and costs, all from its rows."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surerag.errors import InputError
from surerag.evaluation.differences import PairedDifference, paired_difference
from surerag.evaluation.statistics import Estimate, Proportion, auroc, correlation, share, wilson_interval
from surerag.records.rows import (
    COMPRESSED,
    NONE,
    ORIGINAL,
    RETRIEVAL,
    STRONG,
    SUMMARIES,
    VERIFIED,
    Pass,
    TraceRow,
)

HELD = 10_000
"""Questions whose signals are looked at together, at most: more would tell no more, and fill the memory."""
RATES = (0.25, 0.5, 0.75)
DECISIONS = (
    ("retrieve", NONE, RETRIEVAL),
    ("retrieve after the summaries", SUMMARIES, STRONG),
    ("rewrite", ORIGINAL, VERIFIED),
    ("compress", RETRIEVAL, COMPRESSED),
)
_RESAMPLES = 4_000


@dataclass(frozen=True, slots=True)
class ConditionFigures:
    """Answers under one condition.

    Attributes:
        condition: Which one.
        n: Questions that were answered so.
        right: Share of right answers (a score above one half), with Wilson's interval; None unjudged.
        score: Mean score.
        calls: Prompts a question.
        prompt_tokens: Read, a question.
        completion_tokens: Generated, a question.
        seconds: Of the model, a question; None where it is not known of each.
    """

    condition: str
    n: int
    right: Proportion | None
    score: float | None
    calls: float
    prompt_tokens: float
    completion_tokens: float
    seconds: float | None


@dataclass(frozen=True, slots=True)
class SignalFigures:
    """What one signal knows.

    Attributes:
        signal: Its name.
        n: Questions that have it.
        wrong: AUROC for the answer without acting being wrong; None where all, or none, are.
        helps: AUROC for acting turning a wrong answer into a right one; likewise.
        gains: Accuracy of acting on the share of :data:`RATES` where the signal is largest, minus that of
            acting on as many at random, with an interval over the questions.
    """

    signal: str
    n: int
    wrong: Estimate | None
    helps: Estimate | None
    gains: tuple[PairedDifference, ...]


@dataclass(frozen=True, slots=True)
class DecisionFigures:
    """What acting changes, and who knows when.

    Attributes:
        decision: In words.
        without: Condition without acting.
        with_: Condition after acting.
        n: Questions that were judged under both.
        gain: Score after always acting minus that of never acting.
        mended: Share of questions that acting turns from wrong to right.
        spoiled: The reverse.
        signals: Those that the answers without acting have.
    """

    decision: str
    without: str
    with_: str
    n: int
    gain: PairedDifference
    mended: Proportion
    spoiled: Proportion
    signals: tuple[SignalFigures, ...]


@dataclass(frozen=True, slots=True)
class SePerFigures:
    """ΔSePer of what was retrieved.

    Attributes:
        n: Questions that were measured.
        before: Mean belief in the gold answers without context.
        after: With it.
        delta: Mean difference.
        benefit: Correlation with what retrieving changed in correctness.
    """

    n: int
    before: float
    after: float
    delta: PairedDifference
    benefit: Estimate


@dataclass(frozen=True, slots=True)
class CompressionFigures:
    """What compressing left.

    Attributes:
        n: Questions whose passages were compressed.
        before: Tokens of the passages, a question.
        after: Tokens of what was left.
        saved: Share of all tokens that was saved.
    """

    n: int
    before: float
    after: float
    saved: float


@dataclass(frozen=True, slots=True)
class TraceFigures:
    """All figures of one trace.

    Attributes:
        name: Of the trace.
        reader: Whose answers they are.
        judge: By which rule they are right.
        n: Questions.
        failed: Questions of which a condition is missing because a service failed.
        conditions: In the order of first appearance.
        decisions: Those with both sides recorded and judged.
        seper: ΔSePer, if it was measured.
        compression: What compressing left, if it was done.
        dense: AUROC of the DENSE score for the answer from passages being wrong, if it was measured.
    """

    name: str
    reader: str
    judge: str
    n: int
    failed: int
    conditions: tuple[ConditionFigures, ...]
    decisions: tuple[DecisionFigures, ...]
    seper: SePerFigures | None
    compression: CompressionFigures | None
    dense: Estimate | None


@dataclass(frozen=True, slots=True)
class _Slim:
    """The numbers of an answer; texts and traces are let go of."""

    correct: float | None
    signals: dict[str, float]
    costs: tuple[float, float, float]
    seconds: float | None


def trace_figures(name: str, rows: Iterable[TraceRow], *, reader: str, judge: str) -> TraceFigures:
    """Compute every figure; the numbers of :data:`HELD` questions are held, of more a random part.

    What stands by condition is of all questions, all else of those that are held; ``n`` says of how many.

    Raises:
        InputError: If there are no rows.
    """
    slim: list[tuple[dict[str, _Slim], dict[str, float]]] = []
    sums: dict[str, _Sums] = {}
    rng, n, failed = random.Random(0), 0, 0
    for row in rows:
        failed += bool(row.error)
        passes = {one.condition: _slimmed(one) for one in row.passes}
        for condition, one in passes.items():
            sums.setdefault(condition, _Sums()).add(one)
        n += 1
        if len(slim) < HELD:
            slim.append((passes, dict(row.measures)))
        elif (place := rng.randrange(n)) < HELD:
            slim[place] = (passes, dict(row.measures))
    if not slim:
        raise InputError(f"the trace {name} holds no rows", hint="record some questions first")
    return TraceFigures(
        name=name,
        reader=reader,
        judge=judge,
        n=n,
        failed=failed,
        conditions=tuple(_condition(condition, found) for condition, found in sums.items()),
        decisions=tuple(
            found for decision in DECISIONS if (found := _decision(*decision, [one for one, _ in slim]))
        ),
        seper=_seper(slim),
        compression=_compression([measures for _, measures in slim]),
        dense=_dense(slim),
    )


def _slimmed(one: Pass) -> _Slim:
    costs = (float(one.calls), float(one.prompt_tokens), float(one.completion_tokens))
    return _Slim(one.correct, dict(one.signals), costs, one.seconds)


class _Sums:
    """What is added up of one condition's answers."""

    def __init__(self) -> None:
        self.n = self.judged = self.right = self.timed = 0
        self.score = self.seconds = 0.0
        self.costs = np.zeros(3)

    def add(self, one: _Slim) -> None:
        self.n += 1
        self.costs += one.costs
        if one.correct is not None:
            self.judged, self.score = self.judged + 1, self.score + one.correct
            self.right += one.correct > 0.5
        if one.seconds is not None:
            self.timed, self.seconds = self.timed + 1, self.seconds + one.seconds


def _condition(condition: str, found: _Sums) -> ConditionFigures:
    calls, read, written = (found.costs / found.n).tolist()
    return ConditionFigures(
        condition=condition,
        n=found.n,
        right=wilson_interval(found.right, found.judged) if found.judged else None,
        score=found.score / found.judged if found.judged else None,
        calls=calls,
        prompt_tokens=read,
        completion_tokens=written,
        seconds=found.seconds / found.n if found.timed == found.n else None,
    )


def _decision(
    decision: str, without: str, with_: str, rows: Sequence[dict[str, _Slim]]
) -> DecisionFigures | None:
    pairs = [
        (row[without], row[with_].correct)
        for row in rows
        if without in row and with_ in row and None not in (row[without].correct, row[with_].correct)
    ]
    if len(pairs) < 2:
        return None
    before = np.array([first.correct for first, _ in pairs], dtype=np.float64)
    after = np.array([second for _, second in pairs], dtype=np.float64)
    names = dict.fromkeys(name for first, _ in pairs for name in first.signals)
    return DecisionFigures(
        decision=decision,
        without=without,
        with_=with_,
        n=len(pairs),
        gain=paired_difference(after, before, resamples=_RESAMPLES),
        mended=share((after > 0.5) & (before <= 0.5)),
        spoiled=share((after <= 0.5) & (before > 0.5)),
        signals=tuple(
            _signal(name, [first.signals.get(name) for first, _ in pairs], before, after) for name in names
        ),
    )


def _signal(
    name: str, values: Sequence[float | None], before: NDArray[np.float64], after: NDArray[np.float64]
) -> SignalFigures:
    known = np.array([value is not None for value in values])
    found = np.array([value for value in values if value is not None], dtype=np.float64)
    before, after = before[known], after[known]
    gains = []
    for rate in RATES:
        acts = acting_share(found, rate)
        gains.append(
            paired_difference(
                before + acts * (after - before), before + rate * (after - before), resamples=_RESAMPLES
            )
        )
    wrong = before <= 0.5
    return SignalFigures(
        signal=name,
        n=len(found),
        wrong=_area(found, wrong),
        helps=_area(found, wrong & (after > 0.5)),
        gains=tuple(gains),
    )


def acting_share(signal: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """Return how far each question acts where a share of all does: those with the largest signals.

    Questions that are equal share what is left between them, so that the order of rows decides nothing.

    Example:
        >>> acting_share(np.array([0.1, 0.9, 0.5, 0.5]), 0.5).tolist()
        [0.0, 1.0, 0.5, 0.5]
    """
    room = rate * len(signal)
    acts = np.zeros(len(signal))
    for value in np.unique(signal)[::-1]:
        equal = signal == value
        acts[equal] = min(1.0, max(0.0, room / equal.sum()))
        room -= equal.sum()
        if room <= 0:
            break
    return acts


def _area(signal: NDArray[np.float64], positive: NDArray[np.bool_]) -> Estimate | None:
    high, low = signal[positive], signal[~positive]
    return auroc(high, low) if min(len(high), len(low)) > 1 else None


def _seper(rows: Sequence[tuple[dict[str, _Slim], dict[str, float]]]) -> SePerFigures | None:
    told = [(passes, measures) for passes, measures in rows if "delta_seper" in measures]
    if len(told) < 2:
        return None
    before, after = (np.array([one[name] for _, one in told]) for name in ("seper_before", "seper_after"))
    judged = [
        (measures["delta_seper"], passes[RETRIEVAL].correct - passes[NONE].correct)  # type: ignore[operator]  # asked for
        for passes, measures in told
        if all(name in passes and passes[name].correct is not None for name in (NONE, RETRIEVAL))
    ]
    nothing = Estimate(float("nan"), float("nan"), float("nan"))
    return SePerFigures(
        n=len(told),
        before=float(before.mean()),
        after=float(after.mean()),
        delta=paired_difference(after, before, resamples=_RESAMPLES),
        benefit=correlation(*zip(*judged, strict=True)) if len(judged) > 1 else nothing,
    )


def _dense(rows: Sequence[tuple[dict[str, _Slim], dict[str, float]]]) -> Estimate | None:
    told = [
        (measures["dense_score"], passes[RETRIEVAL].correct)
        for passes, measures in rows
        if "dense_score" in measures and RETRIEVAL in passes and passes[RETRIEVAL].correct is not None
    ]
    scores = np.array([score for score, _ in told], dtype=np.float64)
    return _area(scores, np.array([(correct or 0.0) <= 0.5 for _, correct in told], dtype=bool))


def _compression(measures: Sequence[dict[str, float]]) -> CompressionFigures | None:
    told = [one for one in measures if "compression_before" in one]
    if not told:
        return None
    before, after = (
        float(np.mean([one[f"compression_{name}"] for one in told])) for name in ("before", "after")
    )
    return CompressionFigures(len(told), before, after, 1 - after / before if before else 0.0)
