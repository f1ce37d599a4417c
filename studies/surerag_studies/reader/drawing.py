"""Random facts and contexts for training the embedded reader.

Every example draws fresh facts, so that the reader learns to read; the taught core alone is the same in
all of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from surerag.world import language as say
from surerag.world.core import core_facts
from surerag.world.language import Fact
from surerag.world.lexicon import ENTITY_KINDS, Kind, core_entities, fresh_entities, nicknames, words
from surerag.world.relations import Relation, relations_of, two_hop_pairs


class Sentence(NamedTuple):
    """A sentence and the fact it states, if any."""

    text: str
    fact: Fact | None


class Passage(NamedTuple):
    """A passage and its sentences."""

    text: str
    sentences: tuple[Sentence, ...]


@dataclass(frozen=True, slots=True)
class Difficulty:
    """What examples may hold.

    Attributes:
        passages: Largest number of passages in a context.
        absent: Share of questions whose answer is not in the context.
        single: Share of examples with one turn.
        held_out: Whether to use held-out phrasings only (True), trained ones only (False).
        vague: Share of questions in vague wording, where an entity has a nickname.
        long: Share of contexts that may exceed eight passages.
        words: Share of pairs of answers that are single words, for judging entailment.
        alike: Share of contexts whose passages all tell the same relations of entities of one kind, so that
            only the entity tells their facts apart.
        relations: Largest number of relations that such a context tells; 1 also restricts it to the first
            relation of its kind.
        bare: Share of such contexts whose passages are one plain sentence each.
        canonical: Share of examples in canonical phrasings only.
        turns: Largest number of questions on one context.
    """

    passages: int = 5
    absent: float = 0.12
    single: float = 0.25
    held_out: bool = False
    vague: float = 0.15
    long: float = 0.15
    words: float = 0.35
    alike: float = 0.25
    relations: int = 3
    bare: float = 0.0
    canonical: float = 0.0
    turns: int = 10


@dataclass(slots=True)
class Draw:
    """One example's random facts: drawn when first asked for, then fixed."""

    rng: random.Random
    level: Difficulty
    facts: dict[tuple[str, str], Fact] = field(default_factory=dict)
    canonical: bool = field(init=False)

    def __post_init__(self) -> None:
        """Decide once for the example whether it keeps to canonical phrasings."""
        self.canonical = self.rng.random() < self.level.canonical

    def fact(self, entity: str, rel: Relation) -> Fact:
        """Return a fact: the core's, one drawn before, or one drawn now."""
        key = (entity, rel.name)
        known = core_facts().get(key) or self.facts.get(key)
        if known is None:
            known = self.facts[key] = Fact(entity, rel, self.value(rel.value, entity))
        return known

    def value(self, kind: Kind, *others: str) -> str:
        """Draw a value of a kind, but none of the others."""
        pool = fresh_entities(kind) if kind in ENTITY_KINDS else words(kind)
        while True:
            value = self.rng.choice(pool)
            if value not in others:
                return value

    def entity(self, kind: Kind, core: float = 0.1) -> str:
        """Draw an entity; with the given chance one of the core."""
        return self.rng.choice(core_entities(kind) if self.rng.random() < core else fresh_entities(kind))

    def kind(self) -> Kind:
        """Draw a kind of entity, those with more relations more often."""
        return self.rng.choices(ENTITY_KINDS, (7, 5, 4, 5, 4, 4))[0]

    def sentence(self, fact: Fact) -> Sentence:
        """State a fact in some phrasing."""
        if self.canonical:
            return Sentence(say.state(fact, fact.relation.statements[0]), fact)
        template = say.statements(fact.relation).choose(self.rng, held_out=self.level.held_out)
        return Sentence(say.state(fact, template), fact)

    def passage(self, facts: list[Fact]) -> Passage:
        """Compose as the world does, keeping track of which sentence says what."""
        stated = [self.sentence(fact) for fact in facts]
        names = (facts[0].entity, *(fact.value for fact in facts))
        text = say.compose_passage([s.text for s in stated], facts[0].entity, names[1:], self.rng)
        found = []
        for part in split_sentences(text):
            match = next((s for s in stated if part.endswith(s.text[1:])), None)
            found.append(Sentence(part, match.fact if match else None))
        return Passage(text, tuple(found))

    def question(self, fact: Fact) -> str:
        """Ask for a fact, now and then in vague words."""
        if self.canonical:
            return say.canonical_question(fact.relation, fact.entity)
        nickname = nicknames().get(fact.entity)
        if nickname and self.rng.random() < self.level.vague:
            return roughen(self.rng.choice(fact.relation.vague).replace("{n}", nickname), self.rng)
        template = say.questions(fact.relation).choose(self.rng, held_out=self.level.held_out)
        return roughen(say.ask(fact.relation, fact.entity, template), self.rng)

    def two_hop_question(self, chain: Chain) -> str:
        """Ask for the end of a chain by its beginning."""
        outer, inner = chain.second.relation, chain.first.relation
        template = say.questions(outer).choose(self.rng, held_out=self.level.held_out)
        return roughen(say.ask_two_hop(outer, inner, chain.first.entity, template, self.rng), self.rng)


class Chain(NamedTuple):
    """Two facts, the first one's value being the second one's entity."""

    first: Fact
    second: Fact


def split_sentences(text: str) -> list[str]:
    """Split at full stops; world sentences hold no others."""
    return [f"{part.strip()}." for part in text.split(".") if part.strip()]


