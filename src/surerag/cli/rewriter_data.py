"""Queries, corpus and models of ``surerag train-rewriter``, from what the user named."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from surerag.cli.readers import ReaderChoice
from surerag.cli.rewriter_wanted import Wanted
from surerag.encoders import packaged_minilm
from surerag.errors import CapabilityError
from surerag.factories import Factory
from surerag.measures import exact_match
from surerag.methods.dynqr.component import require_metric
from surerag.readers.protocol import BaseReader
from surerag.retrieval import PassageIndex
from surerag.services import Encoder, Retriever
from surerag.training.rewriter import Draw, Query, SampleOptions, draw, read_queries
from surerag.training.rewriter.asking import IsCorrect, chunks
from surerag.training.rewriter.corpus import digest_of, indexed, read_corpus
from surerag.types import Passage

if TYPE_CHECKING:
    from surerag.world import World

_PROBED = 20
"""Contexts that tell how long they are."""


class Data:
    """Queries and corpus, read when they are needed."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted

    @cached_property
    def base(self) -> str:
        """The model to be trained; on the closed world the embedded reader, if none was named."""
        from surerag.world import embedded_reader_path

        return self._wanted.base or str(embedded_reader_path())

    @cached_property
    def drawn(self) -> Draw:
        """The queries, drawn at random and shared out."""
        seed = self._wanted.distil.fine_tuning.seed
        return draw(self._rows, self._wanted.shares, most=self._wanted.queries, seed=seed)

    @property
    def _rows(self) -> Iterator[Query]:
        if self._wanted.world is None:
            yield from read_queries(self._wanted.file or Path(), self._wanted.columns, kind=self._wanted.kind)
            return
        for question in self._world.questions(self._wanted.queries):
            kind = question.kind.value if self._wanted.kind else ""
            yield Query(question.text, question.answers, question.id, kind)

    @cached_property
    def is_correct(self) -> IsCorrect:
        """Who judges answers: the closed world itself, or equality of words."""
        if self._wanted.world is None:
            return exact_match
        from surerag.world import is_correct

        asked = {question.answers: question for question in self._world.questions(self._wanted.queries)}

        def judge(answer: str, golds: Sequence[str]) -> bool:
            question = asked.get(tuple(golds))
            # Questions in the same words are one query, with the answers of both.
            return exact_match(answer, golds) if question is None else is_correct(question, answer)

        return judge

    @cached_property
    def encoder(self) -> Encoder | None:
        """Encodes corpus and queries; with a retriever of one's own only where the reward needs it."""
        needed = self._wanted.retriever is None or self._wanted.align.reward == "relevance"
        return packaged_minilm() if needed else None

    @cached_property
    def corpus(self) -> str:
        """What is searched, in words that change with it."""
        return self._wanted.retriever or digest_of(self.passages)

    @cached_property
    def retriever(self) -> Retriever:
        """Searches the corpus."""
        if self._wanted.retriever is not None:
            return _made(self._wanted.retriever)
        if self._wanted.world is not None:
            return PassageIndex.from_passages(self.passages, self.encoder or packaged_minilm())
        return indexed(self.passages, self.encoder or packaged_minilm(), self._wanted.output / "index")

    @property
    def contexts(self) -> Sequence[Sequence[Passage]]:
        """Some contexts that tell how long they are; a corpus need not be indexed for that."""
        k = self._wanted.sample.top_n or 1
        if self._wanted.retriever is not None:
            queries = self.drawn.sample
            some = queries[:: -(-len(queries) // _PROBED)]
            return [self.retriever.retrieve(query.text, k) for query in some]
        passages = self.passages[:: -(-len(self.passages) // (_PROBED * k))]
        return list(chunks(passages, k))

    @cached_property
    def passages(self) -> Sequence[Passage]:
        """The corpus."""
        if self._wanted.documents is not None:
            return read_corpus(self._wanted.documents)
        return self._world.passages

    @cached_property
    def _world(self) -> World:
        from surerag.world import World

        return World(seed=self._wanted.world or 0)


class Models:
    """Reader and teacher, loaded when they are needed; a server is only asked what it can do if need be."""

    def __init__(self, choice: ReaderChoice, teacher: ReaderChoice, wanted: Wanted) -> None:
        self._choice, self._teacher, self._wanted = choice, teacher, wanted

    @cached_property
    def reader(self) -> BaseReader:
        """Answers."""
        return self._choice.build(probe=self._wanted.searches and self._wanted.sample.metric is not None)

    @cached_property
    def teacher(self) -> BaseReader:
        """Rewrites; the reader itself if nobody was named."""
        return self.reader if self._teacher.is_embedded else self._teacher.build(probe=False)


def measured_by(wanted: Wanted, reader: BaseReader) -> SampleOptions:
    """Return how to sample: without an uncertainty, where no reward needs one and the reader tells none."""
    if wanted.sample.metric is not None and wanted.align.reward != "uncertainty":
        try:
            require_metric(wanted.sample.metric, reader)
        except CapabilityError:
            return replace(wanted.sample, metric=None)
    return wanted.sample


def _made(name: str) -> Retriever:
    factory = Factory.parsed("--retriever", name)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    hint = "name a module that can be imported from here, and a function in it"
    made: Retriever = factory.make(Retriever, hint=hint)
    return made
