"""Thresholds with a guarantee, from questions whose answers with and without acting were scored.

Learn then Test (Angelopoulos et al., arXiv 2110.01052) by fixed-sequence testing: thresholds are tested in
ascending order, each at the full level, up to the first that is not certified. Every number is a threshold
to test; between two uncertainties of the sample the p-value is constant, so the sample's own values suffice.
Answers that are right or wrong are tested exactly (:func:`paired_p_value`), graded scores by betting
(:func:`betting_p_value`).
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter

from surerag.errors import ConfigurationError, InputError, extra
from surerag.text import ABSTENTION, check_abstention, is_abstention

Floats = NDArray[np.float64]
Target = Literal["loss", "rate", "best"]
Verdict = Literal["holds", "no gain shown", "infeasible", "no guarantee"]
OnInfeasible = Literal["always", "never", "raise"]

TEST_EACH = 4000
"""Up to so many distinct uncertainties each is tested; of more, a grid that 1,000 set-aside rows define."""
_SET_ASIDE = 1000
_NUISANCE_LEVEL = 0.01
"""Share of the level that the exact test spends on its nuisance parameter."""
_NUISANCE_POINTS = 32
_PRIOR_DISCORDANT = 0.5
"""Added to the number of discordant questions, in units of the losses that the bound allows, where outcomes
are ordered. It keeps the variance of small samples from looking small; it changes power, not level."""
_FEWEST_RIGHT = 0.05
_LEVEL_OF_ALL = 0.1
"""Share of the level that abstention spends on answering everything; the sequence has the rest."""
_ERRORS_AT_FIRST = 1
"""Wrong answers that the first test of abstention's sequence may see and still certify."""


class CalibrationWarning(UserWarning):
    """A calibration sample or policy does not support the way it is used."""


# Samples, policies, and what a policy belongs to


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """One question, answered with and without acting (retrieving, rewriting, compressing).

    Attributes:
        uncertainty: Known before acting; larger is less certain; ``math.inf`` for an empty first answer.
        score_without: Score in [0, 1] of the answer without acting; None where it was not scored.
        score_with: Score of the answer after acting, likewise.
        id: Names the question.

    Raises:
        InputError: If the uncertainty is no number, or a score lies outside [0, 1].
    """

    uncertainty: float
    score_without: float | None = None
    score_with: float | None = None
    id: str = ""

    def __post_init__(self) -> None:
        place = f" of row {self.id!r}" if self.id else ""
        value: Any = self.uncertainty
        if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(float(value)):
            raise InputError(
                f"the uncertainty{place} must be a number, got {value!r}",
                hint="write math.inf where the first answer was empty",
            )
        for name in ("score_without", "score_with"):
            score: Any = getattr(self, name)
            if score is not None and not (isinstance(score, Real | np.bool_) and 0 <= float(score) <= 1):
                raise InputError(f"{name}{place} must be None or a number in [0, 1], got {score!r}")


@dataclass(frozen=True, slots=True)
class PolicyScope:
    """What a calibration belongs to; an empty part is not known.

    Attributes:
        reader: Name of the model that answers.
        gate: Name of the uncertainty, with every setting that changes its scale.
        retriever: Name of the retriever or index.
        settings: Fingerprint of prompts and options that change the answers.
    """

    reader: str = ""
    gate: str = ""
    retriever: str = ""
    settings: str = ""


def scope_of(component: Any) -> PolicyScope:
    """Return what a policy for a component belongs to: a ``LazyRAG`` or ``UncertaintyRewriter``.

    A scope is its own, and None has an empty one.
    """
    if component is None or isinstance(component, PolicyScope):
        return component or PolicyScope()
    options = component.model_dump(mode="json", include=set(component.option_names()) - {"threshold"})
    gate = getattr(component, "resolved_gate", None)
    uncertainty = options.get("metric") if gate is None else {**gate.to_dict(), "threshold": None}
    written = json.dumps(options, sort_keys=True, default=str)
    return PolicyScope(
        reader=component.reader.name,
        gate=uncertainty if isinstance(uncertainty, str) else json.dumps(uncertainty, sort_keys=True),
        retriever=str(getattr(component.retriever, "name", "")),
        settings=hashlib.sha256(written.encode()).hexdigest()[:16],
    )


@dataclass(frozen=True, slots=True)
class Gain:
    """Mean score above that of acting at random equally often, with a two-sided interval."""

    value: float
    lower: float
    upper: float


