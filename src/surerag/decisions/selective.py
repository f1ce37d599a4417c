"""An answer or none: calibrated probabilities, a bounded risk among what is answered, and what that costs.

Geifman & El-Yaniv, "Selective classification for deep neural networks" (NeurIPS 2017): the largest
coverage whose risk is bounded with confidence. Candidates are the signals at ten fixed ranks of the
sample; below each, the wrong answers are binomial, and each is tested at a tenth of the level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from surerag.decisions.policy import Identity
from surerag.decisions.rows import DecisionRow, signal_of
from surerag.decisions.saved import Saved
from surerag.errors import ConfigurationError, InputError
from surerag.extras import extra
from surerag.refusal import REFUSAL, check_refusal, refuses

Floats = NDArray[np.float64]
Which = Literal["without", "with"]

NODES = 10
"""Coverages that are tested: a tenth of the sample, two tenths, …, all of it."""


@dataclass(frozen=True, slots=True)
class SelectedAnswer:
    """An answer, or that there is none.

    Attributes:
        text: What to show: the answer, or the refusal.
        answer: What the reader said.
        abstained: Whether it is not shown.
        probability: Calibrated probability that the answer is right.
        signal: What that rests on.
    """

    text: str
    answer: str
    abstained: bool
    probability: float
    signal: float


@dataclass(frozen=True, slots=True)
class RiskPoint:
    """A point of a risk-coverage curve.

    Attributes:
        threshold: Questions with signals up to this are answered.
        coverage: Share of questions that are answered.
        risk: Share of wrong answers among them.
        over_refused: Share of all questions that were refused though the answer was right.
        unsupported: Share of all questions that were answered wrongly.
    """

    threshold: float
    coverage: float
    risk: float
    over_refused: float
    unsupported: float


@dataclass(frozen=True, slots=True)
class AnswerPolicy(Saved):
    """Answer iff the signal is at most a threshold, and what is promised of what is answered.

    The promise is of the share of wrong answers among questions that are answered, drawn like those of
    the sample; at confidence 1 - a share of at most ``1 - confidence`` of calibrations breaks it. Of single
    answers it says no more than their probability, which is an estimate.

    Attributes:
        threshold: Answer iff the signal is at most this; -inf never answers.
        max_risk: Allowed share of wrong answers among those given.
        confidence: Of the promise.
        n: Questions in the sample.
        coverage: Share of the sample that is answered.
        risk: Share of wrong answers among them; None where none is answered.
        feasible: Whether a threshold could be certified.
        needed: About how many of the most certain questions would have to be right in a row to certify
            the smallest coverage; None where it is certified.
        knots: Signals at which the probability of a right answer is known, ascending.
        probabilities: At the knots; in between it is interpolated.
        identity: What this belongs to.
    """

    _called: ClassVar[str] = "an answer policy"

    threshold: float
    max_risk: float
    confidence: float
    n: int
    coverage: float
    risk: float | None
    feasible: bool
    needed: int | None
    knots: tuple[float, ...]
    probabilities: tuple[float, ...]
    identity: Identity = field(default_factory=Identity)

    def probability(self, signal: float) -> float:
        """Return the calibrated probability that an answer with this signal is right."""
        if math.isinf(signal):
            signal = self.knots[-1 if signal > 0 else 0]
        return float(np.interp(signal, self.knots, self.probabilities))

    def answers(self, signal: float) -> bool:
        """Whether to answer."""
        return signal <= self.threshold

    @property
    def promise(self) -> str:
        """What is promised, in words, for people."""
        if not self.feasible:
            return (
                f"infeasible at n = {self.n:,}: no share of questions can be answered with a risk of at most "
                f"{100 * self.max_risk:g} % at confidence {self.confidence:g}. This policy answers none."
            )
        return (
            f"at most {100 * self.max_risk:g} % of the answers given are wrong, at confidence "
            f"{self.confidence:g}, from {self.n:,} questions, of which {100 * self.coverage:.0f} % are "
            "answered."
        )


@dataclass(frozen=True, slots=True)
class SelectiveAnswer:
    """Shows an answer only where its risk was certified, and says otherwise that it does not know.

    Attributes:
        policy: From :func:`calibrate_answers`.
        refusal: Shown in place of an answer.

    Example:
        >>> policy = AnswerPolicy(0.5, 0.1, 0.95, 100, 0.6, 0.05, True, None, (0.0, 1.0), (0.9, 0.1))
        >>> SelectiveAnswer(policy).select("Velm", 0.25)
        SelectedAnswer(text='Velm', answer='Velm', abstained=False, probability=0.7, signal=0.25)
        >>> SelectiveAnswer(policy).select("Orun", 0.75).text
        'I do not know.'
    """

    policy: AnswerPolicy
    refusal: str = REFUSAL

    def __post_init__(self) -> None:
        """Check the refusal."""
        check_refusal(self.refusal)

    def select(self, answer: str, signal: float | None) -> SelectedAnswer:
        """Return an answer, or that there is none.

        Args:
            answer: What the reader said.
            signal: Its uncertainty; None where it said nothing, which is never shown. An answer that is the
                refusal counts as none, however sure the reader was of it.
        """
        value = math.inf if signal is None else signal
        shown = self.policy.answers(value) and bool(answer.strip()) and not refuses(answer, self.refusal)
        probability = self.policy.probability(value)
        return SelectedAnswer(answer if shown else self.refusal, answer, not shown, probability, value)


def calibrate_answers(
    signal: str,
    rows: Sequence[DecisionRow],
    *,
    max_risk: float,
    confidence: float = 0.95,
    answer: Which = "with",
    identity: Identity | None = None,
) -> AnswerPolicy:
    """Return a policy that answers as many questions as can be answered with a bounded risk.

    Args:
        signal: Name of the uncertainty of the answer; larger is less certain.
        rows: Judged questions; a score of at least one half is a right answer.
        max_risk: Allowed share of wrong answers among those given, in (0, 1).
        confidence: In (0, 1).
        answer: Whose score counts: that of the answer ``"with"`` or ``"without"`` acting.
        identity: What the policy belongs to.

    Raises:
        ConfigurationError: If a bound is out of range.
        InputError: If there are no rows, or one lacks the signal or a judgement.
        MissingExtraError: If scipy or scikit-learn is not installed.
    """
    with extra("decisions"):
        from scipy.stats import binom
        from sklearn.isotonic import IsotonicRegression

    for name, value in (("max_risk", max_risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ConfigurationError(f"{name} must be in (0, 1), got {value!r}")
    signals, right = signal_of(rows, signal), _right(rows, answer)
    ordered, n = np.sort(signals), len(rows)
    level, threshold = (1 - confidence) / NODES, -math.inf
    for node in range(NODES, 0, -1):
        rank = math.ceil(n * node / NODES)
        # Given the signal at a rank, those below it are a sample of all questions below that signal.
        limit = math.inf if node == NODES else float(ordered[rank - 1])
        given = signals < limit
        if given.any() and binom.cdf(int((~right[given]).sum()), int(given.sum()), max_risk) <= level:
            threshold = math.nextafter(limit, -math.inf)
            break
    answered = signals <= threshold
    finite = np.isfinite(signals)
    fitted = IsotonicRegression(
        y_min=1 / (n + 2), y_max=(n + 1) / (n + 2), increasing=False, out_of_bounds="clip"
    ).fit(signals[finite] if finite.any() else np.zeros(n), right[finite] if finite.any() else right)
    feasible = threshold > -math.inf
    return AnswerPolicy(
        threshold=threshold,
        max_risk=max_risk,
        confidence=confidence,
        n=n,
        coverage=float(answered.mean()),
        risk=float((~right[answered]).mean()) if answered.any() else None,
        feasible=feasible,
        needed=None if feasible else math.ceil(math.log(level) / math.log1p(-max_risk)),
        knots=tuple(map(float, fitted.X_thresholds_)),
        probabilities=tuple(map(float, fitted.y_thresholds_)),
        identity=Identity(signal=signal) if identity is None else identity,
    )


def risk_coverage(
    signal: str, rows: Sequence[DecisionRow], *, answer: Which = "with"
) -> tuple[RiskPoint, ...]:
    """Return the risk-coverage curve of a sample: a point for each distinct finite signal, ascending.

    Example:
        >>> rows = [DecisionRow({"p": 1.0}, None, True), DecisionRow({"p": 2.0}, None, False)]
        >>> [(point.coverage, point.risk, point.over_refused) for point in risk_coverage("p", rows)]
        [(0.5, 0.0, 0.0), (1.0, 0.5, 0.0)]
    """
    signals, right = signal_of(rows, signal), _right(rows, answer)
    points = []
    for threshold in np.unique(signals[np.isfinite(signals)]):
        given = signals <= threshold
        wrong = float((given & ~right).mean())
        points.append(
            RiskPoint(
                float(threshold),
                float(given.mean()),
                wrong / float(given.mean()),
                float((~given & right).mean()),
                wrong,
            )
        )
    return tuple(points)


def _right(rows: Sequence[DecisionRow], answer: Which) -> NDArray[np.bool_]:
    found = [row.correct_with if answer == "with" else row.correct_without for row in rows]
    unjudged = sum(score is None for score in found)
    if unjudged:
        raise InputError(
            f"{unjudged} of {len(rows)} answers {answer} acting were not judged", hint="give gold answers"
        )
    return np.array([float(score or 0.0) >= 0.5 for score in found])
