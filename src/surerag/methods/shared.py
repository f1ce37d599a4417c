"""Functions that several methods use: checks of inputs and replies, thresholds, and limits on calls."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainSerializer

from surerag.certainty import Certainty, certainty_of
from surerag.effects import ENTAILMENT, Embed, Entail, Program, TextKind, emit, perform
from surerag.errors import (
    MISCONFIGURED,
    CapabilityError,
    ConfigurationError,
    InputError,
    LogprobsError,
    ServiceError,
    check_items,
    kind_of,
)
from surerag.measures import same_answer
from surerag.messages import Generation, Pair, Passage, Result, TokenTrace
from surerag.readers.protocol import Reader
from surerag.services import checked_vectors
from surerag.signatures import TypeText

Needs = Literal["text", "logprobs", "entropy", "energy"]
"""The part of an answer from which a gate or a metric is computed."""
AnswerTokensOption = Annotated[int | None, Field(ge=1)]
"""Type of the option ``max_tokens`` of methods that answer questions; None means the reader's own limit."""
N_SAMPLES = 5
"""Default number of answers that the L-RAG gate ``"semantic_entropy"`` samples."""
MUST_RAISE = (*MISCONFIGURED, InputError)
"""Errors of a wrongly built or wrongly called pipeline; methods always raise them, without a fallback."""


# Results


@dataclass(frozen=True)
class AnswerResult(Result):
    """An answer and the passages in the prompt of this answer."""

    answer: str
    passages: tuple[Passage, ...]
    generation: Generation

    @property
    def certainty(self) -> Certainty:
        """How sure the reader was of the answer: all measures from the answer's log-probabilities."""
        return certainty_of(self.generation.trace, is_cut=self.generation.is_cut)


# Inputs


def check_passages(passages: object) -> None:
    """Raise InputError unless ``passages`` is a list of ``Passage`` objects; the list may be empty."""
    if not isinstance(passages, Sequence) or isinstance(passages, str):
        raise InputError(
            f"a context is a list of passages, got {kind_of(passages)}",
            hint="pass a list, such as list(passages)",
        )
    hint = "make a passage with surerag.Passage(text); pass a framework's documents to its own components"
    check_items(Passage, passages, hint)


# A user's own functions, in place of a gate or a metric


