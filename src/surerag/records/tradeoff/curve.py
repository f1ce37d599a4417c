"""Thresholds on the questions of a trace: what each gives, what it costs, and when it begins to pay."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.decisions.calibrating import OnInfeasible, policy_of
from surerag.decisions.policy import Identity, Policy, Scored, Target
from surerag.decisions.rows import Sample
from surerag.errors import InputError
from surerag.evaluation.differences import PairedDifference, mean_difference
from surerag.measures import break_even_latency
from surerag.prices import Costs, Price
from surerag.records.tradeoff.choices import Case, Choice
from surerag.records.tradeoff.columns import Columns, Times

LATENCIES = (50.0, 200.0, 500.0, 1000.0)
"""Milliseconds of a retrieval that are looked at, beside the measured one."""

_STEPS = 10
_RESAMPLES = 2_000

Floats = NDArray[np.float64]


class Bound(NamedTuple):
    """What a policy is asked to promise."""

    target: Target = "loss"
    max_loss: float = 0.02
    budget: float | None = None
    confidence: float = 0.95
    on_infeasible: OnInfeasible = "always"


@dataclass(frozen=True, slots=True)
class Point:
    """One way of deciding, on the questions of the trace.

    Attributes:
        label: How it is called.
        threshold: Acts above it; None for the plain pipeline.
        rate: Share of questions that act.
        score: Mean score; by agreement, the share of answers that say what the answer after acting says.
        against_always: Score less that of always acting, on the same questions.
        retrievals: A question.
        prompt_tokens: Read, a question.
        cached_tokens: Of these, the ones that a server had in its cache.
        completion_tokens: Generated, a question.
        calls: A question.
        milliseconds: Of the model, a question; None where it is not known.
        latency: Milliseconds a question with the measured retrieval; None likewise.
        latencies: With each of the given ones.
        money: For a thousand questions, in the price's currency; None without a price. Of a machine paid by
            the hour, the seconds are those of the recording's batches.
    """

    label: str
    threshold: float | None
    rate: float
    score: float
    against_always: PairedDifference
    retrievals: float
    prompt_tokens: float
    cached_tokens: float
    completion_tokens: float
    calls: float
    milliseconds: float | None
    latency: float | None
    latencies: tuple[float, ...]
    money: float | None


@dataclass(frozen=True, slots=True)
class TradeOff:
    """A decision of a model's pipeline, at every threshold.

    Attributes:
        model: Who answered.
        method: Whose decision it is.
        verb: What acting is.
        scored: What scores were made by.
        n: Questions with both answers.
        left_out: Questions without gold answers, where others had some; and those with a missing answer.
        policy: The certified threshold, and its promise.
        points: The plain pipeline, thresholds from acting always to never, and the certified one.
        curve: Rate and score at a fine row of thresholds, for a picture.
        latencies: The given ones, in milliseconds.
        times: What they were counted with; None where no times are known.
        break_even: Milliseconds of a retrieval above which the policy saves time; 0 where it always does,
            infinite where it never does; None where no times are known, or no retrieval is saved.
        words: The same in words, and what is spent instead.
        currency: Of the money; empty without a price.
    """

    model: str
    method: str
    verb: str
    scored: Scored
    n: int
    left_out: int
    policy: Policy
    points: tuple[Point, ...]
    curve: tuple[tuple[float, float], ...]
    latencies: tuple[float, ...]
    times: Times | None
    break_even: float | None
    words: str
    currency: str = ""

    @property
    def chosen(self) -> Point:
        """The policy's point."""
        return self.points[-1]


def trade_off(
    found: Iterable[Case],
    choice: Choice,
    identity: Identity,
    bound: Bound,
    *,
    model: str = "",
    asked: int | None = None,
    times: Times | None = None,
    latencies: Sequence[float] = LATENCIES,
    price: Price | None = None,
) -> TradeOff:
    """Calibrate a decision, and count what each threshold gives and costs.

    Where the answers of no question were judged, they are scored by agreement with the answer after acting.

    Args:
        found: Questions with both answers.
        choice: The decision.
        identity: What the policy belongs to.
        bound: What it is to promise.
        model: Shown.
        asked: Questions of the trace, if some are not among ``found``.
        times: Of single questions; those of the recording if left out.
        latencies: Milliseconds of a retrieval to look at.
        price: Of the model, if it is known.

    Raises:
        InputError: If there are no questions, or nothing can be certified and ``on_infeasible`` is
            ``"raise"``.
    """
    cases = Columns(found)
    if not len(cases):
        raise InputError(
            f"no question was answered both without and after acting ({choice.without}, {choice.with_})",
            hint="see the trace's errors: surerag.records.Trace(folder)",
        )
    used = cases.judged()
    scored: Scored = "agreement" if used is None else "gold answers"
    used = cases if used is None else used
    sample = Sample(used.signal, used.outcomes(scored), used.tokens("opened"))
    policy = policy_of(identity, sample, scored=scored, **bound._asdict())
    del sample
    table = _Table(used, choice, scored, times or used.times(), tuple(latencies), price)
    signals = table.signals
    points = [table.plain()]
    points += [table.at(threshold, label) for label, threshold in _thresholds(signals)]
    points.append(table.at(policy.threshold, "certified" if policy.verdict != "infeasible" else "infeasible"))
    words, even = _break_even(table, points[-1])
    return TradeOff(
        model=model,
        method=choice.method,
        verb=choice.verb,
        scored=scored,
        n=len(used),
        left_out=(len(cases) if asked is None else asked) - len(used),
        policy=policy,
        points=tuple(points),
        curve=table.curve(),
        latencies=tuple(latencies),
        times=table.times,
        break_even=even,
        words=words,
        currency="" if price is None else price.currency,
    )


