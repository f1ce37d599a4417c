"""What misleads a reader: memories and summaries that time has passed by, altered copies, namesakes, noise.

Everything here is planted, so that it is known which fact is affected, how, and which passages say what is
not so. A world without hazards asks for none of it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from surerag.messages import Passage
from world import language as say
from world.articles import Document, write_article, write_passage
from world.core import core_facts
from world.language import Fact
from world.lexicon import ENTITY_KINDS, fresh_entities, words
from world.spec import Cell, Hazard, QuestionKind, Source

Key = tuple[str, str]
"""An entity and the name of a relation."""

CORRECTIONS = 2
ALTERED_COPIES = 2
LOUD_PAGES = 2
CROWD = 3
"""Passages that repeat a question without an answer: as many as L-RAG looks at."""

_CROWDING = (
    "{q} Many ask, and few can tell.",
    "Travellers often ask: {q} Nobody there likes to say.",
    "{q} That is what letters about {e} keep asking.",
    "Some would know: {q} Guides to {e} leave it open.",
)


@dataclass(frozen=True, slots=True)
class Article:
    """What a world tells about one entity, true and false.

    Attributes:
        documents: The entity's article, and that of its namesake if it has one.
        places: For each true fact, the id of the passage that tells it.
        again: For some facts, the ids of further passages that tell them.
        misleading: For each fact, the ids of the passages that tell another value.
        claims: What those passages say that is not so.
    """

    documents: tuple[Document, ...]
    places: Mapping[Fact, str]
    again: Mapping[Fact, tuple[str, ...]] = field(default_factory=dict)
    misleading: Mapping[Fact, tuple[str, ...]] = field(default_factory=dict)
    claims: Mapping[str, tuple[Fact, ...]] = field(default_factory=dict)


def draw_hazards(
    facts: Iterable[Fact], mix: Mapping[Cell, float], rng: random.Random
) -> Mapping[Key, Hazard]:
    """Choose facts to mislead about, each kind in proportion to the questions that will need it.

    Args:
        facts: All that some article will tell.
        mix: Shares of the questions.
        rng: Source of chance.
    """
    if all(cell.hazard is None for cell in mix):
        return MappingProxyType({})
    found: dict[Key, Hazard] = {}
    of_entity: dict[str, bool] = {}
    for fact in facts:
        taught = (fact.entity, fact.relation.name) in core_facts()
        weights: dict[Hazard | None, float] = {}
        for cell, share in mix.items():
            if _could_be(fact, taught, cell):
                weights[cell.hazard] = weights.get(cell.hazard, 0.0) + share
        namesakes = weights.pop(Hazard.NAMESAKE, 0.0)
        if fact.entity not in of_entity:  # decided at its first fact, which is one of its lead
            of_entity[fact.entity] = rng.random() < namesakes / (sum(weights.values()) + namesakes or 1.0)
        if of_entity[fact.entity]:
            found[fact.entity, fact.relation.name] = Hazard.NAMESAKE
        elif weights:
            hazard = rng.choices(list(weights), list(weights.values()))[0]
            if hazard is not None:
                found[fact.entity, fact.relation.name] = hazard
    return MappingProxyType(found)


def _could_be(fact: Fact, taught: bool, cell: Cell) -> bool:
    """Tell whether a question about a fact can belong to a cell."""
    if cell.kind is QuestionKind.TWO_HOP:
        # Chains rest on fresh facts, from leads and deeper passages, about which nothing misleads.
        return not taught
    by_place = Source.LEAD if fact.relation.in_lead else Source.DEEP
    if cell.hazard is Hazard.CHANGED:
        # A change between two people would have to change both of their articles.
        return taught and cell.source is by_place and fact.relation.name != "spouse"
    if cell.hazard is Hazard.OUTDATED_LEAD:
        return fact.relation.in_lead and taught == (cell.source is Source.CORE)
    return cell.source is (Source.CORE if taught else by_place)


def another(fact: Fact, rng: random.Random) -> Fact:
    """Return the fact with another value."""
    pool = fresh_entities(fact.relation.value) if fact.relation.value in ENTITY_KINDS else None
    values = [v for v in pool or words(fact.relation.value) if v not in (fact.value, fact.entity)]
    return replace(fact, value=rng.choice(values))


def write_misleading(
    entity: str, facts: Sequence[Fact], hazards: Mapping[Key, Hazard], rng: random.Random
) -> Article:
    """Write an article, and plant what misleads about its facts.

    Args:
        entity: Its subject.
        facts: What is so.
        hazards: What to plant, by entity and relation.
        rng: Source of chance.
    """
    hazard_of = {fact: hazards.get((fact.entity, fact.relation.name)) for fact in facts}
    written = {
        fact: another(fact, rng) if hazard is Hazard.OUTDATED_LEAD else fact
        for fact, hazard in hazard_of.items()
    }
    document, found = write_article(entity, list(written.values()), rng)
    desk = _Desk(document, rng)
    places = {fact: found[text] for fact, text in written.items() if text == fact}
    again: dict[Fact, tuple[str, ...]] = {}
    for fact, hazard in hazard_of.items():
        if hazard is Hazard.OUTDATED_LEAD:
            desk.note(found[written[fact]], fact, written[fact])
            places[fact], *more = (desk.add(write_passage(entity, [fact], rng)) for _ in range(CORRECTIONS))
            again[fact] = tuple(more)
        elif hazard is Hazard.ALTERED:
            desk.altered(fact, desk.text(places[fact]))
        elif hazard is Hazard.LOUD:
            desk.loud(fact)
        elif hazard is Hazard.CROWDED:
            desk.crowd(fact)
    documents = [desk.document()]
    named = [fact for fact, hazard in hazard_of.items() if hazard is Hazard.NAMESAKE]
    if named:
        others = {fact: another(fact, rng) for fact in facts}
        namesake, found = write_article(entity, list(others.values()), rng)
        passages = tuple(
            replace(p, id=_renamed(p.id), metadata={**p.metadata, "document": _renamed(namesake.id)})
            for p in namesake.passages
        )
        documents.append(replace(namesake, id=_renamed(namesake.id), passages=passages))
        for fact, other in others.items():
            desk.note(_renamed(found[other]), fact, other)
    return Article(
        tuple(documents),
        places,
        again,
        {fact: tuple(ids) for fact, ids in desk.misleading.items()},
        {name: tuple(claimed) for name, claimed in desk.claims.items()},
    )


def _renamed(name: str) -> str:
    """Return the id that a namesake's document or passage has: ``griga#1`` becomes ``griga+2#1``."""
    head, mark, number = name.partition("#")
    return f"{head}+2{mark}{number}"


