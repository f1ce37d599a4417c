"""Results of the EDC²-RAG study: plain frozen values, which its tables and its JSON file show."""

from __future__ import annotations

from dataclasses import dataclass

from surerag.evaluation.differences import PairedDifference
from surerag.evaluation.statistics import Proportion
from surerag.world.spec import QuestionKind
from surerag_studies.claims import Claim
from surerag_studies.edc2.contexts import Condition, Method

PROMPT_PRICE, COMPLETION_PRICE = 0.15, 0.60
"""US dollars a million tokens, as in appendix A of the paper."""


@dataclass(frozen=True, slots=True)
class Record:
    """One question answered by one method.

    Attributes:
        kind: How the question was put.
        correct: Whether the answer is right.
        holds_answer: Whether the answer's words stand in what the reader was shown.
        context_tokens: Tokens of what it was shown.
        calls: Calls for compression.
        fell_back: Whether every cluster yielded nothing, so that the original passages were shown.
        refused: Share of the clusters asked about whose compression said what no source says.
        prompt_tokens: Tokens read in all, for the answer too.
        completion_tokens: Tokens generated in all.
    """

    kind: QuestionKind
    correct: bool
    holds_answer: bool
    context_tokens: int
    calls: int
    fell_back: bool
    refused: float
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class KindFigures:
    """One method on the questions of one kind.

    Attributes:
        kind: How they are put.
        accuracy: Share of right answers, with its interval.
    """

    kind: QuestionKind
    accuracy: Proportion


@dataclass(frozen=True, slots=True)
class MethodFigures:
    """One method under one condition.

    Attributes:
        method: Which.
        accuracy: Share of right answers, with its interval.
        by_kind: Accuracy on each kind of question.
        against_plain: Accuracy less that of plain RAG on the same questions; None for plain RAG.
        holds_answer: Share of contexts in which the answer's words stand.
        context_tokens: Mean tokens of what the reader was shown.
        context_share: These as a share of plain RAG's.
        calls: Mean calls for compression.
        fell_back: Share of questions for which every cluster yielded nothing: the originals were shown.
        refused: Mean share of clusters asked about whose compression said what no source says.
        cost: Mean cost of a question at the paper's prices, in US dollars.
    """

    method: Method
    accuracy: Proportion
    by_kind: tuple[KindFigures, ...]
    against_plain: PairedDifference | None
    holds_answer: float
    context_tokens: float
    context_share: float
    calls: float
    fell_back: float
    refused: float
    cost: float


@dataclass(frozen=True, slots=True)
class CellFigures:
    """All methods under one condition.

    Attributes:
        condition: Which.
        n: Questions.
        methods: What each method does.
    """

    condition: Condition
    n: int
    methods: tuple[MethodFigures, ...]


@dataclass(frozen=True, slots=True)
class CompressionStudy:
    """Every figure of the study.

    Attributes:
        seed: Of the world.
        regime: What misleads in it; today's world where nothing does.
        n: Questions a cell.
        model: Identity of the reader.
        encoder: Identity of the encoder.
        confidence: Of every interval.
        cells: Top-k 5, 10 and 20.
        large: Top-k 100, on fewer questions; plain RAG reads as far as the window reaches.
        claims: Claims tested.
    """

    seed: int
    regime: str
    n: int
    model: str
    encoder: str
    confidence: float
    cells: tuple[CellFigures, ...]
    large: CellFigures | None
    claims: tuple[Claim, ...]