def checked_number(value: object, owner: str) -> float:
    """Return the value of a user's function as a float; infinity is allowed.

    Raises:
        ConfigurationError: If the value is not a number, or is NaN. ``owner`` is the function's name in the
            message.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or math.isnan(value):
        raise ConfigurationError(
            f"{owner} returned {value!r}, not a number",
            hint="return a number for every answer, larger for a less certain answer",
        )
    return float(value)


# Log-probabilities of a reader


def check_reports(reader: Reader, needs: Needs, owner: str, of_text: str, of_logprobs: str) -> None:
    """Raise CapabilityError unless a reader reports what a gate or metric needs, such as log-probabilities.

    ``owner`` is the name of the gate or metric. The error's hint recommends ``of_text``, a setting
    that needs only the answer's text, such as ``gate="abstention"``. If the reader returns log-probabilities,
    the hint also recommends ``of_logprobs``, a setting that needs only log-probabilities.
    """
    can = reader.capabilities
    able = {"text": True, "logprobs": can.logprobs, "entropy": can.entropy is not None, "energy": can.energy}
    if able[needs]:
        return
    missing = {"logprobs": "log-probabilities", "entropy": "entropies", "energy": "the logits' log-sum-exp"}
    lacks = "returns no top log-probabilities" if needs == "entropy" else "returns none"
    alternative = f", or {of_logprobs}" if can.logprobs else ""
    # Readers that wrap a client may know which model to recommend.
    advice = "" if can.logprobs else getattr(reader, "advice", "")
    raise CapabilityError(
        f"{owner} needs {missing[needs]}, but {getattr(reader, 'described', reader.name)} "
        f"{lacks if can.logprobs else 'returns no log-probabilities'}",
        hint=advice
        or f"pass {of_text}, which needs only text{alternative}; or use a local model "
        "(TransformersReader), or a server that returns top log-probabilities",
    )


def trace_of(generation: Generation, of_text: str) -> TokenTrace:
    """Return the trace (log-probabilities) of a generation, or raise LogprobsError if there is no trace.

    The error's hint recommends ``of_text``, a setting that needs only text.
    """
    if generation.trace is None:
        raise LogprobsError(
            "an answer came back without log-probabilities",
            hint=f"use a reader that reports log-probabilities, or {of_text}",
        )
    return generation.trace


# Thresholds


@runtime_checkable
class CalibratedThreshold(Protocol):
    """Protocol of a calibrated threshold, such as :class:`surerag.calibration.ThresholdPolicy`."""

    threshold: float

    def check(self, component: Any) -> None:
        """Raise ConfigurationError unless the threshold was calibrated for this component."""


def _checked_threshold(value: Any) -> Any:
    if hasattr(value, "select"):
        raise ConfigurationError(
            f"{kind_of(value)} decides which answers to withhold, not when to retrieve or rewrite",
            hint="pass a ThresholdPolicy, from surerag.calibrate_threshold",
        )
    if value is None or isinstance(value, CalibratedThreshold):
        return value
    if value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or math.isnan(value):
        raise ConfigurationError(
            f"threshold must be a number, a ThresholdPolicy or None, got {value!r}",
            hint="pass a number; -math.inf and math.inf are allowed",
        )
    return float(value)


def _plain_threshold(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    number = getattr(value, "threshold", value)
    # JSON has no infinity: pydantic would write null, which means the default threshold.
    return str(number) if isinstance(number, float) and math.isinf(number) else number


ThresholdOption = Annotated[
    Any,
    BeforeValidator(_checked_threshold),
    PlainSerializer(_plain_threshold),
    TypeText("float | ThresholdPolicy | None"),
]
"""Type of the option ``threshold``: a number, a calibrated ``ThresholdPolicy``, or None for the default."""


def threshold_value(threshold: Any, default: float | None, owner: str) -> float:
    """Return the option ``threshold`` as a number, or ``default`` if the option is None.

    Raises:
        ConfigurationError: If the option and the default are None. ``owner`` is the name of the gate or
            metric in the message.
    """
    value = _checked_threshold(default if threshold is None else getattr(threshold, "threshold", threshold))
    if value is None:
        raise ConfigurationError(
            f"{owner} has no default threshold", hint="pass threshold=…, or calibrate one"
        )
    return float(value)


def check_threshold(threshold: Any, component: Any) -> None:
    """Raise ConfigurationError if a threshold was calibrated for another component; accept any number."""
    if isinstance(threshold, CalibratedThreshold):
        threshold.check(component)


# Sampled answers


def meaning_clusters(answers: Sequence[str]) -> list[int]:
    """Group short answers by meaning, and return the index of each answer's cluster.

    Two answers have the same meaning if the words of one answer occur in the other as one sequence. Each
    answer joins the first cluster whose first member has the same meaning, or starts a new cluster. Indices
    count from 0.

    Example:
        >>> meaning_clusters(["Velm", "in Velm", "Orun"])
        [0, 0, 1]
    """
    firsts: list[str] = []
    clusters = []
    for answer in answers:
        cluster = next((at for at, first in enumerate(firsts) if same_answer(first, answer)), len(firsts))
        if cluster == len(firsts):
            firsts.append(answer)
        clusters.append(cluster)
    return clusters


def typical_sample(samples: Sequence[Generation], clusters: Sequence[int]) -> Generation:
    """Return the first answer of the largest cluster.

    If several clusters are equally large, the cluster with the lowest index is used.

    Example:
        >>> typical_sample([Generation(text) for text in ("Orun", "Velm", "in Velm")], [0, 1, 1]).text
        'Velm'
    """
    return samples[list(clusters).index(int(np.bincount(clusters).argmax()))]


# Checks of the replies of services

MAX_UNUSABLE = 0.1
"""Maximum share of an entailer's replies that may be unusable; above it, :func:`judge` raises an error."""
Probabilities = NDArray[np.float64]


class Judgements(NamedTuple):
    """An entailer's judgements of pairs of statements.

    Attributes:
        rows: For each (premise, hypothesis), the probabilities of contradiction, neutral and entailment; all
            zeros if the entailer's reply could not be used.
        unusable: Number of pairs whose reply could not be used.
    """

    rows: Mapping[tuple[str, str], Probabilities]
    unusable: int = 0

    def entails(self, premise: str, hypothesis: str) -> bool:
        """Return whether a premise entails a hypothesis; False if the entailer's reply could not be used."""
        return bool(self.rows[premise, hypothesis].argmax() == ENTAILMENT)

    def equivalent(self, first: str, second: str, threshold: float | None = None) -> bool:
        """Return whether two statements entail each other (SePer, Definition 2).

        Without ``threshold``, entailment must be the most likely label in both directions. Otherwise the
        probability of entailment must be at least ``threshold`` (τ) in both directions. An empty statement is
        equivalent only to an empty statement.
        """
        if first == second or not first or not second:
            return first == second
        if threshold is None:
            return self.entails(first, second) and self.entails(second, first)
        directions = self.rows[first, second], self.rows[second, first]
        return bool(min(row[ENTAILMENT] for row in directions) >= threshold)