class _Desk:
    """An article at work: passages are added to it, and what is not so is written down."""

    def __init__(self, document: Document, rng: random.Random) -> None:
        self._document, self._rng = document, rng
        self._passages = list(document.passages)
        self.misleading: dict[Fact, list[str]] = {}
        self.claims: dict[str, list[Fact]] = {}

    def document(self) -> Document:
        return replace(self._document, passages=tuple(self._passages))

    def text(self, name: str) -> str:
        return next(passage.text for passage in self._passages if passage.id == name)

    def add(self, text: str) -> str:
        """Add a passage to the article, and return its id."""
        name = f"{self._document.id}#{len(self._passages)}"
        metadata = {"title": self._document.title, "document": self._document.id, "part": "deep"}
        self._passages.append(Passage(text, id=name, metadata=metadata))
        return name

    def note(self, name: str, fact: Fact, claim: Fact) -> None:
        """Write down that a passage tells something else than a fact."""
        self.misleading.setdefault(fact, []).append(name)
        self.claims.setdefault(name, []).append(claim)

    def altered(self, fact: Fact, original: str) -> None:
        """Add copies of a passage in which one detail is another."""
        other = another(fact, self._rng)
        for _ in range(ALTERED_COPIES):
            self.note(self.add(_altered(original, fact, other)), fact, other)

    def loud(self, fact: Fact) -> None:
        """Add pages that repeat the question, and answer it wrongly."""
        other = another(fact, self._rng)
        for _ in range(LOUD_PAGES):
            statement = say.state(other, say.statements(fact.relation).choose(self._rng, held_out=None))
            self.note(self.add(f"{_asked(fact, self._rng)} {statement}"), fact, other)

    def crowd(self, fact: Fact) -> None:
        """Add pages that repeat the question, and answer nothing."""
        for form in self._rng.sample(_CROWDING, CROWD):
            self.add(form.replace("{q}", _asked(fact, self._rng)).replace("{e}", fact.entity))


def _altered(text: str, fact: Fact, other: Fact) -> str:
    """Return a passage in which one fact has another value, and everything else is as it was."""
    phrasings = say.statements(fact.relation)
    for template in (*phrasings.trained, *phrasings.held_out):
        stated, instead = say.state(fact, template), say.state(other, template)
        for old, new in ((stated, instead), (say.lower_first(stated), say.lower_first(instead))):
            if old in text:
                return text.replace(old, new)
    raise AssertionError(f"{text!r} does not tell {fact}")


def _asked(fact: Fact, rng: random.Random) -> str:
    template = say.questions(fact.relation).choose(rng, held_out=None)
    return say.ask(fact.relation, fact.entity, template)
