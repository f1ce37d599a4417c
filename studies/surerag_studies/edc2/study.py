"""The EDC²-RAG study, from a seed to its findings: every question asked from every kind of context."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, takewhile

import numpy as np
from numpy.typing import NDArray

from surerag import ClusterCompressor, drivers
from surerag.drivers.progress import Stages, counted_not_logged, reporting
from surerag.effects import Program, generate
from surerag.journal import Memory
from surerag.prompts import FROM_CONTEXT, format_passages
from surerag.readers.protocol import BaseReader
from surerag.recording import RecordedReader
from surerag.services import Encoder
from surerag.tokens import estimated_tokens
from surerag.types import Passage, Sampling
from surerag.world.questions import Question, is_correct
from surerag.world.regimes import TODAY, Regime
from surerag.world.world import World
from surerag_studies.asking import RememberingEncoder
from surerag_studies.edc2.analysis import Found, claims, figures
from surerag_studies.edc2.contexts import GRID, LARGE, Cell, Method, draw, ranked
from surerag_studies.edc2.results import CompressionStudy, Record
from surerag_studies.worlds import world_of

AT_ONCE = 128
CONTEXTS_AT_ONCE = 25
ANSWER = Sampling(max_tokens=24)
COMPRESSION_TOKENS = 96
WINDOW = 1_800
"""Tokens of context that plain RAG may read: the embedded reader's window, less room for the rest."""

CONFIDENCE = 0.95
LARGE_SHARE = 10
"""One question in so many is asked at top-k 100 too."""


class Bench:
    """A world, a reader and the compressors to compare.

    Args:
        world: Whose questions are asked.
        reader: Compresses and answers.
        vectors: Of questions and passages.
    """

    def __init__(self, world: World, reader: BaseReader, vectors: RememberingEncoder) -> None:
        self._world = world
        self._vectors = vectors
        self._count: Callable[[str], int] = getattr(reader, "count_tokens", estimated_tokens)
        # Methods share their first pass, and conditions some of their clusters: nothing is asked twice.
        once = RecordedReader(reader, Memory())
        ours = ClusterCompressor(once, max_tokens=COMPRESSION_TOKENS, count_tokens=self._count)
        self._services = ours.services
        self._compressors = {
            "dynamic": ours,
            "bridged": ours.with_options(bridging=1),
            "whole": ours.with_options(first_cluster_size=20),
            "average": ours.with_options(clustering="average"),
            "random": ours.with_options(clustering="random"),
            "single": ours.with_options(clustering="single", pass_below=0),
        }

    def ask(self, cell: Cell, questions: Sequence[Question], stages: Stages) -> dict[Method, list[Record]]:
        """Answer questions under one condition, by each of its methods."""
        texts = [question.text for question in questions]
        found = self._contexts(cell, questions, stages)
        asked = self._vectors.encode(texts, "query")
        with counted_not_logged():
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
        vectors: Iterable[NDArray[np.float32]],
        stages: Stages,
    ) -> list[Record]:
        programs = [
            self._program(method, question, context, vector)
            for question, context, vector in zip(questions, contexts, vectors, strict=True)
        ]
        stage = stages(f"{_named(cell)}: {method}")
        return drivers.run_many(programs, self._services, window=AT_ONCE, progress=stage)

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


def compression_study(
    reader: BaseReader,
    encoder: Encoder,
    *,
    seed: int,
    n: int,
    grid: Sequence[Cell] = GRID,
    large: Cell | None = LARGE,
    regime: Regime = TODAY,
    stages: Stages = lambda _: False,
) -> CompressionStudy:
    """Answer the same questions from contexts of growing noise and redundancy, compressed and not.

    Args:
        reader: Compresses and answers, greedily.
        encoder: Ranks and clusters.
        seed: Seed of the world, one that the reader was not trained on.
        n: Questions, the same in every cell.
        grid: Conditions, and the methods to run under each.
        large: A condition to run on a tenth of the questions; None for none.
        regime: What misleads in the world; by default nothing does. Contexts that leave room then hold a
            passage that answers the question wrongly, where the world has one.
        stages: Told how far each stage is.
    """
    world = world_of(regime, n, seed)
    questions = world.questions(n)
    bench = Bench(world, reader, RememberingEncoder(encoder))
    found = [Found(cell.condition, bench.ask(cell, questions, stages)) for cell in grid]
    some = questions[: max(1, n // LARGE_SHARE)]
    more = None if large is None else Found(large.condition, bench.ask(large, some, stages))
    return CompressionStudy(
        seed=seed,
        regime=regime.name,
        n=n,
        model=reader.name,
        encoder=encoder.name,
        confidence=CONFIDENCE,
        cells=tuple(map(figures, found)),
        large=None if more is None else figures(more),
        claims=claims(found),
    )
