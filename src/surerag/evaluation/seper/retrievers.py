"""Retrievers of known quality, and what their passages are worth to the reader."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from surerag.evaluation.seper.analysis import CONFIDENCE
from surerag.evaluation.seper.asking import SAMPLES, Samples
from surerag.evaluation.seper.results import RetrieverRow, Retrievers
from surerag.evaluation.seper.scores import belief
from surerag.evaluation.statistics import Estimate, paired_difference, rank_correlation
from surerag.services import Encoder, Retriever
from surerag.types import Passage
from surerag.world.questions import Question
from surerag.world.retrievers import TruncatedRetriever, graded_retrievers
from surerag.world.world import World

K = 5


class MissingRetriever:
    """Another retriever, from whose result each gold passage is missing with a known probability.

    Args:
        retriever: What is found without it.
        gold: Ids of each question's gold passages, by the question's text.
        rest: Gives what is shown in place of a missing passage.
        missing: The probability.
    """

    def __init__(
        self,
        retriever: Retriever,
        gold: Mapping[str, Sequence[str]],
        rest: Retriever,
        *,
        missing: float = 0.5,
    ) -> None:
        self._retriever, self._rest = retriever, rest
        self._gold, self._missing = gold, missing

    def retrieve(self, query: str, k: int) -> list[Passage]:
        """Return k passages; the same ones for the same query."""
        rng = random.Random(f"surerag missing retriever {self._missing} {query}")
        gold = self._gold.get(query, ())
        dropped = {name for name in gold if rng.random() < self._missing}
        found = [passage for passage in self._retriever.retrieve(query, k) if passage.id not in dropped]
        shown = {passage.id for passage in found} | dropped
        others = [passage for passage in self._rest.retrieve(query, 2 * k) if passage.id not in shown]
        return [*found, *others][:k]


@dataclass(frozen=True, slots=True)
class Found:
    """What one retriever found for every question.

    Attributes:
        name: The retriever.
        passages: For each question.
        recall: Share of each question's gold passages among them.
    """

    name: str
    passages: tuple[tuple[Passage, ...], ...]
    recall: tuple[float, ...]


def look_up(world: World, questions: Sequence[Question], encoder: Encoder, k: int = K) -> list[Found]:
    """Ask the world's graded retrievers, and two grades between them, about every question."""
    graded = graded_retrievers(world, questions, encoder)
    gold = {question.text: question.gold_passages for question in questions}
    retrievers: dict[str, Retriever] = {
        **graded,
        "exact, half missing": MissingRetriever(graded["exact"], gold, graded["random"]),
        "dense, truncated to 3": TruncatedRetriever(world.passages, encoder, words=3),
    }
    return [_found(name, retriever, questions, k) for name, retriever in retrievers.items()]


def _found(name: str, retriever: Retriever, questions: Sequence[Question], k: int) -> Found:
    texts = [question.text for question in questions]
    many = getattr(retriever, "retrieve_many", None)
    rows = many(texts, k) if many is not None else [retriever.retrieve(text, k) for text in texts]
    return Found(
        name,
        tuple(map(tuple, rows)),
        tuple(
            len({passage.id for passage in row} & set(question.gold_passages)) / len(question.gold_passages)
            for question, row in zip(questions, rows, strict=True)
        ),
    )


def ranked(
    found: Sequence[Found], before: Sequence[Samples], after: Sequence[Sequence[Samples]], k: int = K
) -> Retrievers:
    """Compare known quality with mean ΔSePer.

    Args:
        found: What each retriever found.
        before: Samples of each question without context.
        after: Samples of each question, with the passages of each retriever in the order of ``found``.
        k: Passages that each returned.
    """
    closed = np.array([belief(samples.first(SAMPLES)) for samples in before])
    opened = np.array([[belief(samples) for samples in row] for row in after]).T
    recalls = np.array([one.recall for one in found])
    rows = []
    for one, beliefs in zip(found, opened, strict=True):
        gain = paired_difference(beliefs, closed, confidence=CONFIDENCE)
        rows.append(
            RetrieverRow(one.name, float(np.mean(one.recall)), Estimate(gain.value, gain.low, gain.high))
        )
    return Retrievers(
        k=k,
        n=len(before),
        rows=tuple(sorted(rows, key=lambda row: -row.recall)),
        rank=rank_correlation(recalls, opened - closed, confidence=CONFIDENCE),
    )
