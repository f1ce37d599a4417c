"""Questions, the facts each needs, and what retrievers find for them in a corpus that is not clean."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from surerag.retrieval import PassageIndex
from surerag.services import Encoder, Retriever
from surerag.types import Passage
from surerag.world.language import STALE_OPENINGS, Fact
from surerag.world.questions import Question
from surerag.world.retrievers import BM25Retriever, MissingRetriever, RandomRetriever, TruncatedRetriever
from surerag.world.world import World

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_STALE = tuple(opening.casefold() for opening in STALE_OPENINGS)

POOL = 20
"""Passages that are retrieved: the first k are the context, the others candidates."""

REDUNDANCY = 0.25
"""Share of the corpus that says in other words what another passage says."""

STALE_EVERY = 4
"""For one question in so many, the corpus also holds an outdated answer, marked as such."""


def needed_facts(world: World, question: Question) -> tuple[Fact, ...]:
    """Return the facts that a question's answer follows from: one, or the two links of a chain.

    Args:
        world: The question's world.
        question: Answered by some article of it.
    """
    told = [world.contexts.facts_of(world.passage[place]) for place in question.gold_passages]
    last = next(
        fact
        for fact in told[-1]
        if fact.value == question.answers[0]
        and fact.relation.value is question.value_kind
        and (question.hops == 2 or fact.entity == question.entity)
    )
    if question.hops == 1:
        return (last,)
    first = next(fact for fact in told[0] if fact.entity == question.entity and fact.value == last.entity)
    return first, last


def tells(text: str, fact: Fact) -> bool:
    """Return whether one sentence names the fact's entity and its value, and is not marked as outdated.

    Every sentence of the world names its subject, so that a sentence cut in two mostly tells nothing.
    """
    return any(
        _names(sentence, fact.entity)
        and _names(sentence, fact.value)
        and not sentence.casefold().startswith(_STALE)
        for sentence in _SENTENCE_END.split(text)
    )


def tells_all(passages: Iterable[Passage], facts: Sequence[Fact]) -> bool:
    """Return whether passages together tell every one of some facts."""
    shown = list(passages)
    return all(any(tells(passage.text, fact) for passage in shown) for fact in facts)


def tells_any(passage: Passage, facts: Iterable[Fact]) -> bool:
    """Return whether a passage tells at least one of some facts."""
    return any(tells(passage.text, fact) for fact in facts)


def _names(sentence: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", sentence, re.IGNORECASE) is not None


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A question, and what is known about it.

    Attributes:
        question: What is asked.
        facts: What its answer follows from.
        retriever: Who retrieved.
        pool: What was retrieved, best first.
        documents: The articles behind these passages as the corpus holds them: repeated and outdated
            passages stand at the end of the article they are about.
    """

    question: Question
    facts: tuple[Fact, ...]
    retriever: str
    pool: tuple[Passage, ...]
    documents: tuple[Passage, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """The corpus by document.

    Attributes:
        passages: The whole corpus.
        parts: The passages of each document, in its own order.
        documents: Each document as one running text: a line break would tell where a passage ends.
    """

    passages: tuple[Passage, ...]
    parts: Mapping[str, tuple[Passage, ...]]
    documents: Mapping[str, Passage]


def library(world: World, questions: Sequence[Question]) -> Library:
    """Return the world's corpus with repetitions, and outdated answers to some questions."""
    stale = {question.gold_passages[-1]: question for question in questions[::STALE_EVERY]}
    corpus = world.contexts.corpus(redundancy=REDUNDANCY, stale=tuple(stale.values()))
    grouped: dict[str, list[Passage]] = defaultdict(list)
    for passage in corpus:
        grouped[str(passage.metadata["document"])].append(passage)
    parts = {name: tuple(sorted(some, key=_place)) for name, some in grouped.items()}
    documents = {
        name: Passage(" ".join(passage.text for passage in some), id=name) for name, some in parts.items()
    }
    return Library(corpus, parts, documents)


def _place(passage: Passage) -> tuple[bool, str]:
    """Sort what an article holds before what repeats or contradicts it."""
    added = "paraphrase" in passage.metadata or "outdated" in passage.metadata
    return added, passage.id


def draw_cases(
    world: World, questions: Sequence[Question], corpus: Library, encoder: Encoder
) -> tuple[Case, ...]:
    """Let four retrievers, from good to bad, take turns with the questions.

    Args:
        world: Where the questions are from.
        questions: In an order that has nothing to do with what they ask.
        corpus: What is searched.
        encoder: Behind three of the retrievers.
    """
    retrievers = _retrievers(world, questions, corpus, encoder)
    names = list(retrievers)
    found: dict[int, Sequence[Passage]] = {}
    for turn, name in enumerate(names):
        places = range(turn, len(questions), len(names))
        texts = [questions[place].text for place in places]
        found.update(zip(places, _look_up(retrievers[name], texts), strict=True))
    return tuple(
        Case(
            question,
            needed_facts(world, question),
            names[place % len(names)],
            tuple(found[place]),
            tuple(
                corpus.documents[name]
                for name in dict.fromkeys(str(passage.metadata["document"]) for passage in found[place])
            ),
        )
        for place, question in enumerate(questions)
    )


def _retrievers(
    world: World, questions: Sequence[Question], corpus: Library, encoder: Encoder
) -> dict[str, Retriever]:
    dense = PassageIndex.from_passages(corpus.passages, encoder)
    gold = {question.text: question.gold_passages for question in questions}
    rest = RandomRetriever(corpus.passages, seed=world.seed)
    return {
        "dense": dense,
        "BM25": BM25Retriever(corpus.passages),
        "half missing": MissingRetriever(dense, gold, rest),
        "truncated": TruncatedRetriever(corpus.passages, encoder),
    }


def _look_up(retriever: Retriever, texts: Sequence[str]) -> list[Sequence[Passage]]:
    many = getattr(retriever, "retrieve_many", None)
    rows = many(texts, POOL) if many is not None else [retriever.retrieve(text, POOL) for text in texts]
    return list(rows)
