"""What the study of decisions found."""

from __future__ import annotations

from dataclasses import dataclass

from surerag_studies.decisions.power import SizeRow


@dataclass(frozen=True, slots=True)
class PromiseRow:
    """A rule on a source at a confidence.

    Attributes:
        source: Name of the source.
        confidence: Of the promise.
        rule: Name of the rule.
        splits: Calibrations.
        broken: Share of them at whose threshold the loss over all questions of the source exceeds the bound;
            of a trace, 250 questions are drawn with replacement, so it is what they are drawn from.
        broken_on_rest: Share of random halves of a trace where the loss on the other half exceeds the bound,
            which has noise of its own; None for simulated questions.
        rate: Mean rate of acting.
        best_rate: Rate of the best threshold that a rule of the kind could choose, knowing the source.
        error: Two standard errors of ``broken``, were it as large as allowed.
        gains_shown: Share of calibrations that show a gain over acting at random; of the certified rule.
    """

    source: str
    confidence: float
    rule: str
    splits: int
    broken: float
    broken_on_rest: float | None
    rate: float
    best_rate: float
    error: float
    gains_shown: float | None


@dataclass(frozen=True, slots=True)
class GateRow:
    """A signal on a trace: what it tells, and what acting on it gains over acting at random.

    Attributes:
        source: Name of the source.
        signal: Name of the signal, or ``"benefit, cross-fitted"``.
        n: Questions.
        auroc_wrong: Of wrong first answers.
        auroc_helps: Of questions that acting mends.
        gains: Points, at 25, 50 and 75 % of the questions, with 95 % intervals.
        shown: Whether any gain's interval lies above zero, at three looks.
    """

    source: str
    signal: str
    n: int
    auroc_wrong: float
    auroc_helps: float
    gains: tuple[tuple[float, float, float], ...]
    shown: bool


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """Selective answering at a bound on the risk, over random halves.

    Attributes:
        source: Name of the source.
        max_risk: Bound on the share of wrong answers among those given.
        confidence: Of the promise.
        splits: Halves.
        broken: Share where the risk over the whole source exceeds the bound.
        broken_on_rest: Share where that on the other half does.
        coverage: Mean share of the other half that is answered.
        risk: Share of wrong answers among those given there, over all splits.
        over_refused: Mean share that is refused though right.
        unsupported: Mean share that is answered wrongly.
    """

    source: str
    max_risk: float
    confidence: float
    splits: int
    broken: float
    broken_on_rest: float
    coverage: float
    risk: float
    over_refused: float
    unsupported: float


@dataclass(frozen=True, slots=True)
class MonitorRow:
    """Streams with a shift of the signal after some questions.

    Attributes:
        shift: In standard deviations; 0 for streams without one.
        streams: How many.
        alarms: Share with an alarm (before the shift, too).
        early: Share with an alarm before it.
        delay: Median number of questions from shift to alarm; None where none was raised.
        late: 90 % quantile of these.
    """

    shift: float
    streams: int
    alarms: float
    early: float
    delay: float | None
    late: float | None


@dataclass(frozen=True, slots=True)
class DecisionStudy:
    """Everything that was found.

    Attributes:
        seed: Of splits, simulated questions and streams.
        splits: Calibrations of a cell.
        promises: Rules on sources.
        sizes: How much a valid test may pass.
        gates: Signals on traces.
        answers: Abstention on traces.
        monitors: Streams.
    """

    seed: int
    splits: int
    promises: tuple[PromiseRow, ...]
    sizes: tuple[SizeRow, ...]
    gates: tuple[GateRow, ...]
    answers: tuple[AnswerRow, ...]
    monitors: tuple[MonitorRow, ...]
