"""Contexts of known utility, and what retrievers of known quality find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from surerag.services import Encoder, Retriever
from surerag.types import Passage
from surerag.world.language import Fact
from surerag.world.questions import Question, normalise
from surerag.world.retrievers import MissingRetriever, TruncatedRetriever, graded_retrievers
from surerag.world.world import World

_MOST = 12
"""Passages to look through for one of each kind that does not give the answer away."""

K = 5


class Role(StrEnum):
    """What a context is to a question."""

    GOLD = "gold"
    DUPLICATE = "gold, paraphrased"
    KNOWN = "known by heart"
    SAME_ENTITY = "same entity, other fact"
    SAME_RELATION = "same relation elsewhere"
    MISLEADING = "another answer"
    IRRELEVANT = "irrelevant"
    FIRST_HALF = "first half"
    SECOND_HALF = "second half"
    SECOND_AGAIN = "second half, paraphrased"
    BOTH_HALVES = "both halves"
    LADDER = "ladder"


@dataclass(frozen=True, slots=True)
class KnownContext:
    """Passages, and what they are worth.

    Attributes:
        role: What they are to the question.
        passages: As the reader is shown them.
        utility: Known utility: 1 where they suffice, 0.5 for half of a two-hop chain, 0 where they do not
            help, mislead, or the reader knows the answer by heart.
        step: Place on the ladder of growing relevance (Property 3); None beside it.
    """

    role: Role
    passages: tuple[Passage, ...]
    utility: float
    step: int | None = None


def known_contexts(world: World, question: Question) -> list[KnownContext]:
    """Return a question's contexts of known utility: single passages, a whole chain, and a ladder.

    A ladder begins with an irrelevant passage and adds the others in order of relevance: a distractor or the
    first half, what completes the evidence, and a paraphrase of that. Questions that the reader was taught
    have none: their information need is satisfied before anything is retrieved.

    Args:
        world: The question's world.
        question: A single-hop or two-hop question that some article answers.
    """
    gold = [world.passage[place] for place in question.gold_passages]
    again = world.contexts.paraphrase(gold[-1])
    others = _distractors(world, question)
    [irrelevant] = _first(world, question, world.contexts.lacking(question, _MOST, noise=1.0), lambda _: True)
    useless = [
        *(KnownContext(role, (passage,), 0.0) for role, passage in others.items()),
        *(KnownContext(Role.MISLEADING, (world.passage[name],), 0.0) for name in question.misleading[:1]),
        KnownContext(Role.IRRELEVANT, (irrelevant,), 0.0, None if question.taught else 0),
    ]
    if question.taught:
        return [KnownContext(Role.KNOWN, (passage,), 0.0) for passage in (gold[0], again)] + useless
    if question.hops == 1:
        useful = [KnownContext(Role.GOLD, (gold[0],), 1.0), KnownContext(Role.DUPLICATE, (again,), 1.0)]
        rungs = [*[*others.values()][-1:], gold[0], again]
        worth = ([0.0] if others else []) + [1.0, 1.0]
    else:
        useful = [
            KnownContext(Role.FIRST_HALF, (gold[0],), 0.5),
            KnownContext(Role.SECOND_HALF, (gold[1],), 0.5),
            KnownContext(Role.SECOND_AGAIN, (again,), 0.5),
            KnownContext(Role.BOTH_HALVES, (gold[0], gold[1]), 1.0),
        ]
        rungs, worth = [*gold, again], [0.5, 1.0, 1.0]
    first = 4 - len(rungs)
    ladder = [
        KnownContext(Role.LADDER, (irrelevant, *rungs[: at + 1]), worth[at], first + at)
        for at in range(len(rungs))
    ]
    return [*useful, *useless, *ladder]


def _distractors(world: World, question: Question) -> dict[Role, Passage]:
    """Return one passage of the same entity and one of the same relation, so far as there are any."""
    drawn = world.contexts.lacking(question, _MOST, noise=0.0)
    entities = {question.entity} | {
        str(world.passage[name].metadata["title"]) for name in question.gold_passages
    }
    relations = {
        fact.relation.name
        for name in question.gold_passages
        for fact in world.contexts.facts_of(world.passage[name])
    }
    found: dict[Role, Passage] = {}
    same = _first(world, question, drawn, lambda p: p.metadata["title"] in entities)
    found.update((Role.SAME_ENTITY, passage) for passage in same)
    akin = _first(
        world,
        question,
        drawn,
        lambda p: (
            p.metadata["title"] not in entities
            and any(fact.relation.name in relations for fact in world.contexts.facts_of(p))
        ),
    )
    found.update((Role.SAME_RELATION, passage) for passage in akin)
    return found


def _first(
    world: World, question: Question, passages: Iterable[Passage], fits: Callable[[Passage], bool]
) -> list[Passage]:
    """Return the first passage that fits, does not mislead, nor tell the answer by chance; or none."""
    answer = question.answers[0]
    silent = (
        passage
        for passage in passages
        if fits(passage)
        and passage.id not in question.misleading
        and not _tells(world.contexts.facts_of(passage), answer, passage)
    )
    return [passage for passage, _ in zip(silent, range(1), strict=False)]


def _tells(facts: Iterable[Fact], answer: str, passage: Passage) -> bool:
    named = {fact.value for fact in facts} | {fact.entity for fact in facts}
    return answer in named or answer.lower() in normalise(passage.text).split()


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
