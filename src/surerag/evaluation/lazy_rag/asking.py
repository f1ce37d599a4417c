"""Ask a world's questions in every mode, each generation made once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from surerag.components import LazyRAG
from surerag.drivers.progress import Progress
from surerag.evaluation.lazy_rag.results import Pass, Record
from surerag.methods.lazy_rag import LazyRAGResult
from surerag.retrieval import PassageIndex
from surerag.services import Encoder, Retriever
from surerag.types import Passage
from surerag.world.questions import Question, is_correct
from surerag.world.world import World

Stages = Callable[[str], Progress]
"""From the name of a stage to what shall be told of its progress."""

AT_ONCE = 128


class Tiers(NamedTuple):
    """The two tiers of L-RAG over one world: its passages, and the leads of its articles."""

    passages: Retriever
    summaries: Retriever


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

    questions: tuple[Question, ...]
    first: tuple[LazyRAGResult, ...]
    none: tuple[LazyRAGResult, ...]
    standard: tuple[LazyRAGResult, ...]
    strong: tuple[LazyRAGResult, ...]
    oracle: tuple[LazyRAGResult, ...]


def index_world(world: World, encoder: Encoder) -> Tiers:
    """Index all passages of a world; a summary is an article's lead, which is encoded with them."""
    passages = world.passages
    vectors = encoder.encode([passage.text for passage in passages], "document")
    leads = [place for place, passage in enumerate(passages) if passage.metadata["part"] == "lead"]
    summaries = PassageIndex([passages[place] for place in leads], vectors[leads], encoder)
    return Tiers(PassageIndex(passages, vectors, encoder), summaries)


def looked_up(tiers: Tiers, questions: Sequence[Question], *, k: int, m: int) -> Tiers:
    """Look everything up once, so that no mode pays again for what another mode has found."""
    texts = [question.text for question in questions]
    return Tiers(_Found(tiers.passages, texts, k), _Found(tiers.summaries, texts, m))


def ask_all(rag: LazyRAG, world: World, questions: Sequence[Question], stages: Stages) -> Answers:
    """Answer every question in every mode.

    Args:
        rag: With all services; its mode and threshold are set aside.
        world: Holds the gold passages.
        questions: What to ask.
        stages: Told how far each mode is.
    """
    return Answers(
        questions=tuple(questions),
        first=first_pass(rag, questions, stages("First pass")),
        none=ask(rag.with_settings(mode="none"), questions, stages("No retrieval")),
        standard=ask(rag.with_settings(mode="standard"), questions, stages("Standard RAG")),
        strong=ask(rag.with_settings(mode="strong"), questions, stages("Strong RAG")),
        oracle=ask(
            rag.with_settings(mode="oracle"),
            questions,
            stages("Oracle"),
            oracle=[gold(world, question) for question in questions],
        ),
    )


def first_pass(rag: LazyRAG, questions: Sequence[Question], progress: Progress) -> tuple[LazyRAGResult, ...]:
    """Answer from the summaries, never retrieving: what a gate sees, to its end."""
    return ask(rag.with_settings(mode="lazy", tau=math.inf), questions, progress)


def ask(
    rag: LazyRAG,
    questions: Sequence[Question],
    progress: Progress,
    oracle: Sequence[Sequence[Passage]] | None = None,
) -> tuple[LazyRAGResult, ...]:
    """Answer questions in merged batches."""
    texts = [question.text for question in questions]
    return tuple(rag.run_many(texts, oracle=oracle, at_once=AT_ONCE, progress=progress))


def signal(result: LazyRAGResult) -> float:
    """Return the gate's signal; infinite where there was no first answer to judge."""
    return math.inf if result.decision.entropy is None else result.decision.entropy


def gold(world: World, question: Question) -> tuple[Passage, ...]:
    """Return the passages that tell what a question needs."""
    return tuple(world.passage[place] for place in question.gold_passages)


def records(answers: Answers) -> list[Record]:
    """Judge every answer."""

    def judged(question: Question, result: LazyRAGResult) -> Pass:
        return Pass(
            is_correct(question, result.answer),
            result.generation.prompt_tokens,
            result.prompt_tokens,
            result.completion_tokens,
        )

    return [
        Record(
            id=question.id,
            kind=f"{question.kind}, {question.source}",
            entropy=signal(first),
            first=judged(question, first),
            none=judged(question, none),
            standard=judged(question, standard),
            strong=judged(question, strong),
            oracle=judged(question, oracle),
        )
        for question, first, none, standard, strong, oracle in zip(
            answers.questions,
            answers.first,
            answers.none,
            answers.standard,
            answers.strong,
            answers.oracle,
            strict=True,
        )
    ]


class _Found:
    """A retriever that has been asked already."""

    def __init__(self, retriever: Retriever, queries: Sequence[str], k: int) -> None:
        distinct = list(dict.fromkeys(queries))
        self._retriever = retriever
        self._k = k
        self._found = dict(zip(distinct, _retrieve_many(retriever, distinct, k), strict=True))

    def retrieve(self, query: str, k: int) -> Sequence[Passage]:
        """Return what was found, or look it up."""
        if k == self._k and query in self._found:
            return self._found[query]
        return self._retriever.retrieve(query, k)


def _retrieve_many(retriever: Retriever, queries: list[str], k: int) -> Sequence[Sequence[Passage]]:
    many = getattr(retriever, "retrieve_many", None)
    return many(queries, k) if many is not None else [retriever.retrieve(query, k) for query in queries]