class _Policy:
    """What policies share: a file, and the check that they serve what they were calibrated for."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid")
    threshold: float
    scope: PolicyScope

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; infinities as ``"inf"`` and ``"-inf"``."""
        values = asdict(self)  # type: ignore[call-overload]  # a dataclass, as every subclass is
        return {
            name: str(value) if isinstance(value, float) and math.isinf(value) else value
            for name, value in values.items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from :meth:`to_dict`.

        Raises:
            InputError: If the values are not those of this class.
        """
        try:
            policy = TypeAdapter(cls).validate_python(values)
            if math.isnan(policy.threshold):
                raise ValueError("the threshold is no number")
        except ValueError as error:
            raise InputError(
                f"this is no {cls.__name__}: {error}", hint=f"load a file that {cls.__name__}.save() wrote"
            ) from error
        return policy

    def save(self, path: str | Path) -> None:
        """Write this as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that :meth:`save` wrote.

        Raises:
            InputError: If it cannot be read, or holds something else.
        """
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}") from error
        return cls.from_dict(values)

    def check(self, component: Any) -> None:
        """Refuse to serve another reader, gate, retriever or setting than those of the calibration.

        Args:
            component: The method that takes the policy as its threshold; or a :class:`PolicyScope`.

        Raises:
            ConfigurationError: If a part of the scope differs.

        Warns:
            CalibrationWarning: If the policy does not record a part of its scope.
        """
        scope = scope_of(component)
        missing = []
        for part in fields(PolicyScope):
            mine, yours = getattr(self.scope, part.name), getattr(scope, part.name)
            if mine and yours and mine != yours:
                raise ConfigurationError(
                    f"the policy was calibrated for the {part.name} {mine!r} and is used with {yours!r}",
                    hint="calibrate again, or restore the prompts, top_n, max_tokens and summaries of then"
                    if part.name == "settings"
                    else "calibrate again; a threshold is valid for one reader, gate and retriever",
                )
            if yours and not mine:
                missing.append(part.name)
        if missing:
            warnings.warn(
                f"the policy does not record for which {', '.join(missing)} it was calibrated; its "
                "guarantee holds for no other",
                CalibrationWarning,
                stacklevel=3,
            )


@runtime_checkable
class HasCalibrationRows(Protocol):
    """A run of :func:`surerag.evaluate` that holds both answers of each question."""

    def calibration_rows(self) -> list[CalibrationRow]:
        """Return one row a question."""


class _Sample(NamedTuple):
    """Rows as arrays; NaN stands for a score that is missing."""

    uncertainty: Floats
    without: Floats
    with_: Floats

    @property
    def unscored(self) -> int:
        """Rows that lack one of the scores."""
        return int(np.isnan(self.without + self.with_).sum())

    @property
    def benefit(self) -> Floats | None:
        """What acting adds to the score of each row; None where a score is missing."""
        return None if self.unscored else self.with_ - self.without

    @property
    def binary(self) -> bool:
        """Whether all answers are right or wrong."""
        return bool(np.isin([self.without, self.with_], (0, 1)).all())


def _sample(rows: Sequence[CalibrationRow] | HasCalibrationRows) -> _Sample:
    """Return rows as arrays; warn where scores say nothing: a strict metric finds no sentence right."""
    rows = rows.calibration_rows() if isinstance(rows, HasCalibrationRows) else rows
    if not len(rows):
        raise InputError("there are no rows to calibrate on", hint="the papers take 100 questions or more")
    table = [(row.uncertainty, row.score_without, row.score_with) for row in rows]
    sample = _Sample(*np.array(table, np.float64).T)  # None becomes NaN
    right = int(((sample.without >= 0.5) | (sample.with_ >= 0.5)).sum())
    scored = not np.isnan([sample.without, sample.with_]).all()
    if scored and right < len(rows) * _FEWEST_RIGHT:
        warnings.warn(
            f"{right} of {len(rows)} questions have a right answer: look at some, and take a metric that "
            'fits how the model answers (metrics=["contains"] for sentences)',
            CalibrationWarning,
            stacklevel=3,
        )
    return sample


class _Steps(NamedTuple):
    """Distinct finite uncertainties in ascending order, and sums over the questions at or below each.

    ``repaired`` are scores that acting would add, ``spoiled`` those that it would take away.
    """

    thresholds: Floats
    skipped: NDArray[np.int_]
    repaired: Floats
    spoiled: Floats
    n: int

    @property
    def loss(self) -> Floats:
        """Loss against always acting at each threshold."""
        return (self.repaired - self.spoiled) / self.n


def _steps(uncertainty: Floats, benefit: Floats) -> _Steps:
    order = np.argsort(uncertainty, kind="stable")
    ascending = uncertainty[order]
    ends = np.append(ascending[1:] != ascending[:-1], True) & np.isfinite(ascending)
    repaired, spoiled = (np.cumsum(np.maximum(sign * benefit[order], 0.0))[ends] for sign in (1, -1))
    return _Steps(ascending[ends], np.flatnonzero(ends) + 1, repaired, spoiled, len(uncertainty))


# Thresholds


@dataclass(frozen=True, slots=True)
class ThresholdPolicy(_Policy):
    """Act (retrieve, rewrite, compress) iff the uncertainty exceeds a threshold, with a guarantee.

    The guarantee is about the mean over questions drawn like those of the sample, for the same reader,
    prompts and documents; where these change, it ends. At most a share of 1 - ``confidence`` of all
    calibrations break it.

    Attributes:
        threshold: -inf always acts, inf never.
        target: ``"loss"``, ``"rate"`` or ``"best"``; see :func:`calibrate_threshold`.
        max_loss: Allowed loss of mean score against always acting; None where that was not bounded.
        max_rate: Allowed share of questions that act; None likewise.
        confidence: Of the guarantee.
        n: Questions in the sample.
        rate: Share of the sample that acts.
        loss: Loss on the sample against always acting; None for a sample without scores.
        gain: Gain on the sample over acting at random equally often; None likewise.
        verdict: ``"holds"``: guarantee and gain; ``"no gain shown"``: the guarantee holds, and acting at
            random equally often may be as good; ``"infeasible"``: no threshold could be certified;
            ``"no guarantee"``: best on the sample.
        needed: Where infeasible, about how many questions would do; None where no number would.
        scope: What it belongs to.
    """

    threshold: float
    target: Target
    max_loss: float | None
    max_rate: float | None
    confidence: float
    n: int
    rate: float
    loss: float | None = None
    gain: Gain | None = None
    verdict: Verdict = "no guarantee"
    needed: int | None = None
    scope: PolicyScope = PolicyScope()

    def acts(self, uncertainty: float) -> bool:
        """Return whether to act."""
        return uncertainty > self.threshold

    @property
    def guarantee(self) -> str:
        """Guarantee and estimates, in words."""
        if self.verdict == "infeasible":
            acts = "always acts" if self.threshold < 0 else "never acts"
            return f"cannot be guaranteed {_on_more_questions(self.n, self.needed)}. This policy {acts}."
        if self.verdict == "no guarantee":
            return f"best on a sample of {self.n:,} questions; no guarantee for other questions."
        bound = (
            f"loses at most {100 * self.max_loss:g} points against always acting"
            if self.max_loss is not None
            else f"acts on at most {100 * (self.max_rate or 0):g} % of questions"
        )
        text = f"{bound}, at confidence {self.confidence:g}, from {self.n:,} questions."
        if self.gain is None:
            return f"{text} Without reference answers nothing is guaranteed about answers."
        if self.gain.lower == self.gain.upper:
            return f"{text} No gain can be estimated: the sample shows no difference."
        word = "Gain" if self.verdict == "holds" else "No gain shown"
        low, high = 100 * self.gain.lower, 100 * self.gain.upper
        return (
            f"{text} {word} over acting at random on {100 * self.rate:.0f} % of questions: "
            f"{100 * self.gain.value:+.1f} [{low:+.1f}, {high:+.1f}] points."
        )


def calibrate_threshold(
    rows: Sequence[CalibrationRow] | HasCalibrationRows,
    *,
    target: Target = "loss",
    max_loss: float = 0.02,
    max_rate: float | None = None,
    confidence: float = 0.95,
    on_infeasible: OnInfeasible = "always",
    component: Any = None,
) -> ThresholdPolicy:
    """Return a threshold with a guarantee.

    - ``"loss"``: act as seldom as possible, losing at most ``max_loss`` against always acting.
    - ``"rate"``: act as often as possible, on at most the share ``max_rate`` of questions; needs no scores.
    - ``"best"``: the largest mean score on the sample, as papers choose thresholds; no guarantee.

    Args:
        rows: One a question, drawn like the questions to come; or a run. A bound of 2 points at 0.95 takes
            150 at least.
        target: What to guarantee.
        max_loss: Allowed loss of mean score, in (0, 1].
        max_rate: Allowed share of questions that act, in [0, 1]; for ``"rate"``.
        confidence: In (0, 1).
        on_infeasible: Where no threshold can be certified: ``"always"`` act, ``"never"``, or ``"raise"``. For
            ``"rate"`` both never act.
        component: The method that the policy is for, or its :class:`PolicyScope`; the policy serves no other.

    Raises:
        ConfigurationError: If a bound is out of range, or missing.
        InputError: If there are no rows, scores are missing, or (with ``"raise"``) nothing can be certified.
        MissingExtraError: If scipy is not installed.

    Warns:
        CalibrationWarning: If fewer than one in twenty questions has a right answer, with or without acting.

    Example:
        >>> rows = [CalibrationRow(i, score_without=i < 300, score_with=True) for i in range(400)]
        >>> policy = calibrate_threshold(rows, max_loss=0.02)
        >>> policy.verdict, policy.rate, policy.loss
        ('holds', 0.2425, 0.0075)
    """
    _check(target, max_loss, max_rate, confidence, on_infeasible)
    sample, level = _sample(rows), 1 - confidence
    uncertainty, benefit, n = sample.uncertainty, sample.benefit, len(sample.uncertainty)
    if target == "rate":
        threshold, needed = _threshold_of_rate(uncertainty, max_rate or 0.0, level)
    else:
        threshold, needed = _threshold_by_scores(sample, target, max_loss, level)
    if threshold is None and on_infeasible == "raise":
        raise InputError(
            f"no threshold can be guaranteed {_on_more_questions(n, needed)}",
            hint="take more questions, allow a larger loss or rate, or lower the confidence",
        )
    fallback = -math.inf if on_infeasible == "always" and target != "rate" else math.inf
    at = fallback if threshold is None else threshold
    acts = uncertainty > at
    gain = None if benefit is None else _gain(uncertainty, benefit, at, confidence)
    return ThresholdPolicy(
        threshold=at,
        target=target,
        max_loss=max_loss if target == "loss" else None,
        max_rate=max_rate if target == "rate" else None,
        confidence=confidence,
        n=n,
        rate=float(acts.mean()),
        loss=None if benefit is None else float(benefit[~acts].sum()) / n,
        gain=gain,
        verdict="infeasible" if threshold is None else _verdict(target, gain),
        needed=needed,
        scope=scope_of(component),
    )


def _verdict(target: Target, gain: Gain | None) -> Verdict:
    if target == "best":
        return "no guarantee"
    return "holds" if gain is None or gain.lower > 0 else "no gain shown"


def _threshold_by_scores(
    sample: _Sample, target: Target, max_loss: float, level: float
) -> tuple[float | None, int | None]:
    uncertainty, benefit = sample.uncertainty, sample.benefit
    if benefit is None:
        raise InputError(
            f"{sample.unscored} of {len(uncertainty)} rows have no scores",
            hint='pass reference answers, or target="rate"',
        )
    if target == "best":
        return _best_threshold(uncertainty, benefit), None
    return _threshold_of_loss(uncertainty, benefit, sample.binary, max_loss, level)


def _on_more_questions(n: int, needed: int | None) -> str:
    """Say that ``n`` questions are too few, and whether more would help."""
    if needed is None:
        return f"with {n:,} questions, and more questions of this kind would not help"
    return f"with {n:,} questions; about {needed:,} would be needed"


def _check(
    target: str, max_loss: float, max_rate: float | None, confidence: float, on_infeasible: str
) -> None:
    for name, value, choices in (
        ("target", target, get_args(Target)),
        ("on_infeasible", on_infeasible, get_args(OnInfeasible)),
    ):
        if value not in choices:
            raise ConfigurationError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    if target == "loss" and not 0 < max_loss <= 1:
        raise ConfigurationError(
            f"max_loss must be in (0, 1], got {max_loss!r}", hint="no finite sample shows a loss of exactly 0"
        )
    if target == "rate" and not (max_rate is not None and 0 <= max_rate <= 1):
        raise ConfigurationError(f'target="rate" needs max_rate in [0, 1], got {max_rate!r}')
    if target != "rate" and max_rate is not None:
        raise ConfigurationError(f"the target {target!r} has no max_rate", hint='pass target="rate"')
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence must be in (0, 1), got {confidence!r}")


def _best_threshold(uncertainty: Floats, benefit: Floats) -> float:
    """Return the largest threshold of those with the best mean score on the sample."""
    steps = _steps(uncertainty, benefit)
    loss = np.append(0.0, steps.loss)
    best = len(loss) - 1 - int(np.argmin(np.round(loss[::-1], 12)))
    return float(np.append(-math.inf, steps.thresholds)[best])


def _threshold_of_loss(
    uncertainty: Floats, benefit: Floats, binary: bool, max_loss: float, level: float
) -> tuple[float | None, int | None]:
    """Return the largest threshold that loses at most ``max_loss``.

    Where there is none: None, and how many questions it takes.
    """
    # Bets need an order that does not depend on the uncertainty.
    order = np.random.default_rng(0).permutation(len(uncertainty))
    uncertainty, benefit = uncertainty[order], benefit[order]
    thresholds = np.unique(uncertainty[np.isfinite(uncertainty)])
    if len(thresholds) > TEST_EACH:
        # A grid that is independent of the rows it is tested on.
        thresholds = np.unique(uncertainty[:_SET_ASIDE][np.isfinite(uncertainty[:_SET_ASIDE])])
        uncertainty, benefit = uncertainty[_SET_ASIDE:], benefit[_SET_ASIDE:]
    n, certified = len(uncertainty), -math.inf
    for threshold in thresholds.tolist():
        losses = np.where(uncertainty <= threshold, benefit, 0.0)
        if binary:
            counts = int((losses > 0).sum()), int((losses < 0).sum())
            p_value = paired_p_value(n, *counts, max_loss, _NUISANCE_LEVEL * level)
        else:
            p_value = betting_p_value(losses, max_loss, 1 - level)
        if p_value > level:
            break
        certified = threshold
    if certified == -math.inf:
        return None, _needed_for_loss(uncertainty, benefit, max_loss, level)
    return certified, None


def _threshold_of_rate(uncertainty: Floats, max_rate: float, level: float) -> tuple[float | None, int | None]:
    """Return the smallest threshold at which at most ``max_rate`` of questions act, by the binomial test.

    Where there is none: None, and how many questions it takes.
    """
    with extra("evaluation"):
        from scipy.stats import binom
    if max_rate in (0, 1):
        return (math.inf, -math.inf)[int(max_rate)], None
    n = len(uncertainty)
    most = int(binom.ppf(level, n, max_rate))
    if binom.cdf(most, n, max_rate) > level:
        most -= 1
    if most >= 0:
        threshold = float(np.sort(uncertainty)[max(n - most - 1, 0)])
        if threshold == -math.inf:
            threshold = float(uncertainty[np.isfinite(uncertainty)].min(initial=math.inf))
        if threshold < math.inf:
            return threshold, None
    return None, math.ceil(math.log(level) / math.log1p(-max_rate))


def _needed_for_loss(uncertainty: Floats, benefit: Floats, max_loss: float, level: float) -> int | None:
    """Return about how many questions could certify a threshold that skips a twentieth of the actions.

    With the rates of the sample, so many would do for every second sample (normal approximation). None where
    no number would, since every such threshold loses more.
    """
    with extra("evaluation"):
        from scipy.stats import norm
    steps = _steps(uncertainty, benefit)
    least = math.ceil(math.log(level * (1 - _NUISANCE_LEVEL)) / math.log1p(-max_loss)) if max_loss < 1 else 1
    room = max_loss - steps.loss
    useful = (steps.skipped >= steps.n / 20) & (room > 0)
    if not useful.any():
        return None
    variance = (steps.repaired + steps.spoiled) / steps.n - steps.loss**2
    sizes = norm.ppf(1 - level) ** 2 * variance[useful] / room[useful] ** 2
    return max(least, math.ceil(float(sizes.min())))


def _gain(uncertainty: Floats, benefit: Floats, threshold: float, confidence: float) -> Gain:
    """Return the gain of acting above a threshold over acting at random equally often.

    It is the covariance of acting and benefit. The threshold was chosen on the same questions, so the
    interval is one of a band over a grid of thresholds: a bootstrap of the largest studentised deviation.
    """
    finite, n = uncertainty[np.isfinite(uncertainty)], len(uncertainty)
    grid = np.quantile(finite, np.linspace(0.04, 0.96, 24)) if len(finite) else np.empty(0)
    acts = uncertainty[:, None] > np.append(threshold, grid)[None, :]
    centred = (benefit - benefit.mean())[:, None] * (acts - acts.mean(axis=0))
    influence = centred - centred.mean(axis=0)
    spread = influence.std(axis=0)
    value = float(centred[:, 0].mean())
    if spread[0] < 1e-12:
        return Gain(value, value, value)
    studentised = influence[:, spread > 1e-12] / spread[spread > 1e-12]
    rng = np.random.default_rng(0)
    blocks = max(1, 1_000_000 // n)
    widest = [
        np.abs(rng.standard_normal((min(blocks, 1000 - start), n)) @ studentised).max(axis=1)
        for start in range(0, 1000, blocks)
    ]
    half = float(np.quantile(np.concatenate(widest), confidence) * spread[0]) / n
    return Gain(value, value - half, value + half)


@lru_cache(maxsize=65536)
def paired_p_value(n: int, repaired: int, spoiled: int, bound: float, slip: float = 0.001) -> float:
    """Return the exact p-value of "the loss is ``bound`` or more", for answers that are right or wrong.

    For a bound of 0 it is the one-sided sign test; a negative bound is a gain that has to be exceeded.

    Of n questions the policy does not act on ``repaired`` that acting would turn right, and on ``spoiled``
    that it would turn wrong; the estimated loss is their difference over n. Outcomes are ordered by the
    studentised difference; the tail probability is maximised over the share of discordant questions within
    its Clopper-Pearson interval of level 1 - ``slip``, and ``slip`` is added (Berger & Boos, JASA 89, 1994,
    applied to the exact unconditional test of Hsueh, Liu & Chen, Biometrics 57, 2001).

    Args:
        n: Questions in the sample.
        repaired: Questions without action that acting turns right.
        spoiled: Questions without action that acting turns wrong.
        bound: Allowed loss, in [-1, 1].
        slip: Level spent on the interval of the nuisance parameter.

    Raises:
        MissingExtraError: If scipy is not installed.

    Example:
        >>> round(paired_p_value(250, 0, 0, 0.02), 4)  # 0.98 ** 250, and the slip
        0.0074
        >>> paired_p_value(250, 6, 1, 0.02)
        1.0
        >>> paired_p_value(250, 1, 0, 0.02) < 0.05 < paired_p_value(250, 2, 0, 0.02)
        True
    """
    with extra("evaluation"):
        from scipy.stats import beta, binom

    discordant, difference, expected = repaired + spoiled, repaired - spoiled, n * bound
    if difference >= expected:
        return 1.0
    if bound == 0:
        return float(binom.cdf(repaired, discordant, 0.5))
    lowest = float(beta.ppf(slip / 2, discordant, n - discordant + 1)) if discordant else 0.0
    highest = float(beta.ppf(1 - slip / 2, discordant + 1, n - discordant)) if discordant < n else 1.0
    if highest <= abs(bound):  # loss and gain are at most the share of discordant questions
        return slip if bound > 0 else 1.0
    shares = np.linspace(max(lowest, abs(bound), 1e-12), highest, _NUISANCE_POINTS)
    spread = 9 * np.sqrt(n * shares * (1 - shares)) + 9  # what lies farther out has no weight
    low, high = math.floor((n * shares - spread).min()), math.ceil((n * shares + spread).max())
    counts = np.arange(max(0, low), min(n, high) + 1)
    # The statistic z(t, d) = (t - n bound) / sqrt(d + c - t²/n) grows with the difference t: for each number
    # d of discordant questions the region of smaller statistics ends at the smaller root of a quadratic.
    more = _PRIOR_DISCORDANT * abs(expected)
    z_squared = (difference - expected) ** 2 / max(discordant + more - difference * difference / n, 1e-9)
    stretch = 1 + z_squared / n
    inside = expected**2 - stretch * (expected**2 - z_squared * (counts + more))
    roots = (expected - np.sqrt(np.maximum(inside, 0.0))) / stretch
    largest = np.minimum(np.where(inside < 0, counts, np.minimum(roots, counts)), expected)
    repaired_at_most = np.floor((largest + counts) / 2 + 1e-9)
    repairing = np.minimum(1.0, (shares + bound) / (2 * shares))
    tails = binom.pmf(counts, n, shares[:, None]) * binom.cdf(repaired_at_most, counts, repairing[:, None])
    return min(1.0, float(tails.sum(axis=1).max()) + slip)


def betting_p_value(
    losses: Floats, bound: float, confidence: float = 0.95, bounds: tuple[float, float] = (-1.0, 1.0)
) -> float:
    """Return a p-value of "the mean of bounded losses is ``bound`` or more", by betting.

    One over the largest capital of a gambler who bets against the hypothesis is a p-value (Waudby-Smith &
    Ramdas, JRSSB 86, 2024, with predictable plug-in bets). It is valid for any losses within ``bounds``, in
    an order that does not depend on them.

    Example:
        >>> betting_p_value(np.zeros(250), 0.02) < 0.05 < betting_p_value(np.zeros(25), 0.02)
        True
    """
    low, high = bounds
    if bound <= low or not len(losses):
        return 1.0
    n, fair = len(losses), max((high - bound) / (high - low), 1e-12)
    stakes = math.sqrt(2 * math.log(1 / (1 - confidence)))
    saved, steps = (high - losses) / (high - low), np.arange(1, n + 1)
    means = (0.5 + np.cumsum(saved)) / (steps + 1)
    spread = np.cumsum((saved - means) ** 2)
    variance = (0.25 / 4 + np.append(0.0, spread[:-1])) / steps
    stake = np.minimum(stakes / np.sqrt(n * variance), 0.9 / fair)
    capital = np.cumsum(np.log1p(stake * (saved - fair)))
    return min(1.0, math.exp(-float(capital.max(initial=0.0))))


# Abstention


@dataclass(frozen=True, slots=True)
class SelectedAnswer:
    """An answer to show, or the abstention in its place.

    Attributes:
        text: The answer, or the abstention.
        answer: The reader's answer.
        abstained: Whether the answer is withheld.
        probability: Calibrated probability that the answer is right.
        uncertainty: Of the answer.
    """

    text: str
    answer: str
    abstained: bool
    probability: float
    uncertainty: float


@dataclass(frozen=True, slots=True)
class AbstentionPolicy(_Policy):
    """Answer iff the uncertainty is at most a threshold, with a bounded share of wrong answers.

    The guarantee is about the share of wrong answers among questions that are answered, drawn like those of
    the sample; of a single answer there is an estimated probability.

    Attributes:
        threshold: -inf never answers.
        max_risk: Allowed share of wrong answers among those given.
        confidence: Of the guarantee.
        n: Questions in the sample.
        coverage: Share of the sample that is answered.
        risk: Share of wrong answers among them; None where none is answered.
        needed: Where no threshold could be certified: about how many of the most certain questions would have
            to be right, all but one; else None.
        knots: Uncertainties at which the probability of a right answer is known, ascending.
        probabilities: At the knots; interpolated in between.
        scope: What it belongs to.

    Example:
        >>> policy = AbstentionPolicy(0.5, 0.1, 0.95, 100, 0.6, 0.05, None, (0.0, 1.0), (0.9, 0.1))
        >>> policy.select("Velm", 0.25)
        SelectedAnswer(text='Velm', answer='Velm', abstained=False, probability=0.7, uncertainty=0.25)
        >>> policy.select("Orun", 0.75).text
        'I do not know.'
    """

    threshold: float
    max_risk: float
    confidence: float
    n: int
    coverage: float
    risk: float | None
    needed: int | None
    knots: tuple[float, ...]
    probabilities: tuple[float, ...]
    scope: PolicyScope = PolicyScope()

    def answers(self, uncertainty: float) -> bool:
        """Return whether to answer."""
        return uncertainty <= self.threshold

    def probability(self, uncertainty: float) -> float:
        """Return the calibrated probability that an answer with this uncertainty is right."""
        return float(np.interp(uncertainty, self.knots, self.probabilities))

    def select(self, answer: str, uncertainty: float | None, abstention: str = ABSTENTION) -> SelectedAnswer:
        """Return an answer, or the abstention in its place.

        Args:
            answer: The reader's answer. One that is empty or is itself the abstention is withheld.
            uncertainty: Of the answer; None, where the reader returned no word, is infinite.
            abstention: Text to show in place of an answer.
        """
        check_abstention(abstention)
        value = math.inf if uncertainty is None else uncertainty
        show = self.answers(value) and bool(answer.strip()) and not is_abstention(answer, abstention)
        return SelectedAnswer(
            answer if show else abstention, answer, not show, self.probability(value), value
        )

    @property
    def guarantee(self) -> str:
        """Guarantee and coverage, in words."""
        if self.threshold == -math.inf:
            return (
                f"cannot be guaranteed with {self.n:,} questions: no share of them can be answered with at "
                f"most {100 * self.max_risk:g} % wrong at confidence {self.confidence:g}. This policy never "
                "answers."
            )
        return (
            f"at most {100 * self.max_risk:g} % of the answers given are wrong, at confidence "
            f"{self.confidence:g}, from {self.n:,} questions, of which {100 * self.coverage:.0f} % are "
            "answered."
        )


def calibrate_abstention(
    rows: Sequence[CalibrationRow] | HasCalibrationRows,
    *,
    max_risk: float,
    confidence: float = 0.95,
    component: Any = None,
) -> AbstentionPolicy:
    """Return a policy that answers as many questions as a bounded risk allows.

    Learn then Test by a fixed sequence: uncertainties of the sample are thresholds, tested from the most
    certain answers on, each at nine tenths of the level, up to the first at which the binomial test of the
    wrong answers below does not certify the risk (Geifman & El-Yaniv, NeurIPS 2017, test each of them at a
    share of the level). The first has as many answers as certify the risk with one wrong among them. The
    remaining tenth tests whether everything can be answered. The level is exact where the share of wrong
    answers grows with uncertainty; ``python -m studies.levels`` simulates others.

    Args:
        rows: With ``uncertainty`` and ``score_without`` of the answer; a score of 0.5 or more is right.
        max_risk: Allowed share of wrong answers among those given, in (0, 1).
        confidence: In (0, 1).
        component: The method that the policy is for, or its :class:`PolicyScope`.

    Raises:
        ConfigurationError: If a bound is out of range.
        InputError: If there are no rows, or one has no score.
        MissingExtraError: If scipy is not installed.

    Warns:
        CalibrationWarning: If fewer than one in twenty answers is right.
    """
    with extra("evaluation"):
        from scipy.optimize import isotonic_regression
    for name, value in (("max_risk", max_risk), ("confidence", confidence)):
        if not 0 < value < 1:
            raise ConfigurationError(f"{name} must be in (0, 1), got {value!r}")
    uncertainty, right = _answers(rows)
    n = len(uncertainty)
    threshold, needed = _bounded_risk(uncertainty, right, max_risk, 1 - confidence)
    answered = uncertainty <= threshold
    finite = np.isfinite(uncertainty)
    knots, at, counts = np.unique(uncertainty[finite], return_inverse=True, return_counts=True)
    if len(knots):
        shares = np.bincount(at, right[finite]) / counts
        fitted = isotonic_regression(shares, weights=counts, increasing=False).x
    else:
        knots, fitted = np.zeros(1), np.array([right.mean()])
    probabilities = np.clip(fitted, 1 / (n + 2), (n + 1) / (n + 2))
    changes = np.append(True, probabilities[1:] != probabilities[:-1])
    ends = changes | np.append(changes[1:], True)  # first and last knot of each level
    return AbstentionPolicy(
        threshold=threshold,
        max_risk=max_risk,
        confidence=confidence,
        n=n,
        coverage=float(answered.mean()),
        risk=float((~right[answered]).mean()) if answered.any() else None,
        needed=None if threshold > -math.inf else needed,
        knots=tuple(knots[ends].tolist()),
        probabilities=tuple(probabilities[ends].tolist()),
        scope=scope_of(component),
    )


def _bounded_risk(
    uncertainty: Floats, right: NDArray[np.bool_], max_risk: float, level: float
) -> tuple[float, int]:
    """Return the largest certified threshold, -inf for none; and how many answers the first test takes."""
    with extra("evaluation"):
        from scipy.stats import binom
    finite = np.isfinite(uncertainty)  # an empty answer is never given
    if finite.any() and binom.cdf((~right[finite]).sum(), finite.sum(), max_risk) <= level * _LEVEL_OF_ALL:
        return math.nextafter(math.inf, 0), 1
    level *= 1 - _LEVEL_OF_ALL
    first = 1
    while binom.cdf(_ERRORS_AT_FIRST, first, max_risk) > level:
        first += 1
    steps = _steps(uncertainty, np.where(right, 0.0, 1.0))
    certified = binom.cdf(np.round(steps.repaired), steps.skipped, max_risk) <= level
    tested = steps.skipped >= first
    last = int(np.argmin(np.append(certified | ~tested, False)))
    good = np.flatnonzero(tested[:last])
    return (float(steps.thresholds[good[-1]]) if len(good) else -math.inf), first


class RiskPoint(NamedTuple):
    """A point of a risk-coverage curve: answers with uncertainties up to ``threshold`` are given.

    ``coverage`` is the share of questions that are answered, ``risk`` the share of wrong answers among them.
    """

    threshold: float
    coverage: float
    risk: float


def risk_coverage(rows: Sequence[CalibrationRow] | HasCalibrationRows) -> tuple[RiskPoint, ...]:
    """Return the risk-coverage curve of a sample: a point for each distinct finite uncertainty, ascending.

    Example:
        >>> rows = [CalibrationRow(1.0, True), CalibrationRow(2.0, False)]
        >>> [(point.coverage, point.risk) for point in risk_coverage(rows)]
        [(0.5, 0.0), (1.0, 0.5)]
    """
    uncertainty, right = _answers(rows)
    steps = _steps(uncertainty, np.where(right, 0.0, 1.0))
    return tuple(
        RiskPoint(threshold, skipped / steps.n, wrong / skipped)
        for threshold, skipped, wrong in zip(
            steps.thresholds.tolist(), steps.skipped.tolist(), steps.repaired.tolist(), strict=True
        )
    )


def _answers(rows: Sequence[CalibrationRow] | HasCalibrationRows) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the uncertainties of the answers without acting, and whether each is right."""
    uncertainty, scores, _ = _sample(rows)
    if unscored := int(np.isnan(scores).sum()):
        raise InputError(f"{unscored} of {len(scores)} answers have no score", hint="pass reference answers")
    return uncertainty, scores >= 0.5