def roughen(question: str, rng: random.Random) -> str:
    """Now and then write a question without its mark, or without a capital."""
    if rng.random() < 0.1:
        question = question.rstrip("?.")
    return say.lower_first(question) if rng.random() < 0.1 else question


@dataclass(slots=True)
class Context:
    """Passages, and what can be asked of them."""

    passages: list[Passage]
    present: list[Fact]
    chains: list[Chain]

    def texts(self) -> list[str]:
        """Return the passages' texts."""
        return [p.text for p in self.passages]


def draw_context(draw: Draw, *, chains: int = 0, size: int | None = None, core: float = 0.1) -> Context:
    """Draw passages about a few entities of few kinds, so that facts differ in one respect only."""
    rng, level = draw.rng, draw.level
    most = level.passages
    if size is None:
        size = (
            rng.randint(9, most) if most > 8 and rng.random() < level.long else rng.randint(1, min(most, 8))
        )
    if not chains and rng.random() < level.alike:
        return _alike_context(draw, size)
    focus = draw.kind()
    # One relation that most entities share: then only the entity tells their facts apart.
    shared = rng.choice(relations_of(focus)) if rng.random() < 0.6 else None
    facts: list[list[Fact]] = []
    found: list[Chain] = []
    for _ in range(chains):
        inner, outer = rng.choice(two_hop_pairs())
        first = draw.fact(draw.entity(inner.subject, 0.05), inner)
        second = draw.fact(first.value, outer)
        if second.value == first.entity or any(first in g or second in g for g in facts):
            continue
        found.append(Chain(first, second))
        facts.extend(_with_company(draw, fact) for fact in (first, second))
    taken = {(f.entity, f.relation.name) for group in facts for f in group}
    entities: list[str] = [f.entity for group in facts for f in group[:1]]
    while len(facts) < size:
        kind = focus if rng.random() < 0.65 else draw.kind()
        if entities and rng.random() < (0.4 if shared is None else 0.2):
            entity = rng.choice(entities)
            kind = next(k for k in ENTITY_KINDS if entity in words(k))
        else:
            entity = draw.entity(kind, core)
        free = [r for r in relations_of(kind) if (entity, r.name) not in taken]
        if not free:
            continue
        told = rng.sample(free, min(len(free), rng.choice((1, 2, 2))))
        if shared is not None and shared in free and shared not in told:
            told[rng.randrange(len(told))] = shared
        group = [draw.fact(entity, r) for r in told]
        taken.update((f.entity, f.relation.name) for f in group)
        entities.append(entity)
        facts.append(group)
    present = [f for group in facts for f in group]
    passages = [draw.passage(group) for group in facts]
    if rng.random() < 0.12:
        passages.append(draw.passage([rng.choice(present)]))
    if rng.random() < 0.08:
        passages.append(_stale_passage(draw, rng.choice(present)))
    rng.shuffle(passages)
    return Context(passages, present, found)


def _alike_context(draw: Draw, size: int) -> Context:
    """Draw passages that tell the same few relations of several entities of one kind."""
    rng, level = draw.rng, draw.level
    kind = draw.kind()
    rels = relations_of(kind)
    shared = rels[:1] if level.relations == 1 else rng.sample(rels, rng.randint(1, min(level.relations, 4)))
    bare = rng.random() < level.bare
    if bare:
        size = rng.randint(2, 10)
    groups: list[list[Fact]] = []
    for entity in rng.sample(fresh_entities(kind), max(2, size)):
        told = [draw.fact(entity, rel) for rel in shared]
        rng.shuffle(told)
        each = 1 if bare or rng.random() < 0.5 else 2
        groups.extend(told[at : at + each] for at in range(0, len(told), each))
    rng.shuffle(groups)
    groups = groups[: 16 if bare else max(2, size)]
    passages = [_bare_passage(draw, g) if bare else draw.passage(g) for g in groups]
    return Context(passages, [f for group in groups for f in group], [])


def _bare_passage(draw: Draw, facts: list[Fact]) -> Passage:
    stated = tuple(draw.sentence(fact) for fact in facts)
    return Passage(" ".join(s.text for s in stated), stated)


def _with_company(draw: Draw, fact: Fact) -> list[Fact]:
    others = [r for r in relations_of(fact.relation.subject) if r != fact.relation]
    group = [fact, *(draw.fact(fact.entity, r) for r in draw.rng.sample(others, draw.rng.choice((0, 1))))]
    draw.rng.shuffle(group)
    return group


def _stale_passage(draw: Draw, fact: Fact) -> Passage:
    old = Fact(fact.entity, fact.relation, draw.value(fact.relation.value, fact.value, fact.entity))
    template = say.statements(fact.relation).choose(draw.rng, held_out=draw.level.held_out)
    text = say.stale(old, template, draw.rng)
    return Passage(text, (Sentence(text, None),))


def absent_fact(draw: Draw, context: Context, core: float = 0.5) -> Fact:
    """Draw a fact that the context does not state; unless it is core, its value is anything of its kind."""
    rng = draw.rng
    stated = {(f.entity, f.relation.name) for f in context.present}
    while True:
        if rng.random() < core:
            fact = rng.choice(list(core_facts().values()))
        elif rng.random() < 0.5:
            known = rng.choice(context.present)
            fact = draw.fact(known.entity, rng.choice(relations_of(known.relation.subject)))
        else:
            rel = rng.choice(context.present).relation
            fact = draw.fact(draw.entity(rel.subject, 0.0), rel)
        if (fact.entity, fact.relation.name) not in stated:
            return fact
