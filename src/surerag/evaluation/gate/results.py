"""Results of a gate on questions with known answers: frozen values, which tables and figures show."""

from __future__ import annotations

from dataclasses import dataclass

from surerag.evaluation.differences import PairedDifference
from surerag.evaluation.statistics import Comparison, Estimate, Proportion


@dataclass(frozen=True, slots=True)
class Pass:
    """One question answered once, and what that cost.

    Attributes:
        correct: Whether the answer was right.
        answer_tokens: Length of the prompt that gave the answer (what the paper's Table I counts).
        prompt_tokens: Length of all prompts that were read for it.
        completion_tokens: Tokens generated for it, in all passes.
        cached_tokens: Of those that were read, the ones that a server had in its cache.
        calls: Prompts that were asked.
    """

    correct: bool
    answer_tokens: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    calls: int = 1


@dataclass(frozen=True, slots=True)
class Record:
    """One question in every mode.

    A lazy answer is the first pass if the gate stays shut and the second (which is the strong mode's)
    if it opens, so these passes hold the lazy answer at *every* threshold.

    Attributes:
        id: The question's identifier.
        kind: Group that it is counted in.
        entropy: The gate's signal: entropy over the first ``gate_tokens`` tokens of the first pass, in
            nats; infinite where the first pass said nothing, for which the gate always opens.
        first: Answer from the summaries alone.
        none: Answer without any context.
        standard: Answer from the passages alone.
        strong: Answer from summaries and passages.
        oracle: Answer from the gold passages.
    """

    id: str
    kind: str
    entropy: float
    first: Pass
    none: Pass
    standard: Pass
    strong: Pass
    oracle: Pass


@dataclass(frozen=True, slots=True)
class ModeRow:
    """A row of the paper's Table I.

    Attributes:
        label: How the row is called.
        threshold: Threshold in nats, of lazy rows.
        accuracy: Share of right answers.
        retrieval: Share of questions that retrieved; None for the oracle, which is given its passages.
        answer_tokens: Mean length of the prompt that gave the answer.
        prompt_tokens: Mean length of all prompts that were read.
        completion_tokens: Mean number of tokens generated.
        cached_tokens: Mean number of those read that a server had in its cache.
        calls: Mean number of prompts.
        money: Of a thousand questions, in ``currency``; None where the model has no price by the token.
        currency: Of the money.
        against_standard: Accuracy less that of standard retrieval, on the same questions.
    """

    label: str
    threshold: float | None
    accuracy: Proportion
    retrieval: Proportion | None
    answer_tokens: float
    prompt_tokens: float
    completion_tokens: float
    against_standard: PairedDifference
    cached_tokens: float = 0.0
    calls: float = 1.0
    money: float | None = None
    currency: str = ""


@dataclass(frozen=True, slots=True)
class KindRow:
    """What the gate does for one kind of question.

    Attributes:
        kind: Which.
        first: Accuracy of the completed first pass.
        standard: Accuracy of standard retrieval.
        lazy: Accuracy at the calibrated threshold.
        retrieval: Share for which the gate opened, at the calibrated threshold.
        entropy: Mean entropy of the first pass, in nats; None where no first pass said anything.
    """

    kind: str
    first: Proportion
    standard: Proportion
    lazy: Proportion
    retrieval: Proportion
    entropy: float | None


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """Lazy answering at one threshold."""

    threshold: float
    accuracy: Proportion
    retrieval: Proportion


@dataclass(frozen=True, slots=True)
class GateThreshold:
    """The calibrated threshold, and what it rests on.

    Attributes:
        threshold: In nats; ``low`` and ``high`` are the bootstrap interval of what the rule finds.
        rule: What was looked for; the threshold is the lower end of its interval.
        seed: Seed of the world it was calibrated on; None for questions of another kind.
        n: Questions it was calibrated on.
        accuracy: Expected accuracy, on those questions.
        retrieval_rate: Expected retrieval rate, on those questions.
    """

    threshold: Estimate
    rule: str
    seed: int | None
    n: int
    accuracy: float
    retrieval_rate: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often two ways to run a gate gave the same answer, and decided the same."""

    n: int
    same_answer: int
    same_decision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """A gate against the fixed modes, on the same questions.

    Attributes:
        n: Number of questions.
        model: Identity of the reader.
        confidence: Level of all intervals.
        top_n: Passages a retrieval.
        n_summaries: Summaries in the first pass.
        gate_tokens: Tokens whose entropy decides.
        aggregate: How they are aggregated.
        calibration: The calibrated threshold.
        modes: Every mode; the lazy one at the paper's thresholds and at the calibrated one.
        kinds: The same by kind of question.
        separation: Entropy of wrong first-pass answers (``high``) against that of right ones (``low``);
            None where there are fewer than two of either.
        sweep: Lazy answering over thresholds, ascending.
        records: Every question, from which all of the above follows.
    """

    n: int
    model: str
    confidence: float
    top_n: int | None
    n_summaries: int
    gate_tokens: int
    aggregate: str
    calibration: GateThreshold
    modes: tuple[ModeRow, ...]
    kinds: tuple[KindRow, ...]
    separation: Comparison | None
    sweep: tuple[SweepPoint, ...]
    records: tuple[Record, ...]

    @property
    def calibrated(self) -> ModeRow:
        """The lazy mode at the calibrated threshold."""
        return next(row for row in reversed(self.modes) if row.threshold == self.calibration.threshold.value)
