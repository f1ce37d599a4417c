"""What training a rewriter brought, stage by stage."""

from __future__ import annotations

from dataclasses import dataclass

from surerag.evaluation.statistics import PairedDifference, Proportion


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
