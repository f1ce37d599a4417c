"""Results of the DENSE-RAG study: plain frozen values, which its tables and its JSON file show."""

from __future__ import annotations

from dataclasses import dataclass

from surerag.evaluation.differences import PairedDifference
from surerag.evaluation.gaps import GapRow, IntervalRow, Trend
from surerag.evaluation.statistics import Estimate, Proportion
from surerag_studies.claims import Claim


@dataclass(frozen=True, slots=True)
class Understanding:
    """DENSE of contexts of k passages.

    Attributes:
        k: Passages.
        n: Questions.
        intervals: Figure 2.
        gap: Certain against uncertain at the method's threshold (Figure 3); None where one is empty.
        thresholds: The gap at every value that DENSE takes (Figure 4).
        trend: Over all questions.
        unchanged: Accuracy of the answers from the contexts as they are.
        edited: Accuracy with one passage rephrased, mean over the k, less that (the control of 6.2).
        rephrased: Accuracy with all passages rephrased, less that.
    """

    k: int
    n: int
    intervals: tuple[IntervalRow, ...]
    gap: GapRow | None
    thresholds: tuple[GapRow, ...]
    trend: Trend
    unchanged: Proportion
    edited: PairedDifference
    rephrased: PairedDifference


@dataclass(frozen=True, slots=True)
class Sameness:
    """How often greedy answers were the same whatever was asked beside them (appendix C).

    Attributes:
        prompts: Prompts asked alone, in one batch, and in mixed batches.
        in_one_batch: Same answer in one batch as alone.
        in_mixed_batches: Same answer in mixed batches as alone.
    """

    prompts: int
    in_one_batch: int
    in_mixed_batches: int


@dataclass(frozen=True, slots=True)
class RetrieverRow:
    """What one retriever's contexts are like.

    Attributes:
        name: The retriever.
        told: Share of contexts that tell all that is needed.
        accuracy: Share of right answers.
        uncertain: Share of uncertain questions.
        gap: Accuracy of certain less that of uncertain questions; None where one is empty.
    """

    name: str
    told: Proportion
    accuracy: Proportion
    uncertain: Proportion
    gap: Estimate | None


@dataclass(frozen=True, slots=True)
class CutRow:
    """A row of Table 3.

    Attributes:
        name: How documents are cut.
        certain: Accuracy on questions that are certain with passages as retrieved.
        uncertain: Accuracy on the others.
        on_certain: Less that of passages as retrieved, on the same questions; None in their own row.
        on_uncertain: Likewise.
        told: Share of the uncertain questions whose k pieces tell all that is needed.
    """

    name: str
    certain: Proportion | None
    uncertain: Proportion | None
    on_certain: PairedDifference | None
    on_uncertain: PairedDifference | None
    told: Proportion | None


@dataclass(frozen=True, slots=True)
class Against:
    """A method against another on the same questions.

    Attributes:
        other: What it is compared with.
        difference: Accuracy less that of the other.
        gained: Questions that it alone gets right.
        lost: Questions that the other alone gets right.
        p: Exact sign test on these, two-sided.
        p_corrected: The same, corrected by Holm for all comparisons of the study.
    """

    other: str
    difference: PairedDifference
    gained: int
    lost: int
    p: float
    p_corrected: float


@dataclass(frozen=True, slots=True)
class MethodRow:
    """A row of Tables 1 and 4, on uncertain questions.

    Attributes:
        name: The method.
        accuracy: Share of right answers.
        against: Compared with other rows.
        score: Mean DENSE of the contexts that were kept; None where it was not measured.
        told: Share of the contexts that tell all that is needed.
        passages: Mean passages of the contexts.
        rounds: Mean contexts that were measured; None without refinement.
        asked: Mean contexts that the reader answered from or judged; None likewise.
    """

    name: str
    accuracy: Proportion
    against: tuple[Against, ...]
    score: float | None
    told: Proportion
    passages: float
    rounds: float | None
    asked: float | None


@dataclass(frozen=True, slots=True)
class Reason:
    """A line of the diagnosis.

    Attributes:
        about: What part of the method it is about.
        what: What was counted.
        share: How often it was so; None where there was nothing to count.
    """

    about: str
    what: str
    share: Proportion | None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a part of the study took.

    Attributes:
        stage: Which part.
        prompts: Prompts that the reader had not been asked before.
        prompt_tokens: Tokens of these.
        judged: Pairs of answers that had not been judged before.
        seconds: Time: the only figure of the study that differs between runs.
    """

    stage: str
    prompts: int
    prompt_tokens: int
    judged: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DenseStudy:
    """Every figure of the study.

    Attributes:
        seed: Of the world.
        regime: What misleads in it; today's world where nothing does.
        n: Questions.
        model: Identity of the reader.
        encoder: Identity of the encoder.
        entailment: ``"judge"``: the reader judges; ``"exact"``: the world's accepted forms do.
        judge: Share of pairs of known relation that the reader gets right as a judge.
        confidence: Of every interval.
        threshold: Questions are certain up to it, in nats.
        k: Passages of a context.
        pool: Passages that were retrieved.
        corpus: Passages of the corpus.
        redundancy: Share of them that repeats others.
        outdated: How many of them are outdated.
        tau: Cosine from which sentences stay together.
        t_max: Words and marks of a chunk, at most.
        measured: DENSE by number of passages, k first.
        sameness: The premise that greedy answers do not depend on the batch.
        retrievers: By retriever, best first.
        cuts: Table 3.
        uncertain: Questions that Tables 1 and 4 are about.
        methods: Tables 1 and 4; none where no question is uncertain.
        stops: Why the refiner ended, with how often.
        diagnosis: Where answers are lost.
        costs: What it took.
        claims: Claims tested.
    """

    seed: int
    regime: str
    n: int
    model: str
    encoder: str
    entailment: str
    judge: Proportion
    confidence: float
    threshold: float
    k: int
    pool: int
    corpus: int
    redundancy: float
    outdated: int
    tau: float
    t_max: int
    measured: tuple[Understanding, ...]
    sameness: Sameness
    retrievers: tuple[RetrieverRow, ...]
    cuts: tuple[CutRow, ...]
    uncertain: int
    methods: tuple[MethodRow, ...]
    stops: tuple[tuple[str, int], ...]
    diagnosis: tuple[Reason, ...]
    costs: tuple[Cost, ...]
    claims: tuple[Claim, ...]
