"""Calibrate uncertainty thresholds with a statistical guarantee, from questions with scored answers.

A threshold decides when a method retrieves passages or rewrites a query, or which answers are withheld. The
procedure is Learn then Test (Angelopoulos et al., arXiv 2110.01052) with fixed-sequence testing. Thresholds
are tested in ascending order, each at the full significance level, until the first threshold fails. The
p-value changes only at uncertainties that occur in the sample, so only these values are tested.

Binary scores have an exact test (:func:`paired_p_value`). Graded scores have the test by betting of
Waudby-Smith and Ramdas (:func:`betting_p_value`). Rows of one group, such as the questions about one
document, may depend on each other. For grouped rows, the exact tests use an effective sample size
(:func:`surerag.measures.statistics.effective_size`), and the test by betting uses the total loss of each
group.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import takewhile
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError

from surerag.certainty import NO_WORDS, Certainty, without_address
from surerag.errors import (
    ConfigurationError,
    InputError,
    check_items,
    check_kind,
    extra,
    kind_of,
    warn_user,
    writing,
)
from surerag.measures import auroc
from surerag.measures.certainty import indication_text
from surerag.measures.statistics import (
    Estimate,
    Floats,
    Groups,
    Interval,
    effective_size,
    group_correlation,
    group_numbers,
)
from surerag.text import ABSTENTION, check_abstention, counted, is_abstention

Verdict = Literal["holds", "no gain shown", "infeasible"]

TEST_EACH = 4000
"""If a sample has at most this number of distinct uncertainties, each is tested as a threshold. Otherwise,
the thresholds are the uncertainties of ``_SET_ASIDE`` rows, and are tested on the other rows."""
_SET_ASIDE = 1000
_NUISANCE_LEVEL = 0.01
"""Share of the significance level that :func:`paired_p_value` spends on the confidence interval of the
nuisance parameter."""
_NUISANCE_POINTS = 32
_PRIOR_DISCORDANT = 0.5
"""In the variance of :func:`paired_p_value`, this factor times the allowed number of lost questions is added
to the number of discordant questions, so that the variance of a small sample is not close to zero. The factor
changes the power of the test, but not the level."""
_FEWEST_RIGHT = 0.05
_LEVEL_OF_ALL = 0.1
"""Share of the significance level that :func:`calibrate_abstention` spends on one test: whether the share of
wrong answers is small enough if every question is answered."""
_ERRORS_AT_FIRST = 1
"""An abstention threshold is skipped if it would show so few answers that this number of wrong answers fails
the test."""
_REMEDIES = {
    "settings": (
        "the two values are hashes of settings: calibrate again, or restore the settings of the calibration, "
        "such as temperature, max_tokens, top_logprobs, prompts, top_n and summaries"
    ),
    "prompt": "the two values are hashes of prompts: calibrate again, or restore the template of the prompt",
}
"""Hints for an error message, by the part of a policy's scope that differs."""
_FOLDS, _ROUNDS = 5, 4
"""Number of folds and number of repetitions of the cross-validation of probabilities."""


class CalibrationWarning(UserWarning):
    """Warns of a sample with hardly any right answers, or of a policy whose guarantee may not hold."""


# Samples, policies, and the scope of a policy


@dataclass(frozen=True, slots=True)
class CalibrationRow:
    """The uncertainty and scores of one question, for calibration.

    For :func:`calibrate_threshold`, a row has the scores of two answers: without and with a method's step,
    which is a retrieval or a rewrite of the query. For :func:`calibrate_abstention`, a row has one score,
    ``score_without``.

    Attributes:
        uncertainty: Uncertainty of the answer without the step; larger means less certain. Use ``math.inf``
            for an empty answer.
        score_without: Score in [0, 1] of the answer without the step; None if this answer was not scored.
        score_with: Score in [0, 1] of the answer after the step; None if this answer was not scored.
        id: Name of the question.
        group: Name of the group of questions, such as the document that they are about. Rows of one group
            are treated as dependent.
        scope: Names of the reader, gate and retriever, and a hash of the settings; see :func:`scope_of`.

    Raises:
        InputError: If the uncertainty is not a number, or a score is outside [0, 1].
    """

    uncertainty: float
    score_without: float | None = None
    score_with: float | None = None
    id: str = ""
    group: str = ""
    scope: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        scores = [score for score in (self.score_without, self.score_with) if score is not None]
        value: Any
        for value, low, high in ((self.uncertainty, -math.inf, math.inf), *((one, 0, 1) for one in scores)):
            if not isinstance(value, Real | np.bool_) or not low <= float(value) <= high:
                raise InputError(
                    f"row {self.id!r}: expected a number as uncertainty, and a number in [0, 1] or None as "
                    f"score, got {value!r}",
                    hint="write math.inf as the uncertainty of an empty first answer",
                )

    @classmethod
    def of(
        cls,
        certainty: Certainty | Mapping[str, Any],
        score: float | None,
        *,
        id: str = "",  # noqa: A002
        group: str = "",
    ) -> Self:
        """Return the row of one answer, for :func:`calibrate_abstention`.

        An empty or truncated answer gets an infinite uncertainty.

        Args:
            certainty: The answer's certainty: a ``Certainty``, or the result of its ``to_dict``.
            score: Score in [0, 1] of the answer: 1 if it is right, 0 if it is wrong; None if it was not
                scored.
            id: Name of the question.
            group: Name of the group of questions, such as the document that they are about.

        Raises:
            InputError: If the answer has words, but its certainty has no measured uncertainty.
        """
        if not isinstance(certainty, Certainty):
            certainty = Certainty.from_dict(certainty)
        scope = {**certainty.scope, "measure": certainty.measure} if certainty.measure else certainty.scope
        return cls(_comparable(certainty), score, id=id, group=group, scope=scope)


def _comparable(certainty: Certainty) -> float:
    if certainty.is_cut or certainty.reason == NO_WORDS:
        return math.inf  # the missing part of the answer was not measured
    if certainty.uncertainty is None:
        raise InputError(
            f"an answer has no uncertainty: {certainty.reason}",
            hint="have the model list log-probabilities (logprobs=True, top_logprobs=5 of OpenAI's API)",
        )
    return certainty.uncertainty


