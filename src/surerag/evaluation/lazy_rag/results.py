"""What the L-RAG study found: plain frozen values, of which every table, plot and JSON file is a view."""

from __future__ import annotations

from dataclasses import dataclass

from surerag.evaluation.statistics import Comparison, Estimate, PairedDifference, Proportion


@dataclass(frozen=True, slots=True)
class Pass:
    """One question answered once, and what that cost.

    Attributes:
        correct: Whether the answer was right.
        answer_tokens: Length of the prompt that gave the answer (what the paper's Table I counts).
        prompt_tokens: Length of all prompts that were read for it.
        completion_tokens: Tokens generated for it, in all passes.
    """

    correct: bool
    answer_tokens: int
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Record:
    """One question in every mode.

    A lazy answer is the first pass if the gate stays shut and the second (which is the strong mode's)
    if it opens, so these passes hold the lazy answer at *every* threshold.

    Attributes:
        id: The question's identifier in its world.
        kind: Where its answer is found.
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
        tau: Threshold in nats, of lazy rows.
        accuracy: Share of right answers.
        retrieval: Share of questions that retrieved; None for the oracle, which is given its passages.
        answer_tokens: Mean length of the prompt that gave the answer.
        prompt_tokens: Mean length of all prompts that were read.
        completion_tokens: Mean number of tokens generated.
        against_standard: Accuracy less that of standard retrieval, on the same questions.
    """

    label: str
    tau: float | None
    accuracy: Proportion
    retrieval: Proportion | None
    answer_tokens: float
    prompt_tokens: float
    completion_tokens: float
    against_standard: PairedDifference


@dataclass(frozen=True, slots=True)
class KindRow:
    """What the gate does for one kind of question.

    Attributes:
        kind: Where the answer is found.
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

    tau: float
    accuracy: Proportion
    retrieval: Proportion


@dataclass(frozen=True, slots=True)
class Threshold:
    """The calibrated threshold, and what it rests on.

    Attributes:
        tau: The threshold in nats; ``low`` and ``high`` are the bootstrap interval of what the rule finds.
        rule: What was looked for; the threshold is the lower end of its interval.
        seed: Seed of the world it was calibrated on.
        n: Questions it was calibrated on.
        accuracy: Expected accuracy, on those questions.
        retrieval_rate: Expected retrieval rate, on those questions.
    """

    tau: Estimate
    rule: str
    seed: int
    n: int
    accuracy: float
    retrieval_rate: float


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """A row of the paper's Table III; times in milliseconds.

    Attributes:
        label: How the row is called.
        retrieval_rate: Share of questions that retrieve.
        break_even: Retrieval latency above which the gate pays; None where it never does.
        savings: Time saved a question, one value for each of the study's retrieval latencies.
    """

    label: str
    retrieval_rate: float
    break_even: float | None
    savings: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """Table III: with the paper's retrieval rates, and with those measured here.

    Attributes:
        gate: What the gate costs a question, in milliseconds.
        retrieval: The retrieval latencies of the columns, in milliseconds.
        published: The paper's rows, computed from its rates.
        measured: The same arithmetic on the rates of this run.
    """

    gate: float
    retrieval: tuple[float, ...]
    published: tuple[LatencyRow, ...]
    measured: tuple[LatencyRow, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that the study was asked to show, what it found, and whether that is enough."""

    statement: str
    finding: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often the component itself, run at the calibrated threshold, did as the sweep says."""

    n: int
    same_answer: int
    same_decision: int


@dataclass(frozen=True, slots=True)
class LazyRagStudy:
    """Everything that was found, with what it takes to find it again.

    Attributes:
        seed: Seed of the world that was asked.
        n: Number of questions.
        model: Identity of the reader.
        encoder: Identity of the model behind both indices.
        confidence: Level of all intervals.
        k: Passages a retrieval.
        m: Summaries in the first pass.
        gate_tokens: Tokens whose entropy decides.
        aggregate: How they are aggregated.
        modes: Table I.
        kinds: The same by kind of question.
        separation: Entropy of wrong first-pass answers (``high``) against that of right ones (``low``);
            None where there are fewer than two of either.
        sweep: Lazy answering over thresholds, ascending.
        monotone: Whether the retrieval rate never rises with the threshold.
        threshold: The calibrated threshold.
        noninferiority: Accuracy at the calibrated threshold less that of standard retrieval.
        margin: Largest loss of accuracy that counts as not inferior.
        saving: Share of questions that did without retrieval, at the calibrated threshold.
        least_saving: What the saving must reach.
        agreement: The component's own run against the sweep.
        latency: Table III.
        claims: What the study was asked to show.
        records: Every question, from which all of the above follows.
    """

    seed: int
    n: int
    model: str
    encoder: str
    confidence: float
    k: int
    m: int
    gate_tokens: int
    aggregate: str
    modes: tuple[ModeRow, ...]
    kinds: tuple[KindRow, ...]
    separation: Comparison | None
    sweep: tuple[SweepPoint, ...]
    monotone: bool
    threshold: Threshold
    noninferiority: PairedDifference
    margin: float
    saving: Proportion
    least_saving: float
    agreement: Agreement
    latency: LatencyModel
    claims: tuple[Claim, ...]
    records: tuple[Record, ...]
