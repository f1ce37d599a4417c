"""Retrievers of graded quality, from exact to random, for comparisons between retrievers."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from studies.world.questions import Question, normalise
from surerag.errors import ConfigurationError
from surerag.messages import Passage
from surerag.retrieval import PassageIndex
from surerag.retrieval.index import DEFAULT_K
from surerag.services import Encoder

if TYPE_CHECKING:
    from studies.world.world import World


class ExactRetriever:
    """Returns the gold passages of a world's questions first, and then others at random.

    Queries are recognised by their text, vague ones by their rewrite as well. A query that is no
    question of the world gets random passages.

    Args:
        world: The world.
        questions: Its questions that will be asked.
    """

    def __init__(self, world: World, questions: Iterable[Question]) -> None:
        self._passages = world.passage
        self._gold: dict[str, tuple[str, ...]] = {}
        for question in questions:
            for text in (question.text, question.rewrite):
                if text is not None:
                    self._gold[normalise(text)] = question.gold_passages
        self._rest = RandomRetriever(world.passages, seed=world.seed)

    def retrieve(self, query: str, k: int | None = None) -> list[Passage]:
        """Return k passages, gold ones first."""
        k = DEFAULT_K if k is None else k
        gold = self._gold.get(normalise(query), ())[:k]
        rest = [p for p in self._rest.retrieve(query, k + len(gold)) if p.id not in gold]
        found = [self._passages[name] for name in gold] + rest[: k - len(gold)]
        return [replace(passage, score=1.0 if passage.id in gold else 0.0) for passage in found]


class BM25Retriever:
    """Okapi BM25 over words in lower case (Robertson and Zaragoza, 2009).

    Args:
        passages: The corpus.
        k1: Saturation of term frequency.
        b: Strength of length normalisation, in [0, 1].
    """

    def __init__(self, passages: Sequence[Passage], *, k1: float = 1.2, b: float = 0.75) -> None:
        self._passages = tuple(passages)
        counts = [Counter(normalise(passage.text).split()) for passage in self._passages]
        lengths = np.array([sum(count.values()) for count in counts], dtype=np.float64)
        norm = k1 * (1 - b + b * lengths / max(lengths.mean(), 1.0))
        found = Counter(word for count in counts for word in count)
        self._idf = {w: math.log(1 + (len(counts) - n + 0.5) / (n + 0.5)) for w, n in found.items()}
        self._weights: dict[str, list[tuple[int, float]]] = {word: [] for word in found}
        for place, count in enumerate(counts):
            for word, times in count.items():
                self._weights[word].append((place, times * (k1 + 1) / (times + norm[place])))

    def retrieve(self, query: str, k: int | None = None) -> list[Passage]:
        """Return the k best passages with their scores; ties in the corpus' order."""
        k = DEFAULT_K if k is None else k
        scores = np.zeros(len(self._passages))
        for word in normalise(query).split():
            for place, weight in self._weights.get(word, ()):
                scores[place] += self._idf[word] * weight
        best = np.argsort(-scores, kind="stable")[:k]
        return [replace(self._passages[place], score=float(scores[place])) for place in best]


class TruncatedRetriever:
    """Finds passages by an encoding of their first words only, and returns them whole.

    Args:
        passages: The corpus.
        encoder: Encodes passages and queries.
        words: Words of each passage that the encoder gets to see.
    """

    def __init__(self, passages: Sequence[Passage], encoder: Encoder, *, words: int = 6) -> None:
        if words < 1:
            raise ConfigurationError(
                f"words must be at least 1, got {words}", hint="6 hides about half the facts"
            )
        self._whole = {passage.id: passage for passage in passages}
        cut = [replace(p, text=" ".join(p.text.split()[:words])) for p in passages]
        self._index = PassageIndex.from_passages(cut, encoder)

    def retrieve(self, query: str, k: int | None = None) -> list[Passage]:
        """Return the k best passages with their scores."""
        return self.retrieve_many([query], k)[0]

    def retrieve_many(self, queries: Sequence[str], k: int | None = None) -> list[list[Passage]]:
        """Return what `retrieve` returns for each query; the encoder is asked once."""
        found = self._index.retrieve_many(queries, k)
        return [[replace(self._whole[p.id], score=p.score) for p in passages] for passages in found]


class RandomRetriever:
    """Returns passages that have nothing to do with the query; the same ones for the same query.

    Args:
        passages: The corpus.
        seed: Seed of the choice.
    """

    def __init__(self, passages: Sequence[Passage], *, seed: int = 0) -> None:
        self._passages, self._seed = tuple(passages), seed

    def retrieve(self, query: str, k: int | None = None) -> list[Passage]:
        """Return k passages drawn at random."""
        k = DEFAULT_K if k is None else k
        rng = random.Random(f"surerag.world random retriever {self._seed} {query}")
        return rng.sample(self._passages, min(k, len(self._passages)))


Retriever = ExactRetriever | BM25Retriever | TruncatedRetriever | RandomRetriever | PassageIndex


def graded_retrievers(
    world: World, questions: Iterable[Question], encoder: Encoder
) -> Mapping[str, Retriever]:
    """Return retrievers from best to worst, as a rule.

    Args:
        world: The corpus.
        questions: The questions that the exact one shall know.
        encoder: What ``"dense"`` and ``"dense, truncated"`` see with, such as MiniLM.

    Returns:
        Retrievers by name.
    """
    return {
        "exact": ExactRetriever(world, questions),
        "dense": PassageIndex.from_passages(world.passages, encoder),
        "BM25": BM25Retriever(world.passages),
        "dense, truncated": TruncatedRetriever(world.passages, encoder),
        "random": RandomRetriever(world.passages, seed=world.seed),
    }