def scope_of(component: Any) -> dict[str, str]:
    """Return the scope of a component: the names and settings for which a calibrated policy is valid.

    The scope of a component has four parts. ``reader`` is the reader's name, in which a hash replaces the
    server's address. ``retriever`` is the retriever's attribute ``name`` or, without this attribute, the name
    of the retriever's class. ``gate`` is the gate or metric, with the settings that change the scale of the
    uncertainty. ``settings`` is a hash of the prompts and options.

    Args:
        component: A component such as ``LazyRAG`` or ``UncertaintyRewriter``; or a
            :class:`surerag.Certainty` (or the result of its ``to_dict``), whose stored scope is returned; or
            a scope, of which a copy is returned; or None, for an empty scope.
    """
    if isinstance(component, Certainty):
        component = component.scope
    elif isinstance(component, Mapping):
        component = component.get("scope", component)
    if component is None or isinstance(component, Mapping):
        return dict(component or {})
    options = component.model_dump(mode="json", include=set(component.option_names()) - {"threshold"})
    gate = getattr(component, "resolved_gate", None)
    uncertainty = options.get("metric") if gate is None else {**gate.to_dict(), "threshold": None}
    written = json.dumps(options, sort_keys=True, default=str)
    return {
        "reader": without_address(component.reader.name),
        "gate": uncertainty if isinstance(uncertainty, str) else json.dumps(uncertainty, sort_keys=True),
        "retriever": str(getattr(component.retriever, "name", None) or type(component.retriever).__name__),
        "settings": hashlib.sha256(written.encode()).hexdigest()[:16],
    }