class _Table:
    """The questions as columns, from which any threshold's point follows."""

    def __init__(
        self,
        found: Columns,
        choice: Choice,
        scored: Scored,
        times: Times | None,
        latencies: tuple[float, ...],
        price: Price | None,
    ) -> None:
        self.choice, self.times, self._latencies, self._price = choice, times, latencies, price
        self.signals, self._found, self._scored = found.signal, found, scored
        self._outcomes = found.outcomes(scored)

    def at(self, threshold: float, label: str) -> Point:
        """Return what deciding at a threshold gives."""
        acts = self.signals > threshold
        against = np.subtract(*self._outcomes, dtype=np.float64)
        against[acts] = 0.0
        spent = self._found.mean(acts)
        rate = float(acts.mean())
        shut, opened, _ = self.choice.retrievals
        milliseconds = None
        if self.times is not None:
            milliseconds = (1 - rate) * self.times.shut + rate * self.times.opened
        retrievals = (1 - rate) * shut + rate * opened
        return self._point(label, threshold, rate, against, spent, milliseconds, retrievals)

    def plain(self) -> Point:
        """Return the pipeline without the method."""
        milliseconds = None if self.times is None else self.times.plain
        against = np.subtract(self._found.plain(self._scored), self._outcomes.with_, dtype=np.float64)
        spent = self._found.mean("usual")
        retrievals = self.choice.retrievals[2]
        return self._point("plain pipeline", None, 0.0, against, spent, milliseconds, retrievals)

    def curve(self) -> tuple[tuple[float, float], ...]:
        """Return rate and score from never acting to always."""
        order = np.argsort(-self.signals, kind="stable")
        n = len(order)
        ranks = np.unique(np.linspace(0, n, 61).round().astype(int)).tolist()
        gains = [float(self._outcomes.part(order[a:b]).benefit.sum()) for a, b in pairwise(ranks)]
        never = float(self._outcomes.without.mean(dtype=np.float64))
        return tuple(
            (rank / n, never + gained / n)
            for rank, gained in zip(ranks, accumulate(gains, initial=0.0), strict=True)
        )

    def _point(
        self,
        label: str,
        threshold: float | None,
        rate: float,
        against: Floats,
        spent: Floats,
        milliseconds: float | None,
        retrievals: float,
    ) -> Point:
        read, written, calls, seconds, cached = map(float, spent)
        measured = None if self.times is None else self.times.retrieval
        given = () if milliseconds is None else self._latencies
        return Point(
            label=label,
            threshold=threshold,
            rate=rate,
            score=(float(self._outcomes.with_.sum(dtype=np.float64)) + float(against.sum())) / len(against),
            against_always=mean_difference(against, resamples=_RESAMPLES),
            retrievals=retrievals,
            prompt_tokens=read,
            cached_tokens=cached,
            completion_tokens=written,
            calls=calls,
            milliseconds=milliseconds,
            latency=None
            if milliseconds is None or measured is None
            else milliseconds + retrievals * measured,
            latencies=tuple((milliseconds or 0.0) + retrievals * each for each in given),
            money=self._money(read, written, cached, seconds),
        )

    def _money(self, read: float, written: float, cached: float, seconds: float) -> float | None:
        if self._price is None or (self._price.gpu_hour is not None and math.isnan(seconds)):
            return None
        many = 1000
        return self._price.money(
            Costs(
                round(many * read),
                round(many * written),
                round(many * cached),
                seconds=0.0 if math.isnan(seconds) else many * seconds,
            )
        )


def _thresholds(signals: Floats) -> list[tuple[str, float]]:
    """Return thresholds from acting always to never, by the share that acts."""
    # Of the finite signals: an empty answer acts at any threshold.
    finite = signals[np.isfinite(signals)]
    shares = [1 - tenth / _STEPS for tenth in range(_STEPS - 1, 0, -1)]
    cuts = np.quantile(finite, shares, method="inverted_cdf", overwrite_input=True) if len(finite) else finite
    steps = [("always", -math.inf)]
    seen = {1.0}
    for at in cuts.tolist():
        rate = float((signals > at).mean())
        if rate not in seen:
            seen.add(rate)
            steps.append((f"> {at:.4g}", at))
    return [*steps, ("never", math.inf)]


def _break_even(table: _Table, chosen: Point) -> tuple[str, float | None]:
    """Say when the policy saves time against the plain pipeline (L-RAG, Eqs. 8 and 9), and what it spends."""
    plain = table.plain()
    saved = plain.retrievals - chosen.retrievals
    tokens = chosen.prompt_tokens + chosen.completion_tokens - plain.prompt_tokens - plain.completion_tokens
    spends = f"It reads and writes {abs(tokens):,.0f} tokens {'more' if tokens > 0 else 'less'} a question."
    if not plain.calls:
        spends = "Nor is it known what they cost."
    if chosen.milliseconds is None or plain.milliseconds is None:
        return f"No times are known of these questions. {spends}", None
    slower = chosen.milliseconds - plain.milliseconds
    if saved <= 1e-9:
        told = f"It saves no retrieval against the plain pipeline, and takes the model {abs(slower):,.0f} ms "
        return f"{told}{'more' if slower > 0 else 'less'} a question. {spends}", None
    if slower <= 0:
        even = 0.0
        told = f"It saves time however fast a retrieval is: the model itself takes {-slower:,.0f} ms less."
    else:
        even = break_even_latency(1 - min(saved, 1.0), slower)
        told = f"Below {even:,.0f} ms a retrieval this costs you time, above it saves time."
        measured = None if table.times is None else table.times.retrieval
        if measured is not None:
            told += f" Here a retrieval took {measured:,.0f} ms."
    return f"{told} {spends}", even
