"""Gates against each other: what each one knows, costs and gains where all retrieve equally often."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surerag import DisagreementGate, FirstPass, Gate, LazyRAG, MarginGate
from surerag.drivers.progress import Stages
from surerag.evaluation.differences import PairedDifference, paired_difference
from surerag.evaluation.gate import Answers
from surerag.evaluation.gate.asking import ask, signal
from surerag.evaluation.statistics import Estimate, Proportion, auroc, share
from surerag.methods.lazy_rag.result import LazyRAGResult

RATES = (0.25, 0.5, 0.75)
SAMPLES = (3, 5, 10)


@dataclass(frozen=True, slots=True)
class AtRate:
    """A gate where a given share of the questions retrieves.

    Attributes:
        rate: The share.
        accuracy: Expected share of right answers; of questions that tie at the boundary as many retrieve as
            it takes, whichever they are.
        against_entropy: Accuracy less that of the entropy gate, on the same questions.
        against_random: Accuracy less that of retrieving for as many questions drawn at random, each answered
            by the same first pass.
    """

    rate: float
    accuracy: float
    against_entropy: PairedDifference
    against_random: PairedDifference


@dataclass(frozen=True, slots=True)
class GateRow:
    """A gate, on the questions of the study.

    Attributes:
        name: Of the gate.
        signal: What it compares with its threshold.
        samples: Answers that it samples.
        first: Right answers where it never opens: of the greedy answer, or of the samples' largest cluster.
        separation: Probability that its signal is larger for a wrong first answer than for a right one; None
            where all are right, or all wrong.
        levels: Distinct values of the signal: what there is to set a threshold between.
        calls: Mean number of answers, or beginnings of one, that a decision costs.
        tokens: Mean number of tokens generated until then.
        rates: The gate where given shares of the questions retrieve.
    """

    name: str
    signal: str
    samples: int
    first: Proportion
    separation: Estimate | None
    levels: int
    calls: float
    tokens: float
    rates: tuple[AtRate, ...]


@dataclass(frozen=True, slots=True)
class Passed:
    """What a gate made of each question's first pass.

    Attributes:
        name: Of the gate.
        signal: What it compares with its threshold.
        samples: Answers that it samples.
        signals: Of each question, infinite where the reader said nothing; shape [n].
        correct: Whether the first answer is right, shape [n].
        calls: Of each decision, shape [n].
        tokens: Generated until each decision, shape [n].
    """

    name: str
    signal: str
    samples: int
    signals: NDArray[np.float64]
    correct: NDArray[np.bool_]
    calls: NDArray[np.int64]
    tokens: NDArray[np.int64]


def retrieving(signals: ArrayLike, rate: float) -> NDArray[np.float64]:
    """Probability that each question retrieves, if a share of all does and the largest signals come first.

    Args:
        signals: Of each question, shape [n].
        rate: The share, in [0, 1].

    Example:
        >>> retrieving([0.0, 0.5, 0.5, 2.0], rate=0.5).tolist()
        [0.0, 0.5, 0.5, 1.0]
    """
    values = np.asarray(signals, dtype=np.float64)
    wanted = rate * values.size
    if wanted >= values.size:
        return np.ones_like(values)
    boundary = np.sort(values)[::-1][int(wanted)]
    above, tied = values > boundary, values == boundary
    opens: NDArray[np.float64] = above + tied * (wanted - above.sum()) / tied.sum()
    return opens


def compared_gates(rag: LazyRAG, answers: Answers, stages: Stages) -> tuple[GateRow, ...]:
    """Ask the sampled gates, and compare them with those that read the study's own first pass.

    Args:
        rag: As the questions were asked; its gate is set aside.
        answers: The study's answers in every mode.
        stages: Told how far each gate is.
    """
    strong = np.array(
        [q.is_correct(r.answer) for q, r in zip(answers.questions, answers.strong, strict=True)]
    )
    margin = MarginGate(tokens=rag.gate_tokens)
    margins = [margin.measure(FirstPass(result.generation)).signal for result in answers.first]
    passed = [
        _passed("entropy", rag.gate_in_force, answers, answers.first, list(map(signal, answers.first))),
        _passed("margin", margin, answers, answers.first, margins),
    ]
    for n in SAMPLES:
        gate = DisagreementGate(n_samples=n)
        sampling = rag.with_options(mode="lazy", gate=gate, threshold=math.inf)
        results = ask(sampling, answers.questions, stages(f"Disagreement of {n}"))
        passed.append(_passed(f"disagreement of {n}", gate, answers, results, list(map(signal, results))))
    return gate_rows(passed, strong)


def gate_rows(passed: Sequence[Passed], second: NDArray[np.bool_]) -> tuple[GateRow, ...]:
    """Compute every figure.

    Args:
        passed: The gates; the first is the one that others are compared with.
        second: Whether the answer after retrieving is right, shape [n].
    """
    return tuple(_row(one, passed[0], second) for one in passed)


def _row(one: Passed, entropy: Passed, second: NDArray[np.bool_]) -> GateRow:
    wrong, right = one.signals[~one.correct], one.signals[one.correct]
    return GateRow(
        name=one.name,
        signal=one.signal,
        samples=one.samples,
        first=share(one.correct),
        separation=auroc(_ranks(one.signals)[~one.correct], _ranks(one.signals)[one.correct])
        if wrong.size and right.size
        else None,
        levels=int(np.unique(one.signals).size),
        calls=float(one.calls.mean()),
        tokens=float(one.tokens.mean()),
        rates=tuple(_at(one, entropy, second, rate) for rate in RATES),
    )


def _at(one: Passed, entropy: Passed, second: NDArray[np.bool_], rate: float) -> AtRate:
    answered = _expected(one, second, rate)
    at_random = (1 - rate) * one.correct + rate * second
    return AtRate(
        rate=rate,
        accuracy=float(answered.mean()),
        against_entropy=paired_difference(answered, _expected(entropy, second, rate)),
        against_random=paired_difference(answered, at_random),
    )


def _expected(one: Passed, second: NDArray[np.bool_], rate: float) -> NDArray[np.float64]:
    """Probability that each question is answered right."""
    opens = retrieving(one.signals, rate)
    found: NDArray[np.float64] = np.where(second, opens, 0.0) + np.where(one.correct, 1 - opens, 0.0)
    return found


def _ranks(signals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return places in order, in which infinite signals are numbers like all others."""
    return np.unique(signals, return_inverse=True)[1].astype(np.float64)


def _passed(
    name: str,
    gate: Gate,
    answers: Answers,
    results: Sequence[LazyRAGResult],
    signals: Sequence[float | None],
) -> Passed:
    return Passed(
        name=name,
        signal=gate.signal,
        samples=gate.look.n_samples,
        signals=np.array([math.inf if value is None else value for value in signals], dtype=np.float64),
        correct=np.array(
            [q.is_correct(result.answer) for q, result in zip(answers.questions, results, strict=True)]
        ),
        calls=np.array([result.decision.calls for result in results]),
        tokens=np.array([result.decision.tokens for result in results]),
    )
