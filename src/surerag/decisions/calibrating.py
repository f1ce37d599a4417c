"""A policy from rows: which promise was asked for, whether the sample can give it, and what it is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from surerag.decisions.gain import Gain, gain_at
from surerag.decisions.policy import Identity, Policy, Scored, Target, Verdict
from surerag.decisions.rows import DecisionRow, Outcomes, Sample, sample_of
from surerag.decisions.search import bounded_loss, bounded_rate, questions_needed
from surerag.decisions.walking import steps_of
from surerag.errors import ConfigurationError, InputError

OnInfeasible = Literal["always", "never", "raise"]

RULES: dict[Target, str] = {
    "loss": "Learn then Test, ascending fixed sequence, exact paired test (betting for graded scores)",
    "budget": "exact binomial test, descending fixed sequence",
    "both": "Learn then Test on loss and on rate, each at half the level",
    "best": "best mean score on the sample",
}


@runtime_checkable
class Decides(Protocol):
    """What is calibrated: a component, which knows its signal, model and prompts."""

    @property
    def identity(self) -> Identity:
        """What a calibration belongs to."""


def calibrate(
    of: Decides | str,
    rows: Sequence[DecisionRow],
    *,
    target: Target = "loss",
    max_loss: float = 0.02,
    budget: float | None = None,
    confidence: float = 0.95,
    on_infeasible: OnInfeasible = "always",
    scored: Scored = "gold answers",
) -> Policy:
    """Return a policy with a promise, from questions whose answers with and without acting were judged.

    - ``"loss"``: as few actions as possible, losing at most ``max_loss`` against always acting.
    - ``"budget"``: as many actions as possible, on at most the share ``budget`` of questions. Rows need no
      gold answers; then nothing is promised about answers.
    - ``"both"``: both bounds hold together at ``confidence``.
    - ``"best"``: the largest mean score on the sample, as papers choose their thresholds: no promise.

    The bounds are of finite samples, by Learn then Test (arXiv 2110.01052): no normal approximation, no
    assumption about the signal. See :mod:`surerag.decisions.search`, and :class:`Policy` for what a promise
    is about.

    Args:
        of: A component, or the name of a signal in the rows; then nobody knows of which model it is.
        rows: One a question, drawn like those that will be asked. The papers take 100; a bound of 2 points at
            0.95 takes 150 at the very least.
        target: What to promise.
        max_loss: Allowed loss of mean score, in (0, 1].
        budget: Allowed share of questions that act, in [0, 1].
        confidence: In (0, 1).
        on_infeasible: What to do where no threshold can be certified: ``"always"`` act, ``"never"``, or
            ``"raise"``. Where only a budget was asked for, ``"always"`` never acts, which keeps it.
        scored: What the rows' scores are: by gold answers, or ``"agreement"`` with the answer after acting,
            which is then 1 in ``correct_with``. The policy says which.

    Raises:
        ConfigurationError: If a bound is out of range, or missing.
        InputError: If there are no rows, a row lacks the signal or a label, or (with ``"raise"``) nothing can
            be certified; the message says about how many questions would do.

    Example:
        >>> rows = [DecisionRow({"entropy": i}, i < 300, True) for i in range(400)]
        >>> policy = calibrate("entropy", rows, max_loss=0.02)
        >>> policy.verdict, policy.rate, policy.loss
        ('holds', 0.2425, 0.0075)
    """
    _check(target, max_loss, budget, confidence, on_infeasible, scored)
    signal, identity = _signal_and_identity(of, rows)
    return policy_of(
        identity,
        sample_of(rows, signal),
        target=target,
        max_loss=max_loss,
        budget=budget,
        confidence=confidence,
        on_infeasible=on_infeasible,
        scored=scored,
    )


def policy_of(
    identity: Identity,
    sample: Sample,
    *,
    target: Target,
    max_loss: float,
    budget: float | None,
    confidence: float,
    on_infeasible: OnInfeasible,
    scored: Scored,
) -> Policy:
    """Return :func:`calibrate`'s policy from arrays, of which nothing is copied row by row.

    Raises:
        ConfigurationError: If a bound is out of range, or missing.
        InputError: If answers were not judged, or (with ``"raise"``) nothing can be certified.
    """
    _check(target, max_loss, budget, confidence, on_infeasible, scored)
    signals, outcomes, costs, unjudged = sample
    n = len(signals)
    level = (1 - confidence) / (2 if target == "both" else 1)
    threshold: float | None
    needed = None
    if target == "budget":
        threshold = bounded_rate(signals, budget or 0.0, level)
        if threshold == math.inf and budget:
            threshold, needed = None, _needed_for_rate(budget, level)
    elif outcomes is None:
        raise InputError(
            f"{unjudged} of {n} rows were not judged", hint="give gold answers, or ask for a budget only"
        )
    elif target == "best":
        threshold = _best(signals, outcomes)
    else:
        threshold = bounded_loss(signals, outcomes, max_loss, level)
        if target == "both" and bounded_rate(signals, budget or 0.0, level) > threshold:
            threshold = -math.inf
        if threshold == -math.inf:
            needed = questions_needed(signals, outcomes, max_loss, level)
            threshold = None
    if threshold is None and on_infeasible == "raise":
        more = f"about {needed:,} would be needed" if needed else "no number of such questions would do"
        raise InputError(
            f"no threshold can be certified at n = {n}; {more}",
            hint="take more questions, allow a larger loss or budget, or lower the confidence",
        )
    fallback = -math.inf if on_infeasible == "always" and target != "budget" else math.inf
    at = fallback if threshold is None else threshold
    acts = signals > at
    gain = None if outcomes is None else gain_at(signals, outcomes, at, confidence)
    spent = float(costs.sum(dtype=np.float64))
    return Policy(
        threshold=at,
        target=target,
        max_loss=max_loss if target in ("loss", "both") else None,
        budget=budget if target in ("budget", "both") else None,
        confidence=confidence,
        n=n,
        rate=float(acts.mean()),
        loss=None if outcomes is None else float(outcomes.benefit.sum(where=~acts)) / n,
        gain=gain,
        verdict=_verdict(target, threshold, gain),
        needed=needed,
        rule=RULES[target],
        cost=float(costs.sum(where=acts, dtype=np.float64)) / spent if spent else None,
        identity=identity,
        scored=scored,
    )


def _verdict(target: Target, threshold: float | None, gain: Gain | None) -> Verdict:
    if threshold is None:
        return "infeasible"
    if target == "best":
        return "no promise"
    # An unlabelled budget holds, and nothing more is said of it.
    return "holds" if gain is None or gain.lower > 0 else "no gain shown"


def _best(signals: NDArray[np.float64], outcomes: Outcomes) -> float:
    """Return the threshold with the largest mean score; of equals the one that acts least."""
    steps = steps_of(signals, outcomes)
    loss = np.append(0.0, steps.loss)
    at = len(loss) - 1 - int(np.argmin(np.round(loss[::-1], 12)))
    return float(np.append(-math.inf, steps.thresholds)[at])


def _needed_for_rate(budget: float, level: float) -> int:
    """Return how many questions the first step of the test of a rate takes."""
    return math.ceil(math.log(level) / math.log1p(-budget))


def _signal_and_identity(of: Decides | str, rows: Sequence[DecisionRow]) -> tuple[str, Identity]:
    if isinstance(of, str):
        return of, Identity(signal=of)
    if not isinstance(of, Decides):
        raise ConfigurationError(
            f"expected a component or the name of a signal, got {type(of).__name__}",
            hint='pass a LazyRAG, an UncertaintyRewriter, or "perplexity"',
        )
    return of.identity.signal, of.identity


def _check(
    target: str, max_loss: float, budget: float | None, confidence: float, on_infeasible: str, scored: str
) -> None:
    for name, value, choices in (
        ("target", target, get_args(Target)),
        ("on_infeasible", on_infeasible, get_args(OnInfeasible)),
        ("scored", scored, get_args(Scored)),
    ):
        if value not in choices:
            raise ConfigurationError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    if target in ("loss", "both") and not 0 < max_loss <= 1:
        raise ConfigurationError(
            f"max_loss must be in (0, 1], got {max_loss!r}", hint="no finite sample shows a loss of exactly 0"
        )
    if target in ("budget", "both") and not (budget is not None and 0 <= budget <= 1):
        raise ConfigurationError(f"the target {target!r} needs a budget in [0, 1], got {budget!r}")
    if target not in ("budget", "both") and budget is not None:
        raise ConfigurationError(
            f"the target {target!r} reads no budget", hint='pass target="budget", or target="both"'
        )
    if not 0 < confidence < 1:
        raise ConfigurationError(f"confidence must be in (0, 1), got {confidence!r}")