class _Policy:
    __slots__ = ("_warned",)
    _warned: set[str]  # subjects of the warnings so far; not set before the first warning
    __pydantic_config__ = ConfigDict(extra="forbid", ser_json_inf_nan="strings")
    _HOW_TO_MAKE: ClassVar[str]
    threshold: float
    scope: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as JSON values; infinity becomes the text ``"Infinity"``."""
        return dict(json.loads(TypeAdapter(type(self)).dump_json(self)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild a policy from the result of :meth:`to_dict`.

        Raises:
            InputError: If the values do not describe a policy of this class.
        """
        return cls._read(values, "the mapping", "from_dict(…)")

    @classmethod
    def _read(cls, values: Any, source: str, call: str) -> Self:
        for other, mark in _MARKS.items():
            if isinstance(values, Mapping) and mark in values and other.split()[1] != cls.__name__:
                raise InputError(f"{source} holds {other}", hint=f"load it with {other.split()[1]}.{call}")
        try:
            policy = TypeAdapter(cls).validate_python(values)
            if not math.isnan(policy.threshold):
                return policy
            found = "a threshold that is NaN"
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            name = ".".join(map(str, wrong["loc"]))
            # The values themselves stay out of the error, because the file may be any file, with secrets.
            found = f"{kind_of(wrong['input'])}{f' as {name}' if name else ''}"
            if wrong["type"] == "missing":
                found = f"no {name}"
        raise _not_a_policy(cls, source, found)

    def save(self, path: str | Path) -> None:
        """Write the policy to a JSON file.

        Raises:
            StorageError: If the file cannot be written.
        """
        with writing(path):
            Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a policy from a file that :meth:`save` wrote.

        Raises:
            InputError: If the file cannot be read, or is not a policy of this class.
        """
        text = ""
        try:
            text = Path(path).read_text(encoding="utf-8")
            values = json.loads(text)
        except OSError as error:
            raise InputError(
                f"{path} cannot be read: {error.strerror or error}", hint=cls._HOW_TO_MAKE
            ) from error
        except ValueError as error:
            is_empty = not Path(path).stat().st_size
            found = (
                "an empty file" if is_empty else "a text without JSON" if text else "bytes that are not text"
            )
            raise _not_a_policy(cls, str(path), found) from error
        return cls._read(values, str(path), f'load("{path}")')

    def check(self, component: Any) -> None:
        """Check that a component has the reader, gate, measure, retriever and settings of the calibration.

        Args:
            component: A scope from :func:`scope_of`, a certainty, or the method that uses the policy.

        Raises:
            ConfigurationError: If a part of the component's scope differs from the policy's scope.

        Warns:
            CalibrationWarning: If the policy's scope lacks a part that the component's scope has. Each policy
                object warns once of each part.
        """
        scope = scope_of(component)
        for part, mine in self.scope.items():
            yours = scope.get(part)
            if mine and yours and mine != yours:
                raise ConfigurationError(
                    f"the policy was calibrated for the {part} {mine!r} and is used with {yours!r}",
                    hint=_REMEDIES.get(part, "calibrate again: a policy holds for one model and retriever"),
                )
        missing = [part for part, yours in scope.items() if yours and not self.scope.get(part)]
        if missing := [part for part in missing if self._is_news(part)]:
            parts = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
            warn_user(
                f"the policy does not record the {parts} of its calibration; the guarantee holds only with "
                f"the same {parts}",
                CalibrationWarning,
            )

    def _is_news(self, subject: str) -> bool:
        """Return True at the first call with this subject, so that the policy warns of it once."""
        try:
            warned: set[str] = self._warned
        except AttributeError:
            object.__setattr__(self, "_warned", warned := set())
        is_news = subject not in warned
        warned.add(subject)
        return is_news


_MARKS = {"a ThresholdPolicy": "max_loss", "an AbstentionPolicy": "max_risk"}
"""For each class of policies, a field that no other class has."""


def _not_a_policy(kind: type[_Policy], source: str, found: str) -> InputError:
    expected = next(name for name in _MARKS if name.endswith(kind.__name__))
    return InputError(f"{source} is not a policy: expected {expected}, found {found}", hint=kind._HOW_TO_MAKE)


class HasCalibrationRows(Protocol):
    """An object that supplies calibration rows, such as a run of :func:`surerag.evaluate`."""

    def calibration_rows(self) -> list[CalibrationRow]:
        """Return one row for each question."""


class HasCertaintyRows(Protocol):
    """An object that supplies answers with certainty, such as a run of :func:`surerag.evaluate`."""

    def certainty_rows(self) -> list[CalibrationRow]:
        """Return one row for each answer of the only system whose answers have a certainty."""


def _scored(rows: Sequence[CalibrationRow], *scores: str) -> list[CalibrationRow]:
    """Return the rows that have these scores, with a warning that counts the other rows."""
    if not rows:
        raise InputError("there are no rows to calibrate on", hint="pass rows of 100 questions or more")
    check_items(CalibrationRow, rows, "pass surerag.CalibrationRow(uncertainty, score_without, score_with)")
    scored = [row for row in rows if all(getattr(row, score) is not None for score in scores)]
    if not scored:
        raise InputError(f"none of {counted(len(rows), 'row')} has a score", hint="pass reference answers")
    if left_out := len(rows) - len(scored):
        verb, it = ("is", "it has") if left_out == 1 else ("are", "they have")
        warnings.warn(
            f"{left_out} of {counted(len(rows), 'question')} {verb} left out, because {it} no score; a score "
            "needs a reference answer",
            CalibrationWarning,
            stacklevel=3,
        )
    return scored


def _sample(rows: Sequence[CalibrationRow]) -> tuple[Floats, Floats, Floats]:
    table = [(row.uncertainty, row.score_without, row.score_with) for row in rows]
    uncertainty, without, with_ = np.array(table, np.float64).T  # None becomes NaN
    right = int(((without >= 0.5) | (with_ >= 0.5)).sum())
    # Few right answers often mean a metric that is too strict: exact match counts whole sentences as wrong.
    if not np.isnan([without, with_]).all() and right < len(rows) * _FEWEST_RIGHT:
        warnings.warn(
            f"only {right} of {len(rows)} questions were answered right: look at some answers, and choose a "
            'metric that fits them (metrics=["contains"] for answers in sentences)',
            CalibrationWarning,
            stacklevel=3,
        )
    return uncertainty, without, with_


class _ThresholdSums(NamedTuple):
    thresholds: Floats  # distinct finite uncertainties, in ascending order
    skipped: NDArray[np.int_]  # number of questions at or below each threshold, without search (or rewrite)
    repaired: Floats  # score that the search (or rewrite) would add to these questions
    spoiled: Floats  # score that the search (or rewrite) would take away from these questions


def _threshold_sums(uncertainty: Floats, benefit: Floats) -> _ThresholdSums:
    order = np.argsort(uncertainty, kind="stable")
    ascending = uncertainty[order]
    ends = np.append(ascending[1:] != ascending[:-1], True) & np.isfinite(ascending)
    repaired, spoiled = (np.cumsum(np.maximum(sign * benefit[order], 0.0))[ends] for sign in (1, -1))
    return _ThresholdSums(ascending[ends], np.flatnonzero(ends) + 1, repaired, spoiled)


# Thresholds


@dataclass(frozen=True, slots=True)
class ThresholdPolicy(_Policy):
    """A threshold above which a method searches (L-RAG) or rewrites the query (DynQR), with a guarantee.

    The guarantee bounds the loss of mean score compared with always searching (or always rewriting). The
    guarantee holds for questions that are drawn like the sample, with the same reader, prompts and documents.
    Of all calibrations, at most a share of 1 - ``confidence`` yields a policy that breaks its guarantee.

    Attributes:
        threshold: The method searches (or rewrites) if the uncertainty is above this value. With -inf, the
            method always searches (or rewrites).
        max_loss: Largest allowed loss of mean score, compared with always searching (or always rewriting).
        confidence: Confidence level of the guarantee.
        n: Number of questions in the sample.
        rate: Share of the sample's questions for which the method searches (or rewrites).
        loss: Loss of mean score in the sample, compared with always searching (or always rewriting).
        gain: Gain of mean score in the sample, compared with searching (or rewriting) for a random
            share ``rate`` of the questions.
        verdict: ``"holds"`` if the guarantee holds and the gain is significant; ``"no gain shown"`` if the
            guarantee holds, but searching (or rewriting) for random questions may be as good;
            ``"infeasible"`` if no threshold could be certified.
        needed: For an infeasible calibration, about how many questions are needed; None if more questions
            would not help. For other verdicts, None.
        scope: The scope in which the policy is valid; see :func:`scope_of`.
    """

    _HOW_TO_MAKE = "make the file with calibrate_threshold(rows).save(path), or with surerag calibrate"

    threshold: float
    max_loss: float
    confidence: float
    n: int
    rate: float
    loss: float
    gain: Estimate
    verdict: Verdict
    needed: int | None = None
    scope: Mapping[str, str] = field(default_factory=dict)

    def check(self, component: Any) -> None:
        """Check the component's scope, and warn if the policy always searches or rewrites.

        Arguments, errors and warnings are those of :meth:`AbstentionPolicy.check`.
        """
        super(ThresholdPolicy, self).check(component)
        if self.threshold == -math.inf and self._is_news("guarantee"):
            warn_user(self.guarantee, CalibrationWarning)

    @property
    def guarantee(self) -> str:
        """Sentences that state the guarantee, and the gain over searching at random equally often."""
        if self.verdict == "infeasible":
            more = ", and more questions of this kind would not help"
            if self.needed is not None:
                more = f"; about {self.needed:,} would be needed"
            return (
                f"no guarantee is possible with {counted(self.n, 'question')}{more}. This policy always "
                "searches or rewrites."
            )
        text = (
            f"the policy loses at most {100 * self.max_loss:g} points compared with always searching or "
            f"rewriting, at confidence {self.confidence:g}, from {counted(self.n, 'question')}."
        )
        if self.gain.interval is None:
            return f"{text} No gain can be estimated: the sample shows no difference."
        word = "Gain" if self.verdict == "holds" else "No evidence of a gain"
        return (
            f"{text} {word} over searching or rewriting for a random {100 * self.rate:.0f} % of the "
            f"questions: {self.gain.text('+', 100, 1)} points."
        )


def calibrate_threshold(
    rows: Sequence[CalibrationRow] | HasCalibrationRows,
    *,
    max_loss: float = 0.02,
    confidence: float = 0.95,
    component: Any = None,
) -> ThresholdPolicy:
    """Return the policy that searches (or rewrites) least, among policies that lose at most ``max_loss``.

    The loss of a policy is the mean score of always searching (or always rewriting) minus the mean score of
    the policy. If no threshold can be certified, the policy always searches (or rewrites), and its verdict is
    ``"infeasible"``.

    Args:
        rows: One row for each question, or a run of :func:`surerag.evaluate`. The questions must be drawn
            like future questions. The defaults need at least 150 questions.
        max_loss: Largest allowed loss of mean score, in (0, 1]; 0.02 is two points.
        confidence: Confidence level of the guarantee, in (0, 1).
        component: The method that will use the policy, or the method's scope (:func:`scope_of`). Methods with
            another scope cannot use the policy. None leaves the scope empty, so that each use of the policy
            causes a warning.

    Raises:
        ConfigurationError: If ``max_loss`` or ``confidence`` is out of range.
        InputError: If there are no rows, or no row has both scores.
        MissingExtraError: If scipy is not installed.

    Warns:
        CalibrationWarning: If less than 5 % of the questions were answered right, or if rows without scores
            are left out.

    Example:
        >>> rows = [CalibrationRow(i, score_without=i < 300, score_with=True) for i in range(400)]
        >>> policy = calibrate_threshold(rows, max_loss=0.02)
        >>> policy.verdict, policy.rate, policy.loss
        ('holds', 0.2425, 0.0075)
    """
    _check_share("confidence", confidence)
    rows = rows.calibration_rows() if hasattr(rows, "calibration_rows") else list(rows)
    rows = _scored(rows, "score_without", "score_with")
    if not 0 < max_loss <= 1:
        raise ConfigurationError(
            f"max_loss must be in (0, 1], got {max_loss!r}",
            hint="pass for example 0.02; no finite sample can guarantee a loss of 0",
        )
    uncertainty, without, with_ = _sample(rows)
    benefit, n, level = with_ - without, len(uncertainty), 1 - confidence
    binary = bool(np.isin([without, with_], (0, 1)).all())
    groups = group_numbers([row.group for row in rows], n)
    certified = _threshold_of_loss(uncertainty, benefit, groups, binary, max_loss, level)
    threshold = -math.inf if certified is None else certified
    acts = uncertainty > threshold
    gain = _gain(uncertainty, benefit, groups, threshold, confidence)
    is_gain = gain.interval is not None and gain.interval.lower > 0
    verdict: Verdict = "holds" if is_gain else "no gain shown"
    return ThresholdPolicy(
        threshold=threshold,
        max_loss=max_loss,
        confidence=confidence,
        n=n,
        rate=float(acts.mean()),
        loss=float(benefit[~acts].sum()) / n,
        gain=gain,
        verdict="infeasible" if certified is None else verdict,
        needed=_needed_for_loss(uncertainty, benefit, groups, max_loss, level) if certified is None else None,
        scope=scope_of(component),
    )


def _check_share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ConfigurationError(f"{name} must be in (0, 1), got {value!r}")


def _threshold_of_loss(
    uncertainty: Floats,
    benefit: Floats,
    groups: NDArray[np.intp],
    binary: bool,
    max_loss: float,
    level: float,
) -> float | None:
    # The test by betting needs an order of rows that does not depend on the uncertainty. Rows of a group stay
    # together.
    order = np.argsort(np.random.default_rng(0).permutation(groups.max() + 1)[groups], kind="stable")
    uncertainty, benefit, groups = uncertainty[order], benefit[order], groups[order]
    grid = np.unique(uncertainty[np.isfinite(uncertainty)])
    if len(grid) > TEST_EACH:
        # The thresholds must be independent of the rows on which they are tested.
        grid = np.unique(uncertainty[:_SET_ASIDE][np.isfinite(uncertainty[:_SET_ASIDE])])
        rest = ~np.isin(groups, groups[:_SET_ASIDE])
        uncertainty, benefit, groups = uncertainty[rest], benefit[rest], groups[rest]
    losses = (np.where(uncertainty <= at, benefit, 0.0) for at in grid)
    if binary:
        nuisance, alike = _NUISANCE_LEVEL * level, group_correlation(benefit, groups)
        p_values = (paired_p_value(*_counts(one, groups, level, alike), max_loss, nuisance) for one in losses)
    else:
        p_values = (grouped_betting_p_value(one, max_loss, groups, 1 - level) for one in losses)
    certified = sum(1 for _ in takewhile(lambda p_value: p_value <= level, p_values))
    return float(grid[certified - 1]) if certified else None


def _counts(losses: Floats, groups: NDArray[np.intp], level: float, alike: float) -> tuple[int, int, int]:
    n = effective_size(losses, groups, 1 - 2 * level, alike)
    share = n / len(losses)
    return int(n), math.ceil(share * int((losses > 0).sum())), int(share * int((losses < 0).sum()))


def _needed_for_loss(
    uncertainty: Floats, benefit: Floats, groups: NDArray[np.intp], max_loss: float, level: float
) -> int | None:
    with extra("evaluation"):
        from scipy.stats import norm
    # This is a normal approximation of the test, with the sample's rates of losses and gains. Of all
    # calibrations with the returned number of questions, about half certify the threshold. A threshold must
    # save at least 5 % of the searches (or rewrites).
    at = _threshold_sums(uncertainty, benefit)
    least = math.ceil(math.log(level * (1 - _NUISANCE_LEVEL)) / math.log1p(-max_loss)) if max_loss < 1 else 1
    n, loss = len(uncertainty), (at.repaired - at.spoiled) / len(uncertainty)
    slack = max_loss - loss
    useful = (at.skipped >= n / 20) & (slack > 0)
    if not useful.any():
        return None
    variance = (at.repaired + at.spoiled) / n - loss**2
    sizes = norm.ppf(1 - level) ** 2 * variance[useful] / slack[useful] ** 2
    effect = n / effective_size(benefit, groups, 1 - 2 * level)
    return math.ceil(effect * max(least, float(sizes.min())))


def _gain(
    uncertainty: Floats, benefit: Floats, groups: NDArray[np.intp], threshold: float, confidence: float
) -> Estimate:
    # The threshold was chosen on the same questions, so the interval must hold for all thresholds of a grid
    # at once. The interval comes from a multiplier bootstrap of the largest studentised deviation, in which
    # all questions of a group have the same random weight.
    finite, n = uncertainty[np.isfinite(uncertainty)], len(uncertainty)
    grid = np.quantile(finite, np.linspace(0.04, 0.96, 24)) if len(finite) else np.empty(0)
    acts = uncertainty[:, None] > np.append(threshold, grid)[None, :]
    centred = (benefit - benefit.mean())[:, None] * (acts - acts.mean(axis=0))
    influence = np.zeros((groups.max() + 1, centred.shape[1]))
    np.add.at(influence, groups, centred - centred.mean(axis=0))
    influence *= math.sqrt(len(influence) / max(len(influence) - 1, 1)) if len(influence) < n else 1.0
    spread = np.sqrt((influence**2).mean(axis=0))
    value = float(centred[:, 0].mean())
    if spread[0] < 1e-12:
        return Estimate(value, None, n)
    studentised = influence[:, spread > 1e-12] / spread[spread > 1e-12]
    rng = np.random.default_rng(0)
    blocks = max(1, 1_000_000 // n)
    widest = [
        np.abs(rng.standard_normal((min(blocks, 1000 - start), len(influence))) @ studentised).max(axis=1)
        for start in range(0, 1000, blocks)
    ]
    half = float(np.quantile(np.concatenate(widest), confidence) * spread[0]) / n
    return Estimate(value, Interval(value - half, value + half), n)


@lru_cache(maxsize=65536)
def paired_p_value(n: int, repaired: int, spoiled: int, bound: float, slip: float = 0.001) -> float:
    """Return the exact p-value of the hypothesis that a policy loses ``bound`` or more, for binary scores.

    The estimated loss is (``repaired`` - ``spoiled``) / n. A bound of 0 gives the one-sided sign test. A
    negative bound tests whether the policy gains more than -``bound``.

    The test is the exact unconditional test of Hsueh, Liu & Chen (Biometrics 57, 2001), with outcomes ordered
    by the studentised difference. Its nuisance parameter is the share of discordant questions. Following
    Berger & Boos (JASA 89, 1994), the tail probability is maximised over the Clopper-Pearson interval of
    this share at confidence 1 - ``slip``, and ``slip`` is added to the maximum.

    Args:
        n: Number of questions in the sample.
        repaired: Number of questions for which the policy skips a search (or rewrite) that would turn a wrong
            answer into a right answer.
        spoiled: Number of questions for which the policy skips a search (or rewrite) that would turn a right
            answer into a wrong answer.
        bound: Allowed loss of mean score, in [-1, 1].
        slip: Significance level that is spent on the interval of the nuisance parameter.

    Raises:
        MissingExtraError: If scipy is not installed.

    Example:
        >>> round(paired_p_value(250, 0, 0, 0.02), 4)  # 0.98 ** 250 + slip
        0.0074
        >>> paired_p_value(250, 6, 1, 0.02)  # the sample loses as much as the bound
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
    if highest <= abs(bound):  # loss and gain are smaller than the bound if few questions are discordant
        return slip if bound > 0 else 1.0
    shares = np.linspace(max(lowest, abs(bound), 1e-12), highest, _NUISANCE_POINTS)
    spread = 9 * np.sqrt(n * shares * (1 - shares)) + 9  # other counts have a negligible probability
    low, high = math.floor((n * shares - spread).min()), math.ceil((n * shares + spread).max())
    counts = np.arange(max(0, low), min(n, high) + 1)
    # The statistic is z(t, d) = (t - n bound) / sqrt(d + c - t²/n), with the difference t, the number d of
    # discordant questions and the pseudo-count c (``more``). For each d, z grows with t, and the sample's z
    # is negative. So z(t, d) is at most the sample's z if t is at most the smaller of the two t for which
    # z(t, d)² is the square of the sample's z.
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
    """Return a p-value of the hypothesis that the mean of losses is ``bound`` or more, by betting.

    In the test by betting (Waudby-Smith & Ramdas, JRSSB 86, 2024), a gambler bets against the hypothesis on
    one loss after another. The p-value is 1 / (the gambler's largest capital). The stakes are the paper's
    "predictable plug-in" bets. The p-value is valid for any losses within ``bounds`` whose order does not
    depend on their values.

    Args:
        losses: One loss for each question.
        bound: Allowed mean loss.
        confidence: Confidence level for which the stakes are tuned, in (0, 1).
        bounds: Smallest and largest possible loss.

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


def grouped_betting_p_value(
    losses: Floats,
    bound: float,
    groups: Groups,
    confidence: float = 0.95,
    bounds: tuple[float, float] = (-1.0, 1.0),
) -> float:
    """Return a p-value of the hypothesis that the mean of grouped losses is ``bound`` or more, by betting.

    The test of :func:`betting_p_value` gets one value for each group: the sum of loss - ``bound`` over the
    losses of the group, divided by the size of the largest group. The p-value is valid if the groups are
    independent; losses inside a group may depend on each other in any way. If there is only one group, which
    would give a single value, the losses are treated as independent. ``groups`` has the group of each loss;
    None means independent losses. For the other arguments see :func:`betting_p_value`.

    Example:
        >>> losses = np.zeros(250)
        >>> grouped_betting_p_value(losses, 0.02, None) == betting_p_value(losses, 0.02)
        True
        >>> grouped_betting_p_value(losses, 0.02, [number // 5 for number in range(250)]) > 0.05
        True
    """
    number = group_numbers(groups, len(losses))
    sizes = np.bincount(number)
    if len(sizes) in (1, len(losses)):
        return betting_p_value(losses, bound, confidence, bounds)
    beyond = np.bincount(number, losses - bound) / sizes.max()
    return betting_p_value(beyond, 0.0, confidence, (bounds[0] - bound, bounds[1] - bound))


# Abstention


class SelectedAnswer(NamedTuple):
    """An answer to show to a user, or an abstention in its place.

    Attributes:
        text: The reader's answer, or the abstention.
        abstained: Whether ``text`` is the abstention.
        probability: Probability that the reader's answer is right; None if the policy gives no probabilities.
    """

    text: str
    abstained: bool
    probability: float | None


@dataclass(frozen=True, slots=True)
class AbstentionPolicy(_Policy):
    """A threshold of uncertainty up to which answers are shown, with a guarantee on the wrong answers.

    The policy is calibrated on a sample of questions with scored answers. The guarantee bounds the share of
    wrong answers among the shown answers, for questions that are drawn like the sample. For a single
    answer, the policy estimates the probability that the answer is right.

    Attributes:
        threshold: An answer is shown if its uncertainty is at most this value. With -inf, no answer is
            shown. With inf, every answer is shown, except empty and truncated answers.
        max_risk: Largest allowed share of wrong answers among the shown answers.
        confidence: Confidence level of the guarantee.
        n: Number of questions in the sample.
        coverage: Share of the sample's questions whose answer is shown.
        risk: Share of wrong answers among the shown answers of the sample; None if no answer is shown.
        knots: Ascending uncertainties for which ``probabilities`` has the probability of a right answer;
            between two of these uncertainties, the probability is interpolated. Empty if the lower end of the
            confidence interval of ``auroc`` is at most 0.5, which is chance, or if ``auroc`` is None.
        probabilities: Probability of a right answer at each uncertainty in ``knots``.
        auroc: AUROC of the uncertainty as a detector of wrong answers; None if all answers are right or all
            are wrong. Empty and truncated answers are left out.
        possible_risk: If no guarantee was possible: the smallest ``max_risk``, in whole per cent, for which
            the same questions allow a guarantee; otherwise None.
        needed: If no guarantee was possible: about how many questions are needed for ``max_risk``; None if
            even the most certain answers are wrong too often. See :func:`calibrate_abstention`.
        scope: The scope in which the policy is valid; see :func:`scope_of`.

    Example:
        >>> policy = AbstentionPolicy(0.5, 0.1, 0.95, 100, 0.6, 0.05, (0.0, 1.0), (0.9, 0.1))
        >>> policy.select("Velm", 0.25)
        SelectedAnswer(text='Velm', abstained=False, probability=0.7)
        >>> policy.select("Orun", 0.75).text
        'I do not know.'
    """

    _HOW_TO_MAKE = (
        "make the file with calibrate_abstention(rows, max_risk=0.1).save(path), or with "
        "surerag calibrate --max-risk 0.1"
    )

    threshold: float
    max_risk: float
    confidence: float
    n: int
    coverage: float
    risk: float | None
    knots: tuple[float, ...]
    probabilities: tuple[float, ...]
    auroc: Estimate | None = None
    possible_risk: float | None = None
    needed: int | None = None
    scope: Mapping[str, str] = field(default_factory=dict)

    def select(
        self,
        answer: str,
        uncertainty: Certainty | Mapping[str, Any] | float | None,
        abstention: str = ABSTENTION,
    ) -> SelectedAnswer:
        """Return an answer, or the abstention if the answer is uncertain, empty, or an abstention itself.

        Args:
            answer: The reader's answer.
            uncertainty: The answer's certainty (a ``Certainty``, or the result of its ``to_dict``), or the
                answer's uncertainty as a number. None counts as an infinite uncertainty. So does the
                certainty of a truncated answer, and a certainty without a measured uncertainty.
            abstention: Text to return in place of a withheld answer.

        Raises:
            ConfigurationError: If the certainty's reader or settings differ from the calibration's, or an
                argument has the wrong type.
            InputError: If a mapping is not the result of ``Certainty.to_dict``.
        """
        check_kind(str, "a text", answer=answer)
        check_abstention(abstention)
        check_kind(
            Certainty | Mapping | Real | None,
            "a number, None, a Certainty or the result of Certainty.to_dict()",
            uncertainty=uncertainty,
        )
        if isinstance(uncertainty, Certainty | Mapping):
            assessed = self.assess(uncertainty)
            value = (
                assessed.uncertainty if assessed.uncertainty is not None and not assessed.is_cut else math.inf
            )
            probability = assessed.probability
        else:
            value = math.inf if uncertainty is None else uncertainty
            if math.isnan(value):
                raise ConfigurationError("uncertainty must be a number, got NaN")
            probability = self.probability_at(value)
        show = (
            math.inf > value <= self.threshold
            and bool(answer.strip())
            and not is_abstention(answer, abstention)
        )
        return SelectedAnswer(answer if show else abstention, not show, probability)

    def probability_at(self, uncertainty: float) -> float | None:
        """Return the probability that an answer with this uncertainty is right; None if it is unknown."""
        if uncertainty == math.inf:
            return 0.0
        return float(np.interp(uncertainty, self.knots, self.probabilities)) if self.knots else None

    def assess(self, certainty: Certainty | Mapping[str, Any]) -> Certainty:
        """Return a copy of a certainty, with the probability that the answer is right.

        The result of ``Certainty.to_dict`` can be passed in place of a ``Certainty``. The copy has the
        calibration's measure. If the copy has no probability, its ``reason`` says why.

        Raises:
            ConfigurationError: If the certainty's reader or settings differ from the calibration's.
        """
        if not isinstance(certainty, Certainty):
            certainty = Certainty.from_dict(certainty)
        self.check(certainty)
        if "gate" in self.scope and "measure" not in self.scope:
            raise ConfigurationError(
                "the policy was calibrated with the uncertainty by which a method searches or rewrites, and "
                "not with the certainty of final answers",
                hint="calibrate with rows of CalibrationRow.of(certainty, score)",
            )
        if not certainty.uncertainties:
            return certainty
        certainty = certainty.by(self.scope.get("measure") or certainty.measure)
        if certainty.uncertainty is None:
            return certainty
        if certainty.is_cut:
            return replace(certainty, probability=None, reason="the answer was cut off")
        probability = self.probability_at(certainty.uncertainty)
        return replace(
            certainty, probability=probability, reason="" if probability is not None else self.withheld
        )

    @property
    def withheld(self) -> str:
        """Why the policy does not estimate the probability that an answer is right; empty if it does."""
        if self.knots:
            return ""
        if self.auroc is None:
            return "it is not known whether certainty predicts wrong answers"
        return indication_text(self.auroc, self.auroc.n)

    @property
    def guarantee(self) -> str:
        """A sentence that states the guarantee and the coverage."""
        if self.threshold == -math.inf:
            return (
                f"no guarantee is possible with {counted(self.n, 'question')}: with every threshold, more "
                f"than {100 * self.max_risk:g} % of the answers given may be wrong, at confidence "
                f"{self.confidence:g}. This policy never answers.{self._remedy}"
            )
        return (
            f"at most {100 * self.max_risk:g} % of the answers given are wrong, at confidence "
            f"{self.confidence:g}, from {counted(self.n, 'question')}, of which "
            f"{100 * self.coverage:.0f} % are answered."
        )

    @property
    def _remedy(self) -> str:
        if self.possible_risk is None:
            return ""
        at_present = (
            f" With the same questions, the smallest possible max_risk is {self.possible_risk:g}. "
            f"For max_risk={self.max_risk:g}, "
        )
        if self.needed is None:
            return f"{at_present}more questions would not help: even the surest answers are too often wrong."
        return f"{at_present}at least about {self.needed:,} questions of this kind are needed."


def calibrate_abstention(
    rows: Sequence[CalibrationRow] | HasCertaintyRows,
    *,
    max_risk: float,
    confidence: float = 0.95,
    component: Any = None,
) -> AbstentionPolicy:
    """Return the policy that shows the most answers, of which at most a share of ``max_risk`` may be wrong.

    The policy works with any pipeline. The threshold comes from Learn then Test with a fixed sequence: the
    uncertainties of the sample are tested as thresholds, in ascending order, each with a binomial test at
    90 % of the significance level, until a test fails. (Geifman & El-Yaniv, NeurIPS 2017, split the level
    among the thresholds.) A threshold is skipped if it would show so few answers that a single wrong answer
    fails the test. The other 10 % of the level are spent on one test of the policy that shows all answers.
    If the share of wrong answers grows with uncertainty, the guarantee holds at the confidence level.
    Otherwise, the guarantee may fail more often; ``python -m studies.levels`` simulates how often.

    The probability that an answer is right comes from an isotonic regression. If the regression predicts
    held-out folds badly, the probabilities are shrunk towards the share of right answers. Folds keep the rows
    of a group together. The policy gives no probabilities if the lower end of the confidence interval of the
    AUROC is at most 0.5, which is chance, or if all answers are right or all are wrong.

    If no threshold passes, a warning says so, and says what would help: a larger ``max_risk``, or more
    questions. The number of questions is an estimate. It assumes that the measured shares of wrong answers
    hold, among all answers and among the most certain answers. With twice as many questions, the first test
    concerns a share of the answers that is half as large and more certain. So the estimate looks for the
    largest share, of at least a tenth, that has few enough wrong answers to pass this test in half of all
    samples. Since this share is chosen by its wrong answers, more questions are often needed.

    Args:
        rows: One row for each answer, or a run of :func:`surerag.evaluate` in which one system's answers have
            a certainty. For a run with several such systems, pass ``run.certainty_rows("plain")``. A row has
            the uncertainty of the answer and, in the field ``score_without``, the score of the answer, as in
            the result of ``CalibrationRow.of(certainty, score)``. An answer with a score of 0.5 or more
            counts as right.
        max_risk: Largest allowed share of wrong answers among the shown answers, in (0, 1).
        confidence: Confidence level of the guarantee, in (0, 1).
        component: The method that will use the policy, or the method's scope; None if the rows have a scope.

    Raises:
        ConfigurationError: If ``max_risk`` or ``confidence`` is out of range.
        InputError: If there are no rows, no row has a score, no uncertainty is finite, or the rows come from
            different readers, measures or settings.
        MissingExtraError: If scipy is not installed.

    Warns:
        CalibrationWarning: If no guarantee is possible, if less than 5 % of the answers are right, if all
            answers are right, or if rows without a score are left out.

    Example:
        >>> rows = [CalibrationRow(number / 200, score_without=number < 160) for number in range(200)]
        >>> policy = calibrate_abstention(rows, max_risk=0.1)
        >>> policy.threshold, round(policy.coverage, 2), policy.probability_at(0.2) > 0.9
        (0.845, 0.85, True)
        >>> policy = calibrate_abstention(rows[::5], max_risk=0.1)
        >>> policy.threshold, policy.n, policy.possible_risk, policy.needed
        (-inf, 40, 0.14, 57)
    """
    _check_share("max_risk", max_risk)
    _check_share("confidence", confidence)
    rows = rows.certainty_rows() if hasattr(rows, "certainty_rows") else list(rows)
    rows = _scored(rows, "score_without")
    uncertainty, scores, _ = _sample(rows)
    n, right = len(scores), scores >= 0.5
    if not np.isfinite(uncertainty).any():
        raise InputError(
            f"all {n} uncertainties are infinite; an empty or truncated answer has an infinite uncertainty",
            hint="look at some answers; max_tokens may be too small, or the passages may lack the answers",
        )
    groups = group_numbers([row.group for row in rows], n)
    answered_at = _answered_at(uncertainty, right, groups)
    threshold = _threshold_of_risk(uncertainty, answered_at, max_risk, 1 - confidence)
    possible_risk = needed = None
    if threshold == -math.inf:
        possible_risk = _possible_risk(uncertainty, answered_at, max_risk, 1 - confidence)
        needed = _needed_for_risk(uncertainty, right, groups, max_risk, 1 - confidence)
    answered = (uncertainty <= threshold) & np.isfinite(uncertainty)
    words = np.isfinite(uncertainty)
    area = auroc(uncertainty[words], right[words], groups[words], confidence=confidence)
    if right[words].all():
        warnings.warn(
            f"all answers to {counted(n, 'question')} are right, so the sample does not show which answers "
            "to withhold: add questions that the documents do not answer, with the reference "
            '"I do not know."',
            CalibrationWarning,
            stacklevel=2,
        )
    knots, probabilities = _probabilities(uncertainty[words], right[words], groups[words], area)
    policy = AbstentionPolicy(
        threshold=threshold,
        max_risk=max_risk,
        confidence=confidence,
        n=n,
        coverage=float(answered.mean()),
        risk=float((~right[answered]).mean()) if answered.any() else None,
        knots=knots,
        probabilities=probabilities,
        auroc=area,
        possible_risk=possible_risk,
        needed=needed,
        scope={**_common_scope(rows), **scope_of(component)},
    )
    if threshold == -math.inf:
        warnings.warn(policy.guarantee, CalibrationWarning, stacklevel=2)
    return policy


def _common_scope(rows: Sequence[CalibrationRow]) -> dict[str, str]:
    scope: dict[str, str] = {}
    for row in rows:
        for part, value in row.scope.items():
            if scope.setdefault(part, value) != value:
                raise InputError(
                    f"the rows belong to more than one {part}: {scope[part]!r} and {value!r}",
                    hint="calibrate with the rows of one reader, measure and setting at a time",
                )
    return scope


def _probabilities(
    uncertainty: Floats, right: NDArray[np.bool_], groups: NDArray[np.intp], area: Estimate | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if area is None or area.interval is None or area.interval.lower <= 0.5:
        return (), ()
    n, share = len(right), float(right.mean())
    knots, fitted = _isotonic(uncertainty, right)
    probabilities = share + _slope(uncertainty, right, groups) * (fitted - share)
    probabilities = np.clip(probabilities, 1 / (n + 2), (n + 1) / (n + 2))
    changes = np.append(True, probabilities[1:] != probabilities[:-1])
    ends = changes | np.append(changes[1:], True)  # first and last point of each constant stretch
    return tuple(knots[ends].tolist()), tuple(probabilities[ends].tolist())


def _isotonic(uncertainty: Floats, right: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    with extra("evaluation"):
        from scipy.optimize import isotonic_regression
    at = _threshold_sums(uncertainty, right.astype(np.float64))
    counts, sums = np.diff(at.skipped, prepend=0), np.diff(at.repaired, prepend=0.0)
    fitted: Floats = isotonic_regression(sums / counts, weights=counts, increasing=False).x
    return at.thresholds, fitted


def _slope(uncertainty: Floats, right: NDArray[np.bool_], groups: NDArray[np.intp]) -> float:
    # This is the slope of a regression of outcomes on predictions from the other folds of the questions.
    rng = np.random.default_rng(0)
    covariance = variance = 0.0
    for _ in range(_ROUNDS):
        fold = (rng.permutation(groups.max() + 1) % _FOLDS)[groups]
        for part in range(_FOLDS):
            others, own = fold != part, fold == part
            if not others.any() or not own.any():
                continue
            share = right[others].mean()
            predicted = np.interp(uncertainty[own], *_isotonic(uncertainty[others], right[others])) - share
            covariance += float(predicted @ (right[own] - share))
            variance += float(predicted @ predicted)
    return min(max(covariance / variance, 0.0), 1.0) if variance else 0.0


_Answered = Callable[[float, float], tuple[float, float]]


def _answered_at(uncertainty: Floats, right: NDArray[np.bool_], groups: NDArray[np.intp]) -> _Answered:
    alike = group_correlation(right, groups)

    @cache
    def answered_at(threshold: float, level: float) -> tuple[float, float]:
        """Return the effective number of answers at or below a threshold, and the share of wrong answers."""
        answered = uncertainty <= threshold
        wrong = ~right[answered]
        return effective_size(wrong, groups[answered], 1 - 2 * level, alike), float(wrong.mean())

    return answered_at


def _threshold_of_risk(uncertainty: Floats, answered_at: _Answered, max_risk: float, level: float) -> float:
    def certified(threshold: float, level: float) -> tuple[bool, float]:
        n, wrong = answered_at(threshold, level)
        return _binomial_cdf(n * wrong, n, max_risk) <= level, n

    if certified(math.nextafter(math.inf, 0), _LEVEL_OF_ALL * level)[0]:  # all answers but empty ones
        return math.inf
    level *= 1 - _LEVEL_OF_ALL
    first = _first_size(max_risk, level)
    best = -math.inf
    for threshold in np.unique(uncertainty[np.isfinite(uncertainty)]).tolist():
        holds, size = certified(threshold, level)
        if size < first:
            continue
        if not holds:
            break
        best = threshold
    return best


def _first_size(max_risk: float, level: float) -> int:
    first = _ERRORS_AT_FIRST + 1
    while _binomial_cdf(_ERRORS_AT_FIRST, first, max_risk) > level:
        first += 1
    return first


def check_policy(policy: object) -> None:
    """Raise ConfigurationError unless ``policy`` is an ``AbstentionPolicy`` or None."""
    match policy:
        case str() | Path():
            hint = f'load the policy first: AbstentionPolicy.load("{policy}")'
        case Mapping():
            hint = "make a policy of these values first: AbstentionPolicy.from_dict(values)"
        case _:
            hint = "pass the result of surerag.calibrate_abstention, or of AbstentionPolicy.load"
    check_kind(AbstentionPolicy | None, "an AbstentionPolicy or None", hint=hint, policy=policy)


def order_hint(first: str, argument: object) -> str:
    """Return a hint for an argument that should be ``first``; empty unless the argument is a policy."""
    return f"pass first the {first}, and then the policy" if isinstance(argument, AbstentionPolicy) else ""


def _possible_risk(
    uncertainty: Floats, answered_at: _Answered, max_risk: float, level: float
) -> float | None:
    for percent in range(math.floor(100 * max_risk) + 1, 100):
        if _threshold_of_risk(uncertainty, answered_at, percent / 100, level) > -math.inf:
            return percent / 100
    return None


def _needed_for_risk(
    uncertainty: Floats, right: NDArray[np.bool_], groups: NDArray[np.intp], max_risk: float, level: float
) -> int | None:
    with extra("evaluation"):
        from scipy.special import betaincinv
    # The docstring of calibrate_abstention has the reason for this estimate.
    at, n = _threshold_sums(uncertainty, right.astype(np.float64)), len(right)
    wrong = 1 - at.repaired / at.skipped  # share of wrong answers at or below each threshold
    effect = n / effective_size(~right, groups, 1 - 2 * level)
    first = effect * (size := _first_size(max_risk, (1 - _LEVEL_OF_ALL) * level))
    at_most = 1 - betaincinv(size - _ERRORS_AT_FIRST, _ERRORS_AT_FIRST + 1, 0.5)
    enough = (wrong <= at_most) & (at.skipped >= n / 10) & (at.skipped < first)
    sizes = [first * n / float(count) for count in at.skipped[enough][-1:]]
    if (share := float(wrong[-1])) < max_risk:
        answered = float(size)
        while _binomial_cdf(share * answered, answered, max_risk) > _LEVEL_OF_ALL * level:
            answered *= 1.02
        sizes.append(effect * answered * n / float(at.skipped[-1]))
    return math.ceil(min(sizes)) if sizes else None


def _binomial_cdf(count: float, n: float, share: float) -> float:
    with extra("evaluation"):
        from scipy.special import betainc
    # The incomplete beta function also accepts fractions, which effective sample sizes are.
    return 1.0 if count >= n else float(betainc(n - count, count + 1, 1 - share))
