"""Ask questions in every mode of L-RAG, each generation made once, and calibrate on what was answered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from surerag import LazyRAG
from surerag.decisions.bootstrap import BootstrapThreshold, bootstrap_threshold
from surerag.drivers.progress import Progress, Stages
from surerag.evaluation.gate.results import Pass, Record
from surerag.methods.lazy_rag.result import LazyRAGResult
from surerag.services import Retriever
from surerag.types import Passage
from surerag.world import Question, World, is_correct

WINDOW = 128


@dataclass(frozen=True, slots=True)
class GateQuestion:
    """A question whose answers can be judged.

    Attributes:
        id: Identifier.
        text: As asked.
        is_correct: Whether an answer is right.
        kind: Group that it is counted in.
        gold: Passages that tell what it needs, for the oracle.
        answer: A right answer, to show.
    """

    id: str
    text: str
    is_correct: Callable[[str], bool]
    kind: str = ""
    gold: tuple[Passage, ...] = ()
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Answers:
    """Each question's result in every mode, in the questions' order.

    Attributes:
        questions: What was asked.
        first: The completed first pass: the gate never opened.
        none: Mode ``"none"``.
        standard: Mode ``"standard"``.
        strong: Mode ``"strong"``, which is what an opened gate answers.
        oracle: Mode ``"oracle"``.
    """

    questions: tuple[GateQuestion, ...]
    first: tuple[LazyRAGResult, ...]
    none: tuple[LazyRAGResult, ...]
    standard: tuple[LazyRAGResult, ...]
    strong: tuple[LazyRAGResult, ...]
    oracle: tuple[LazyRAGResult, ...]


def world_questions(world: World, questions: Sequence[Question]) -> list[GateQuestion]:
    """Return questions of the closed world as they are asked here."""
    return [
        GateQuestion(
            id=question.id,
            text=question.text,
            is_correct=partial(is_correct, question),
            kind=f"{question.source if question.hazard else question.kind}, "
            f"{question.hazard or question.source}",
            gold=tuple(world.passage[place] for place in question.gold_passages),
            answer=question.answers[0],
        )
        for question in questions
    ]


def looked_up(rag: LazyRAG, questions: Sequence[GateQuestion]) -> LazyRAG:
    """Look everything up once, so that no mode pays again for what another mode has found."""
    texts = [question.text for question in questions]
    if rag.retriever is None or rag.summaries is None or isinstance(rag.summaries, str):
        return rag
    return rag.with_options(
        retriever=_Found(rag.retriever, texts, rag.rules.top_n),
        summaries=_Found(rag.summaries, texts, rag.rules.n_summaries),
    )


def ask_all(rag: LazyRAG, questions: Sequence[GateQuestion], stages: Stages) -> Answers:
    """Answer every question in every mode.

    Args:
        rag: With all services; its mode and threshold are set aside.
        questions: What to ask.
        stages: Told how far each mode is.
    """
    return Answers(
        questions=tuple(questions),
        first=first_pass(rag, questions, stages("First pass")),
        none=ask(rag.with_options(mode="none"), questions, stages("No retrieval")),
        standard=ask(rag.with_options(mode="standard"), questions, stages("Standard RAG")),
        strong=ask(rag.with_options(mode="strong"), questions, stages("Strong RAG")),
        oracle=ask(rag.with_options(mode="oracle"), questions, stages("Oracle")),
    )


def first_pass(
    rag: LazyRAG, questions: Sequence[GateQuestion], progress: Progress
) -> tuple[LazyRAGResult, ...]:
    """Answer from the summaries, never retrieving: what a gate sees, to its end."""
    return ask(rag.with_options(mode="lazy", threshold=math.inf), questions, progress)


def ask(rag: LazyRAG, questions: Sequence[GateQuestion], progress: Progress) -> tuple[LazyRAGResult, ...]:
    """Answer questions in merged batches; in the mode ``"oracle"``, from their gold passages."""
    texts = [question.text for question in questions]
    oracle = [question.gold for question in questions] if rag.mode == "oracle" else None
    cases = texts if oracle is None else list(zip(texts, oracle, strict=True))
    return tuple(rag.run_many(cases, window=WINDOW, progress=progress))


def calibrated(
    rag: LazyRAG, questions: Sequence[GateQuestion], stages: Stages, *, max_loss: float
) -> BootstrapThreshold:
    """Find the threshold that loses little against retrieving for every question.

    It is the lower end of the interval: the largest threshold of one sample is too large for half of all
    others.

    Args:
        rag: With all services; its mode and threshold are set aside.
        questions: A sample, of which no question is asked later.
        stages: Told how far each pass is.
        max_loss: Accuracy that may be lost.
    """
    first = first_pass(rag, questions, stages("Calibration, first pass"))
    second = ask(rag.with_options(mode="strong"), questions, stages("Calibration, second pass"))
    heard = [signal(result) for result in first]
    # A silent first pass opens the gate at any threshold: it stands above all others.
    above = max((value for value in heard if math.isfinite(value)), default=0.0) + 1.0
    signals = np.minimum(heard, above)
    without, with_ = (
        np.array([q.is_correct(result.answer) for q, result in zip(questions, results, strict=True)])
        for results in (first, second)
    )
    found = bootstrap_threshold(signals, without, with_, max_loss)
    opens = signals > found.lower
    return replace(
        found,
        threshold=found.lower,
        rate=float(opens.mean()),
        accuracy=float(np.where(opens, with_, without).mean()),
    )


def signal(result: LazyRAGResult) -> float:
    """Return the gate's signal; infinite where there was no first answer to judge."""
    return math.inf if result.decision.signal is None else result.decision.signal


def records(answers: Answers) -> list[Record]:
    """Judge every answer."""

    def judged(question: GateQuestion, result: LazyRAGResult) -> Pass:
        return Pass(
            question.is_correct(result.answer),
            result.generation.prompt_tokens,
            result.prompt_tokens,
            result.completion_tokens,
            0 if result.spent is None else result.spent.cached_tokens,
            1 if result.spent is None else result.spent.calls,
        )

    modes = (answers.first, answers.none, answers.standard, answers.strong, answers.oracle)
    return [
        Record(question.id, question.kind, signal(results[0]), *(judged(question, one) for one in results))
        for question, results in zip(answers.questions, zip(*modes, strict=True), strict=True)
    ]


class _Found:
    """A retriever that has been asked already."""

    def __init__(self, retriever: Retriever, queries: Sequence[str], k: int | None) -> None:
        distinct = list(dict.fromkeys(queries))
        self._retriever = retriever
        self._k = k
        self._found = dict(zip(distinct, _retrieve_many(retriever, distinct, k), strict=True))

    def retrieve(self, query: str, k: int | None) -> Sequence[Passage]:
        """Return what was found, or look it up."""
        if k == self._k and query in self._found:
            return self._found[query]
        return self._retriever.retrieve(query, k)


def _retrieve_many(retriever: Retriever, queries: list[str], k: int | None) -> Sequence[Sequence[Passage]]:
    many = getattr(retriever, "retrieve_many", None)
    return many(queries, k) if many is not None else [retriever.retrieve(query, k) for query in queries]