def judge(pairs: Sequence[Pair]) -> Program[Judgements]:
    """Send pairs of statements to the entailer, and return its judgements.

    Raises:
        ServiceError: If the entailer does not return three probabilities for each pair, or more than 10 % of
            its replies cannot be used.
    """
    if not pairs:
        return Judgements({})
    rows = np.asarray((yield from perform(Entail(pairs))), dtype=np.float64)
    if rows.shape != (len(pairs), 3) or not np.isfinite(rows).all():
        raise ServiceError(
            f"expected {len(pairs)} rows of three finite probabilities, got an array of shape {rows.shape}",
            hint="let the entailer return contradiction, neutral and entailment for each pair",
        )
    unusable = int((rows.sum(axis=1) == 0).sum())
    if unusable > MAX_UNUSABLE * len(pairs):
        raise ServiceError(
            f"{unusable} of {len(pairs)} replies of the entailer do not name exactly one of entailment, "
            "contradiction and neutral, so they cannot be used to measure",
            hint="judge with NLIEntailer.from_pretrained(…), or with a larger model in JudgeEntailer(reader)",
        )
    by_pair = {(pair.premise, pair.hypothesis): row for pair, row in zip(pairs, rows, strict=True)}
    return Judgements(by_pair, unusable)


def embed_unit(texts: Sequence[str], kind: TextKind) -> Program[NDArray[np.float64]]:
    """Embed texts, and return a vector of Euclidean length 1 for each text; raise ServiceError on failure."""
    return unit_vectors((yield from perform(Embed(texts, kind))), len(texts))


def unit_vectors(rows: Any, count: int) -> NDArray[np.float64]:
    """Return vectors scaled to Euclidean length 1.

    Raises:
        ServiceError: If the number of vectors is not ``count``, or a value is not finite.
    """
    return unit_rows(checked_vectors(rows, count, np.float64))


def unit_rows(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rows of an array scaled to Euclidean length 1; zero rows stay zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float64] = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return unit


# Questions of yes or no

_YES_OR_NO = re.compile(r"\b(yes|no)\b", re.IGNORECASE)


def is_yes(reply: str) -> bool | None:
    """Return True for a reply with the word "yes", False for "no"; None for neither word or both words.

    Example:
        >>> is_yes("**Yes.** It does."), is_yes("No, it lacks the year"), is_yes("Perhaps")
        (True, False, None)
    """
    words = {word.lower() for word in _YES_OR_NO.findall(reply)}
    return words.pop() == "yes" if len(words) == 1 else None


def yes_probability(reply: Generation) -> float | None:
    """Return the probability that a model says "yes", from its greedy reply to a yes-no question.

    Let p be the probability of the reply's first token that is "yes" or "no"; without log-probabilities, p is
    1. Return p for "yes", and 1 − p for "no". If p is below 1/2, take 1/2 in place of p, because greedy
    decoding writes the likelier word. Return None if the reply contains neither word or both words.

    Example:
        >>> from surerag.messages import TokenTrace
        >>> trace = TokenTrace(("No", "."), (math.log(0.75), -0.1))
        >>> yes_probability(Generation("No.", trace=trace)), yes_probability(Generation("Yes"))
        (0.25, 1.0)
        >>> yes_probability(Generation("No.", trace=TokenTrace(("No", "."), (math.log(0.25), -0.1))))
        0.5
    """
    if (yes := is_yes(reply.text)) is None:
        return None
    steps = () if reply.trace is None else zip(reply.trace.tokens, reply.trace.logprobs, strict=True)
    says = next((math.exp(logprob) for token, logprob in steps if is_yes(token) is not None), 1.0)
    says = max(says, 0.5)
    return says if yes else 1 - says


# Limits on calls


class CallBudget:
    """Counts the model calls for one question, and limits their number.

    Attributes:
        limit: Maximum number of calls; None for no limit.
        spent: Number of calls so far.
        exhausted: Whether a step was skipped because too few calls were left.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.spent = 0
        self.exhausted = False

    @property
    def left(self) -> float:
        """Number of remaining calls; infinite if there is no limit."""
        return math.inf if self.limit is None else max(self.limit - self.spent, 0)

    def spend(self, calls: int) -> None:
        """Add ``calls`` to the number of calls so far."""
        self.spent += calls

    def affords(self, calls: int) -> bool:
        """Return whether ``calls`` more calls are allowed; if not, set ``exhausted``."""
        self.exhausted = self.exhausted or calls > self.left
        return calls <= self.left

    def warn(self, method: str, question: str) -> Program[None]:
        """Emit the warning ``{method}.out_of_calls`` if a step was skipped for lack of calls."""
        if self.exhausted:
            yield from emit(
                f"{method}.out_of_calls",
                warning=True,
                question=question,
                max_calls=self.limit,
                calls=self.spent,
            )
