"""Ask every question from every kind of context, in merged batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, takewhile

import numpy as np
from numpy.typing import NDArray

from surerag import drivers
from surerag.components import ClusterCompressor
from surerag.drivers.progress import Progress, reporting
from surerag.effects import Program, generate
from surerag.evaluation.edc2.contexts import Cell, Method, Vectors, draw, ranked
from surerag.evaluation.journal import Memory
from surerag.evaluation.recording import RecordedReader
from surerag.methods.compression_types import words_and_marks
from surerag.prompts import FROM_CONTEXT, format_passages
from surerag.readers.protocol import BaseReader
from surerag.types import Passage, Sampling
from surerag.world.questions import Question, is_correct
from surerag.world.spec import QuestionKind
from surerag.world.world import World

Stages = Callable[[str], Progress]
"""From the name of a stage to what shall be told of its progress."""

AT_ONCE = 128
CONTEXTS_AT_ONCE = 25
ANSWER = Sampling(max_tokens=24)
COMPRESSION_TOKENS = 96
WINDOW = 1_800
"""Tokens of context that plain RAG may read: the embedded reader's window, less room for the rest."""


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


@contextmanager
def _counted_not_logged() -> Iterator[None]:
    """Keep warnings of single questions out of the log: the study counts them."""
    logger = logging.getLogger("surerag")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class Bench:
    """A world, a reader and the compressors to compare.

    Args:
        world: Whose questions are asked.
        reader: Compresses and answers.
        vectors: Of questions and passages.
    """

    def __init__(self, world: World, reader: BaseReader, vectors: Vectors) -> None:
        self._world = world
        self._vectors = vectors
        self._count: Callable[[str], int] = getattr(reader, "count_tokens", words_and_marks)
        # Methods share their first pass, and conditions some of their clusters: nothing is asked twice.
        once = RecordedReader(reader, Memory())
        ours = ClusterCompressor(once, max_tokens=COMPRESSION_TOKENS, count_tokens=self._count)
        self._services = ours.services
        self._compressors = {
            "dynamic": ours,
            "bridged": ours.with_settings(bridging=1),
            "whole": ours.with_settings(tau=20),
            "average": ours.with_settings(clustering="average"),
            "random": ours.with_settings(clustering="random"),
            "single": ours.with_settings(clustering="single", pass_below=0),
        }

    def ask(self, cell: Cell, questions: Sequence[Question], stages: Stages) -> dict[Method, list[Record]]:
        """Answer questions under one condition, by each of its methods."""
        texts = [question.text for question in questions]
        found = self._contexts(cell, questions, stages)
        asked = self._vectors.of(texts, "query")
        with _counted_not_logged():
            return {
                method: self._by(method, cell, questions, found, asked, stages) for method in cell.methods
            }

    def _contexts(self, cell: Cell, questions: Sequence[Question], stages: Stages) -> list[list[Passage]]:
        found: list[list[Passage]] = []
        with reporting(stages(f"{_named(cell)}: passages"), len(questions)) as advance:
            for some in _batched(questions, CONTEXTS_AT_ONCE):
                drawn = [draw(self._world, question, cell.condition) for question in some]
                found += ranked(drawn, [question.text for question in some], self._vectors)
                for _ in some:
                    advance()
        return found

    def _by(
        self,
        method: Method,
        cell: Cell,
        questions: Sequence[Question],
        contexts: Sequence[Sequence[Passage]],
        vectors: Sequence[NDArray[np.float32]],
        stages: Stages,
    ) -> list[Record]:
        programs = [
            self._program(method, question, context, vector)
            for question, context, vector in zip(questions, contexts, vectors, strict=True)
        ]
        stage = stages(f"{_named(cell)}: {method}")
        return drivers.run_many(programs, self._services, at_once=AT_ONCE, progress=stage)

    def _program(
        self, method: Method, question: Question, passages: Sequence[Passage], vector: NDArray[np.float32]
    ) -> Program[Record]:
        shown: Sequence[Passage] = self._within_window(passages)
        calls = read = written = refused = 0
        fell_back = False
        if method != "plain":
            compressor = self._compressors[method]
            result = yield from compressor.program(question.text, passages, query_vector=vector)
            shown, calls, fell_back = result.passages, result.calls, result.fell_back
            refused = sum(report.trouble == "unsupported" for report in result.clusters)
            read, written = result.prompt_tokens, result.completion_tokens
        context = format_passages(passage.text for passage in shown)
        prompt = FROM_CONTEXT.render(context=context, question=question.text)
        [[answer]] = yield from generate([prompt], ANSWER)
        return Record(
            kind=question.kind,
            correct=is_correct(question, answer.text),
            holds_answer=any(name.casefold() in context.casefold() for name in question.answers),
            context_tokens=self._count(context),
            calls=calls,
            fell_back=fell_back,
            refused=refused / calls if calls else 0.0,
            prompt_tokens=read + answer.prompt_tokens,
            completion_tokens=written + answer.completion_tokens,
        )

    def _within_window(self, passages: Sequence[Passage]) -> Sequence[Passage]:
        sums = accumulate(self._count(passage.text) + 4 for passage in passages)
        return passages[: sum(1 for _ in takewhile(lambda total: total <= WINDOW, sums))]


def _named(cell: Cell) -> str:
    kind, k, level = cell.condition.kind, cell.condition.top_k, cell.condition.level
    return f"top-k {k}, {kind} {level:.0%}"


def _batched(questions: Sequence[Question], size: int) -> Iterator[Sequence[Question]]:
    return (questions[start : start + size] for start in range(0, len(questions), size))
