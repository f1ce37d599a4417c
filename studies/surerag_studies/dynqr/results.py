"""Results of the DynQR study and of training: plain frozen values, which tables and JSON file show."""

from __future__ import annotations

from dataclasses import dataclass

from surerag.evaluation.differences import PairedDifference
from surerag.evaluation.statistics import Comparison, Estimate, Proportion
from surerag.methods.dynqr.metrics import MetricName
from surerag.methods.dynqr.options import Documents
from surerag_studies.claims import Claim
from surerag_studies.dynqr.choosing import ChoiceRow
from surerag_studies.dynqr.records import Record


@dataclass(frozen=True, slots=True)
class Threshold:
    """A calibrated θ, and what it rests on.

    Attributes:
        documents: The setting it was calibrated for.
        metric: The uncertainty that it is compared with.
        threshold: θ itself; ``low`` and ``high`` are the bootstrap interval of what the rule finds, of which
            it is the lower end.
        rate: Share of the sample's questions that are rewritten there.
        accuracy: Accuracy on the sample there.
        reference: Accuracy on the sample when all are rewritten.
    """

    documents: Documents
    metric: MetricName
    threshold: Estimate
    rate: float
    accuracy: float
    reference: float


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the paper's Tables 1 and 2.

    Attributes:
        label: How the row is called.
        documents: What an answer after rewriting is given from; None where nothing is rewritten.
        accuracy: Share of right answers.
        vague: The same of under-specified questions.
        clear: The same of all others.
        against_original: Accuracy less that of the original query, on the same questions.
        against_always: The same, less that of rewriting always; None where nothing is rewritten.
        rewritten: Share of questions for which a rewrite was asked for.
        replaced: Share of questions whose answer is one from a rewrite.
        gold: Mean share of gold passages among those that the answer was given from.
        retrievals: Searches a question.
        calls: Generations a question.
        prompt_tokens: Tokens read a question.
        completion_tokens: Tokens written a question.
    """

    label: str
    documents: Documents | None
    accuracy: Proportion
    vague: Proportion | None
    clear: Proportion | None
    against_original: PairedDifference
    against_always: PairedDifference | None
    rewritten: float
    replaced: float
    gold: float
    retrievals: float
    calls: float
    prompt_tokens: float
    completion_tokens: float


@dataclass(frozen=True, slots=True)
class KindRow:
    """One kind of question, rewritten ones answered from the rewrite's documents.

    Attributes:
        kind: Which.
        n: Questions.
        original: Accuracy of the original query.
        always: Accuracy of rewriting always.
        dynqr: Accuracy at the calibrated θ.
        rewritten: Share that is rewritten there.
        against_original: ``dynqr`` less ``original``, on the same questions.
        against_always: ``dynqr`` less ``always``, likewise.
    """

    kind: str
    n: int
    original: Proportion
    always: Proportion
    dynqr: Proportion
    rewritten: Proportion
    against_original: PairedDifference
    against_always: PairedDifference


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """A row of the paper's Table 3."""

    threshold: float
    substitute: Proportion
    expand: Proportion
    rewritten: Proportion


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A row of the paper's Table 5: an uncertainty, its own θ, and what comes of it (substitute).

    Attributes:
        metric: Which.
        threshold: Its θ, calibrated by the same rule as the others'.
        accuracy: Share of right answers at that θ.
        rewritten: Share of questions rewritten there.
        against_perplexity: Accuracy less that with perplexity; None for perplexity itself.
        separation: The first answers' uncertainty, wrong ones against right ones; None where there are fewer
            than two of either.
    """

    metric: MetricName
    threshold: Threshold
    accuracy: Proportion
    rewritten: Proportion
    against_perplexity: PairedDifference | None
    separation: Comparison | None


@dataclass(frozen=True, slots=True)
class GoldRow:
    """A bar of the paper's Figure 3: one retrieved passage, at random, gives way to a missing gold one.

    Attributes:
        kind: Of question.
        falls: How often the perplexity of the answer falls.
        before: Mean perplexity with what was retrieved.
        after: Mean perplexity with the gold passage among it.
        change: ``after`` less ``before``, paired.
        correct_before: Share of right answers before.
        correct_after: The same after.
    """

    kind: str
    falls: Proportion
    before: float
    after: float
    change: PairedDifference
    correct_before: Proportion
    correct_after: Proportion


@dataclass(frozen=True, slots=True)
class Agreement:
    """How often the component itself, run at the calibrated θ, did as the records say.

    Attributes:
        n: Questions.
        same_answer: Gave the same answer.
        same_decision: Rewrote, or left alone, the same.
        more_uncertain: Kept an answer that was more uncertain than another one it had.
    """

    n: int
    same_answer: int
    same_decision: int
    more_uncertain: int


@dataclass(frozen=True, slots=True)
class StageRow:
    """One rewriter on held-out queries, every one of which is rewritten and answered from what that finds.

    A reply that is no query leaves the original query in its place.

    Attributes:
        stage: ``"original query"``, ``"base"``, ``"distilled"``, or ``"aligned, …"`` with a reward.
        usable: Share of replies that are queries.
        clear: Share of rewrites that are the question in clear words, as the world has it.
        uncertainty: Perplexity of the reader's answers, their geometric mean: a few answers have hundreds of
            times the perplexity of the others, and would be all that a plain mean tells of.
        against_previous: Paired difference of its natural logarithm to the stage before, over the queries
            whose two answers have one; None for the first row.
        accuracy: Share of right answers.
        accuracy_against_previous: Likewise.
        triplets: Preferences that alignment learnt from; 0 before.
        seconds: What it took to make this rewriter.
    """

    stage: str
    usable: Proportion
    clear: Proportion
    uncertainty: float
    against_previous: PairedDifference | None
    accuracy: Proportion
    accuracy_against_previous: PairedDifference | None
    triplets: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TrainingStudy:
    """The three stages, from a base that was never taught to rewrite.

    Attributes:
        base: Identity of the base.
        teacher: Identity of the teacher.
        n_distil: Queries of the first stage.
        n_align: Queries of the second and third stage.
        n_held_out: Queries that all rewriters are measured on.
        rewrites: Rewrites sampled for each query.
        stages: Original query, base, distilled, aligned with the reader's uncertainty.
        rewards: Aligned with the other rewards, each against the distilled rewriter.
        seconds: Of everything.
    """

    base: str
    teacher: str
    n_distil: int
    n_align: int
    n_held_out: int
    rewrites: int
    stages: tuple[StageRow, ...]
    rewards: tuple[StageRow, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class DynQRStudy:
    """Everything that was found, with what it takes to find it again.

    Attributes:
        seed: Seed of the world that was asked.
        regime: What misleads in it; today's world where nothing does.
        n: Number of questions.
        model: Identity of the reader, which rewrites as well.
        encoder: Identity of the model behind the index.
        confidence: Level of all intervals.
        k: Passages a retrieval.
        samples: Answers sampled for length-normalised entropy.
        rule: What calibration looked for.
        calibration_seed: Seed of the world it was done on.
        n_calibration: Questions it was done on.
        margin: Largest loss of accuracy that counts as not inferior.
        thresholds: The θ of perplexity, for either setting.
        rows: Tables 1 and 2.
        kinds: By kind of question.
        sweep: Table 3, with further thresholds.
        metrics: Table 5.
        gold: Figure 3.
        choices: What samples make of the rules that choose θ.
        agreement: The component's own run against the records.
        training: The three stages of training; None if left out.
        claims: Claims tested.
        records: Every question, from which all of the above follows.
    """

    seed: int
    regime: str
    n: int
    model: str
    encoder: str
    confidence: float
    k: int
    samples: int
    rule: str
    calibration_seed: int
    n_calibration: int
    margin: float
    thresholds: tuple[Threshold, ...]
    rows: tuple[Row, ...]
    kinds: tuple[KindRow, ...]
    sweep: tuple[SweepPoint, ...]
    metrics: tuple[MetricRow, ...]
    gold: tuple[GoldRow, ...]
    choices: tuple[ChoiceRow, ...]
    agreement: Agreement
    training: TrainingStudy | None
    claims: tuple[Claim, ...]
    records: tuple[Record, ...]
