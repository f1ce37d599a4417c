"""The study: what is promised and how often it is broken, what gates gain, what an abstaining reader says."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from surerag.decisions.benefit import cross_fitted
from surerag.decisions.bootstrap import bootstrap_threshold
from surerag.decisions.gain import gain_at
from surerag.decisions.monitor import Monitor
from surerag.decisions.policy import Identity, Policy
from surerag.decisions.rows import DecisionRow, Outcomes
from surerag.decisions.search import bounded_loss
from surerag.decisions.selective import calibrate_answers
from surerag_studies.decisions.power import (
    betting,
    hoeffding_bentkus,
    normal,
    normal_without_two,
    sizes,
    two_starts,
)
from surerag_studies.decisions.results import AnswerRow, DecisionStudy, GateRow, MonitorRow, PromiseRow
from surerag_studies.decisions.sources import KINDS, LARGE, Source, one_wording, recorded, simulated

Floats = NDArray[np.float64]
Rule = Callable[[Floats, Outcomes, float], float]

N = 250
"""Questions of a calibration."""

MAX_LOSS = 0.02
CONFIDENCES = (0.9, 0.95)
GAINS = 200
"""Calibrations whose gain is looked at."""

RATES = (0.25, 0.5, 0.75)
RISKS = (0.3, 0.4, 0.5)
SHIFTS = (0.0, 0.25, 0.5, 1.0)
REFERENCE, STREAM, SHIFT_AT = 250, 2000, 500


def decision_study(
    trace: Path | None, *, seed: int, splits: int, streams: int, worlds: Sequence[Source] = ()
) -> DecisionStudy:
    """Make the study.

    Args:
        trace: A real reader's records; None for simulated questions alone.
        seed: Of everything random.
        splits: Calibrations of each cell.
        streams: Streams without a shift; a fifth as many with each.
        worlds: Rows of the world's regimes, beside the trace.
    """
    own = [] if trace is None else recorded(trace)
    traces = [*own, *worlds]
    gated = [*own, *([] if trace is None else one_wording(trace)), *worlds]
    promises: list[PromiseRow] = []
    for source in traces:
        promises += _promises(source, np.random.default_rng(seed), splits)
    for kind in KINDS:
        rng = np.random.default_rng(seed)
        truth = simulated(kind, LARGE, rng)
        promises += _promises(truth, rng, splits, lambda kind=kind, rng=rng: simulated(kind, N, rng))  # type: ignore[misc]  # bound now
    return DecisionStudy(
        seed,
        splits,
        tuple(promises),
        sizes(N, MAX_LOSS),
        tuple(row for source in gated for row in _gates(source, seed)),
        tuple(
            row for source in own or worlds for row in _answers(source, np.random.default_rng(seed), splits)
        ),
        tuple(_monitor(shift, streams if shift == 0 else max(1, streams // 5), seed) for shift in SHIFTS),
    )


def _bounded(rule: Callable[[Floats, Outcomes, float, float], float]) -> Rule:
    return lambda signals, outcomes, level: rule(signals, outcomes, level, MAX_LOSS)


def _certified(signals: Floats, outcomes: Outcomes, level: float) -> float:
    return bounded_loss(signals, outcomes, MAX_LOSS, level)


def _sample_best(signals: Floats, outcomes: Outcomes, level: float) -> float:
    return bootstrap_threshold(signals, *outcomes, MAX_LOSS, resamples=0).threshold


def _sample_lower(signals: Floats, outcomes: Outcomes, level: float) -> float:
    return bootstrap_threshold(signals, *outcomes, MAX_LOSS, resamples=100).lower


RULES: dict[str, Rule] = {
    "certified": _certified,
    "two starts": _bounded(two_starts),
    "betting": _bounded(betting),
    "Hoeffding-Bentkus": _bounded(hoeffding_bentkus),
    "normal approx.": _bounded(normal),
    "normal, no 2:0": _bounded(normal_without_two),
    "sample's largest": _sample_best,
    "its lower end": _sample_lower,
}
"""The certified rule, what else might be, what is not, and the rule before it."""

LEVEL_FREE = ("sample's largest", "its lower end")
"""Rules that know no confidence."""

SLOW = ("two starts", "betting", "Hoeffding-Bentkus")
"""Rules that are there to compare their power, on a tenth of the splits, at one confidence."""


def _promises(
    source: Source, rng: np.random.Generator, splits: int, draw: Callable[[], Source] | None = None
) -> list[PromiseRow]:
    """Calibrate many times, and look at the loss over all questions, and on those left over."""
    signals, outcomes = source.signals[:, 0], Outcomes(source.without, source.with_)
    samples = []
    for _ in range(splits):
        if draw is None:
            at = rng.integers(len(signals), size=N)
            samples.append((signals[at], Outcomes(source.without[at], source.with_[at])))
        else:
            drawn = draw()
            samples.append((drawn.signals[:, 0], Outcomes(drawn.without, drawn.with_)))
    halves = [rng.permutation(len(signals)) for _ in range(splits)] if draw is None else []
    best = bootstrap_threshold(signals, *outcomes, MAX_LOSS, resamples=0).threshold
    best_rate = float((signals > best).mean())
    rows = []
    for confidence in CONFIDENCES:
        level = round(1 - confidence, 6)
        for name, rule in RULES.items():
            if name in (*LEVEL_FREE, *SLOW) and confidence != CONFIDENCES[-1]:
                continue
            count = max(1, splits // 10) if name in SLOW else splits
            found = np.array([rule(one, right, level) for one, right in samples[:count]])
            broken = np.mean([_loss(signals, outcomes, at) > MAX_LOSS + 1e-12 for at in found])
            rest = []
            for order in halves[:count]:
                mine, other = order[:N], order[N:]
                tuned = rule(signals[mine], Outcomes(source.without[mine], source.with_[mine]), level)
                left = Outcomes(source.without[other], source.with_[other])
                rest.append(_loss(signals[other], left, tuned) > MAX_LOSS + 1e-12)
            rows.append(
                PromiseRow(
                    source.name,
                    confidence,
                    name,
                    count,
                    float(broken),
                    float(np.mean(rest)) if rest else None,
                    float(np.mean([(signals > at).mean() for at in found])),
                    best_rate,
                    2 * math.sqrt(level * confidence / count),
                    _gains_shown(samples, found, confidence) if name == "certified" else None,
                )
            )
    return rows


def _gains_shown(samples: Sequence[tuple[Floats, Outcomes]], found: Floats, confidence: float) -> float:
    pairs = list(zip(samples, found, strict=True))[:GAINS]
    return float(np.mean([gain_at(*sample, float(at), confidence).lower > 0 for sample, at in pairs]))


def _loss(signals: Floats, outcomes: Outcomes, threshold: float) -> float:
    return float(np.where(signals <= threshold, outcomes.benefit, 0.0).mean())


def _gates(source: Source, seed: int) -> list[GateRow]:
    rows = source.rows()
    scores = {name: source.signals[:, at] for at, name in enumerate(source.names)}
    scores["benefit, cross-fitted"] = cross_fitted(rows, seed=seed)
    benefit = source.with_ - source.without
    found = []
    for name, values in scores.items():
        gains = tuple(_gain(values, benefit, rate) for rate in RATES)
        found.append(
            GateRow(
                source.name,
                name,
                len(rows),
                _auroc(values, source.without == 0),
                _auroc(values, benefit > 0),
                gains,
                any(low > 0 for _, low, _ in gains),
            )
        )
    return found


def _gain(values: Floats, benefit: Floats, rate: float) -> tuple[float, float, float]:
    """Return the gain over random at a rate in points, with the interval of three looks (Bonferroni).

    Of questions with equal signals at the edge, each acts with the same probability.
    """
    edge = np.quantile(values, 1 - rate, method="inverted_cdf")
    above, equal = values > edge, values == edge
    acts = above + equal * (rate - above.mean()) / equal.mean()
    terms = (benefit - benefit.mean()) * (acts - rate)
    half = stats.norm.ppf(1 - 0.025 / len(RATES)) * terms.std() / math.sqrt(len(terms))
    return 100 * float(terms.mean()), 100 * float(terms.mean() - half), 100 * float(terms.mean() + half)


def _auroc(values: Floats, positive: NDArray[np.bool_]) -> float:
    ranks = stats.rankdata(values)
    n, m = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m))


def _answers(source: Source, rng: np.random.Generator, splits: int) -> list[AnswerRow]:
    signals, right = source.signals[:, 0], source.without >= 0.5
    orders = [rng.permutation(len(signals)) for _ in range(splits)]
    rows = [DecisionRow({"s": float(s)}, bool(one)) for s, one in zip(signals, right, strict=True)]
    return [_answer_row(source, signals, right, risk, orders, rows) for risk in RISKS]


def _answer_row(
    source: Source,
    signals: Floats,
    right: NDArray[np.bool_],
    max_risk: float,
    orders: Sequence[NDArray[np.int_]],
    rows: Sequence[DecisionRow],
) -> AnswerRow:
    broken, broken_rest, given_share, wrong_share, over = [], [], [], [], []
    for order in orders:
        mine, other = order[:N], order[N:]
        policy = calibrate_answers("s", [rows[at] for at in mine], max_risk=max_risk, answer="without")
        everywhere, given = signals <= policy.threshold, signals[other] <= policy.threshold
        wrong = given & ~right[other]
        broken.append(bool(everywhere.any()) and (~right[everywhere]).mean() > max_risk)
        broken_rest.append(bool(given.any()) and wrong.sum() / given.sum() > max_risk)
        given_share.append(given.mean())
        wrong_share.append(wrong.mean())
        over.append((~given & right[other]).mean())
    coverage, unsupported = float(np.mean(given_share)), float(np.mean(wrong_share))
    return AnswerRow(
        source.name,
        max_risk,
        0.95,
        len(orders),
        float(np.mean(broken)),
        float(np.mean(broken_rest)),
        coverage,
        unsupported / coverage if coverage else math.nan,
        float(np.mean(over)),
        unsupported,
    )


def _monitor(shift: float, streams: int, seed: int) -> MonitorRow:
    """Watch streams whose signal shifts; the policy acts on the upper third."""
    logger = logging.getLogger("surerag")
    quiet, logger.disabled = logger.disabled, True
    try:
        first = [
            _first_alarm(shift, np.random.default_rng((seed, at, int(100 * shift)))) for at in range(streams)
        ]
    finally:
        logger.disabled = quiet
    raised = [at for at in first if at is not None]
    delays = [at - SHIFT_AT for at in raised if at > SHIFT_AT] if shift else list(raised)
    return MonitorRow(
        shift,
        streams,
        len(raised) / streams,
        sum(at <= SHIFT_AT for at in raised) / streams,
        float(np.median(delays)) if delays else None,
        float(np.quantile(delays, 0.9)) if delays else None,
    )


def _first_alarm(shift: float, rng: np.random.Generator) -> int | None:
    policy = Policy(0.43, "loss", MAX_LOSS, None, 0.95, REFERENCE, 1 / 3, identity=Identity(signal="doubt"))
    reference = rng.standard_normal(REFERENCE).tolist()
    monitor = Monitor(policy, reference, audit_share=0.0, seed=int(rng.integers(2**31)))
    for at in range(STREAM):
        monitor.decide(float(rng.standard_normal() + (shift if at >= SHIFT_AT else 0.0)))
        if monitor.alarms:
            return at + 1
    return None
