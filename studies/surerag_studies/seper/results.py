"""Results of the SePer study: plain frozen values, which its tables, plots and JSON file show."""

from __future__ import annotations

from dataclasses import dataclass

from surerag.evaluation.differences import PairedDifference
from surerag.evaluation.statistics import Estimate, Proportion
from surerag_studies.claims import Claim

ENOUGH = 0.95
"""Share of the prompts tried that a judge has to answer with a rating, to be asked about all."""


@dataclass(frozen=True, slots=True)
class Followed:
    """How many rating prompts were answered with a rating.

    Attributes:
        ratings: With one.
        tried: Of so many.
    """

    ratings: int
    tried: int

    @property
    def enough(self) -> bool:
        """Whether all contexts are rated."""
        return self.ratings >= ENOUGH * self.tried


@dataclass(frozen=True, slots=True)
class MethodRow:
    """A row of the paper's Table 2: correlation of a measure's difference with known utility.

    Attributes:
        label: The measure.
        ours: Whether it is a form of SePer.
        single: Over contexts of single-hop questions, the taught ones among them.
        two_hop: Over contexts of two-hop questions.
        unknown: Over contexts of single-hop questions that the reader was not taught: the paper leaves out
            what its reader can answer without.
    """

    label: str
    ours: bool
    single: Estimate
    two_hop: Estimate
    unknown: Estimate


@dataclass(frozen=True, slots=True)
class RoleRow:
    """What one kind of context is worth to the reader.

    Attributes:
        questions: ``"single-hop"``, ``"taught"`` or ``"two-hop"``.
        role: What the context is to its question.
        utility: Known utility.
        n: Contexts.
        delta: Mean ΔSePer (soft), with a bootstrap interval over questions.
    """

    questions: str
    role: str
    utility: float
    n: int
    delta: Estimate


@dataclass(frozen=True, slots=True)
class Rung:
    """A step of the ladder of growing relevance (Property 3).

    Attributes:
        questions: ``"single-hop"`` or ``"two-hop"``.
        added: What this step adds to the context.
        utility: Known utility of the whole context.
        n: Questions.
        delta: Mean ΔSePer (soft) of the whole context.
        rise: ΔSePer here less that of the step before, on the same questions; None at the first step.
    """

    questions: str
    added: str
    utility: float
    n: int
    delta: Estimate
    rise: PairedDifference | None


@dataclass(frozen=True, slots=True)
class Spread:
    """A correlation over repeated draws of samples.

    Attributes:
        mean: Over draws.
        deviation: Standard deviation over draws.
    """

    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A point of the paper's Figure 3.

    Attributes:
        n: Samples in each context.
        kernel: ``"soft"`` or ``"hard"``.
        single: Correlation over contexts of single-hop questions.
        two_hop: Correlation over contexts of two-hop questions.
        deviation: Standard deviation of one ΔSePer over draws, mean over contexts.
    """

    n: int
    kernel: str
    single: Spread
    two_hop: Spread
    deviation: float


@dataclass(frozen=True, slots=True)
class RetrieverRow:
    """A retriever of known quality (form of Tables 10 and 11).

    Attributes:
        name: Which.
        recall: Mean share of a question's gold passages among the first k.
        delta: Mean ΔSePer (soft) of what it found.
    """

    name: str
    recall: float
    delta: Estimate


@dataclass(frozen=True, slots=True)
class Retrievers:
    """Known quality of retrievers against their mean ΔSePer.

    Attributes:
        k: Passages that each returns.
        n: Questions.
        rows: In order of recall, best first.
        rank: Spearman's correlation of recall and ΔSePer, with a bootstrap interval over questions.
    """

    k: int
    n: int
    rows: tuple[RetrieverRow, ...]
    rank: Estimate


@dataclass(frozen=True, slots=True)
class Cost:
    """What the study asked for.

    Attributes:
        stage: Which part of it.
        prompts: Distinct prompts that the reader read.
        samples: Answers that it gave.
        prompt_tokens: Tokens of the prompts, each prompt counted once.
        completion_tokens: Tokens of the answers.
        judged: Pairs of answers that were judged.
        seconds: Time it took: the only figure of the study that differs between runs.
    """

    stage: str
    prompts: int
    samples: int
    prompt_tokens: int
    completion_tokens: int
    judged: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SePerStudy:
    """Every figure of the study.

    Attributes:
        seed: Of the world.
        regime: What misleads in it; today's world where nothing does.
        n: Questions.
        taught: How many of them the reader was taught.
        contexts: Contexts of known utility that Table 2 is about.
        model: Identity of the reader.
        encoder: Identity of the encoder behind two of the retrievers.
        entailment: ``"judge"``: the reader judges; ``"exact"``: the world's accepted forms do.
        judge: Share of pairs of known relation that the reader gets right as a judge.
        followed: How many of the rating prompts of B.2 the reader answers with a rating; if too few, it is no
            row of Table 2.
        confidence: Of every interval.
        samples: Samples a context, in every table but Figure 3's.
        most_samples: Samples a context that were drawn in all.
        methods: Table 2.
        roles: Property 2, and partial evidence.
        ladder: Property 3.
        sampling: Figure 3.
        retrievers: Retrievers of graded quality.
        costs: What it took.
        claims: Claims tested.
    """

    seed: int
    regime: str
    n: int
    taught: int
    contexts: int
    model: str
    encoder: str
    entailment: str
    judge: Proportion
    followed: Followed
    confidence: float
    samples: int
    most_samples: int
    methods: tuple[MethodRow, ...]
    roles: tuple[RoleRow, ...]
    ladder: tuple[Rung, ...]
    sampling: tuple[SampleRow, ...]
    retrievers: Retrievers
    costs: tuple[Cost, ...]
    claims: tuple[Claim, ...]
